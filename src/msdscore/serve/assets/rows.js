"use strict";
// A scored file, worst rows first, ten at a time; a row's picture opens in the page. Nothing is sent before that.
const Rows = (() => {
  const LOWER = ["coverage", "support", "divergence"], PAGE = 10;
  let rows = [], pictures = new Map(), at = 0, open = null;

  function cells(line, mark) {
    const found = [];
    let cell = "", inside = false;
    for (let i = 0; i < line.length; i++) {
      const char = line[i];
      if (inside) {
        if (char === '"' && line[i + 1] === '"') { cell += '"'; i++; } else if (char === '"') inside = false; else cell += char;
      } else if (char === '"') inside = true;
      else if (char === mark) { found.push(cell); cell = ""; } else cell += char;
    }
    return [...found, cell];
  }

  // Lines of a table; a line feed inside quotes belongs to its cell.
  function lines(text) {
    const found = [];
    let start = 0, inside = false;
    for (let i = 0; i <= text.length; i++) {
      if (text[i] === '"') inside = !inside;
      if (i === text.length || (text[i] === "\n" && !inside)) { found.push(text.slice(start, i).replace(/\r$/, "")); start = i + 1; }
    }
    return found.filter((line) => line.trim());
  }

  function parse(name, text) {
    if (/\.(csv|tsv)$/i.test(name)) {
      const mark = /\.tsv$/i.test(name) ? "\t" : ",", [head, ...rest] = lines(text), names = cells(head, mark);
      return rest.map((line) => Object.fromEntries(cells(line, mark).map((cell, place) => [names[place], cell])));
    }
    const trimmed = text.trim();
    const found = trimmed.startsWith("[") ? JSON.parse(trimmed) : trimmed.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    return Array.isArray(found) ? found : [found];
  }

  const number = (row, name) => (row[name] === "" || row[name] === null || row[name] === undefined ? NaN : Number(row[name]));
  const fileOf = (row) => pictures.get(String(row.image ?? row.image_path ?? row.file_name ?? "").split(/[\\/]/).pop());

  function sort() {
    const name = $("rows-by").value, sign = LOWER.includes(name) ? -1 : 1;
    rows.sort((a, b) => (Number.isNaN(number(a, name)) ? 1 : 0) - (Number.isNaN(number(b, name)) ? 1 : 0) || sign * (number(a, name) - number(b, name)));
    at = 0;
    show();
  }

  function show() {
    const some = rows.slice(at, at + PAGE), name = $("rows-by").value;
    $("rows").replaceChildren(...some.map((row) => {
      const file = fileOf(row), text = make("div", {}, make("b", {}, Number.isNaN(number(row, name)) ? row.error || "no score" : `${name} ${number(row, name).toFixed(3)}`), " ", String(row.caption ?? ""));
      const node = make("div", { class: "card" });
      if (file) node.append(make("img", { src: URL.createObjectURL(file), alt: "" }));
      node.append(text);
      if (file) text.append(make("p", {}, make("button", { type: "button", onclick: () => { open(file, [String(row.caption ?? "")]); scrollTo(0, 0); } }, "Look at it")));
      return node;
    }));
    $("rows-place").textContent = rows.length ? `${at + 1} to ${Math.min(at + PAGE, rows.length)} of ${rows.length}` : "";
  }

  function start(take) {
    open = take;
    $("rows-file").addEventListener("change", async (event) => {
      const file = event.target.files[0];
      if (!file) return;
      try {
        rows = parse(file.name, await file.text());
      } catch (error) {
        return say(`${file.name}: cannot be read as scored rows (${error.message})`, true);
      }
      const names = ["soft_msd", "msd", "match", "support", "coverage", "similarity"].filter((name) => rows.some((row) => !Number.isNaN(number(row, name))));
      if (!names.length) return say(`${file.name}: has no column of scores (msd, soft_msd, …); score it first`, true);
      $("rows-by").replaceChildren(...names.map((name) => make("option", {}, name)));
      sort();
    });
    $("rows-pictures").addEventListener("change", (event) => { pictures = new Map([...event.target.files].map((file) => [file.name, file])); show(); });
    $("rows-by").addEventListener("change", sort);
    $("rows-back").addEventListener("click", () => { at = Math.max(0, at - PAGE); show(); });
    $("rows-on").addEventListener("click", () => { if (at + PAGE < rows.length) at += PAGE; show(); });
  }
  return { start };
})();
