"use strict";
// What is on the page as files: a picture, a drawing, the numbers, and a snippet that makes the same numbers.
const Export = (() => {
  function save(name, content, kind) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const base = (state) => (state.file ? state.file.name.replace(/\.[^.]*$/, "") : "msdscore");
  const escape = (text) => text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

  // Words in lines of a given width; each keeps its colour.
  function lines(pen, one, width, limit) {
    const found = [[]];
    let x = 0;
    const words = one.why ? one.why.words : one.text.split(/\s+/).map((text) => ({ text, gap: null }));
    for (const word of words) {
      const size = pen.measureText(word.text + " ").width;
      if (x + size > width && x > 0) { found.push([]); x = 0; }
      found[found.length - 1].push({ ...word, x, size, look: word.content ? Draw.wordColour(word.gap, limit) : null });
      x += size;
    }
    return found;
  }

  function layout(state, cards, stages) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "18px sans-serif";
    const pictures = [...document.querySelectorAll("#stages canvas")], width = 900, limit = gapLimit();
    const high = pictures.length ? Math.round((pictures[0].height / pictures[0].width) * (width / pictures.length)) : 0;
    const blocks = [];
    let y = high + 36;
    cards.filter((one) => one.score && !one.score.error).forEach((one, place) => {
      blocks.push({ one, place, y, rows: lines(pen, one, width - 150, limit) });
      y += 30 * blocks[blocks.length - 1].rows.length + 14;
    });
    return { pictures, width, high, blocks, height: y + 24 };
  }

  function png(state, cards, stages) {
    const { pictures, width, high, blocks, height } = layout(state, cards, stages);
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    canvas.width = width; canvas.height = height;
    pen.fillStyle = "#fff"; pen.fillRect(0, 0, width, height);
    pictures.forEach((picture, place) => pen.drawImage(picture, (place * width) / pictures.length, 0, width / pictures.length, high));
    pen.font = "18px sans-serif";
    for (const { one, place, y, rows } of blocks) {
      pen.fillStyle = "#111"; pen.fillText(`${place + 1}   ${one.score.soft_msd.toFixed(3)}`, 10, y);
      rows.forEach((row, number) => row.forEach((word) => {
        if (word.look) { pen.fillStyle = word.look.back; pen.fillRect(118 + word.x, y + 30 * number - 19, word.size - 4, 26); }
        pen.fillStyle = word.look ? word.look.ink : "#111"; pen.fillText(word.text, 120 + word.x, y + 30 * number);
      }));
    }
    pen.font = "11px monospace"; pen.fillStyle = "#555"; pen.fillText(state.signature, 10, height - 8);
    canvas.toBlob((blob) => save(base(state) + ".png", blob), "image/png");
  }

  function svg(state, cards, stages) {
    const { pictures, width, high, blocks, height } = layout(state, cards, stages), parts = [];
    pictures.forEach((picture, place) => parts.push(`<image href="${picture.toDataURL("image/jpeg", 0.9)}" x="${(place * width) / pictures.length}" y="0" width="${width / pictures.length}" height="${high}"/>`));
    for (const { one, place, y, rows } of blocks) {
      parts.push(`<text x="10" y="${y}">${place + 1}   ${one.score.soft_msd.toFixed(3)}</text>`);
      rows.forEach((row, number) => row.forEach((word) => {
        if (word.look) parts.push(`<rect x="${118 + word.x}" y="${y + 30 * number - 19}" width="${word.size - 4}" height="26" rx="3" fill="${word.look.back}"/>`);
        parts.push(`<text x="${120 + word.x}" y="${y + 30 * number}" fill="${word.look ? word.look.ink : "#111"}">${escape(word.text)}</text>`);
      }));
    }
    parts.push(`<text x="10" y="${height - 8}" font-size="11" font-family="monospace" fill="#555">${escape(state.signature)}</text>`);
    save(base(state) + ".svg", `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="18"><rect width="100%" height="100%" fill="#fff"/>${parts.join("")}</svg>`, "image/svg+xml");
  }

  function json(state, cards) {
    save(base(state) + ".json", JSON.stringify({ signature: state.signature, captions: cards.map((one) => ({ ...one.score, explanation: one.why })) }, null, 1), "application/json");
  }

  const quoted = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (char) => char);
  function python(state, cards) {
    const listed = cards.filter((one) => one.text.trim()).map((one) => `    ${quoted(one.text)},`).join("\n");
    const encoder = (state.signature.match(/\|enc:([^@,|]+)/) || [])[1] || "mini";
    save(base(state) + ".py", `# Makes the numbers on the page again.\n# ${state.signature}\nfrom msdscore import Scorer\n\nscorer = Scorer(${quoted(encoder)})\nscores = scorer.rank(${quoted(state.file ? state.file.name : "picture.jpg")}, [\n${listed}\n])\nprint(scores)\nassert scores.signature == ${quoted(state.signature)}, "other settings, weights or version than the page"\n`, "text/x-python");
  }

  return { png, svg, json, python };
})();
