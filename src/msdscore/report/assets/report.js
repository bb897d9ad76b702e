"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const data = JSON.parse($("data").textContent);
const total = data.rows,
  numbers = {},
  texts = { ...data.texts, ...data.others };
for (const [name, values] of Object.entries(data.numbers))
  numbers[name] = Float64Array.from(values, (v) => (v === null ? NaN : v));
const folded = data.texts.caption.map((caption, row) => (caption + "\n" + data.texts.id[row]).toLowerCase());
const names = data.names,
  [partX, partY] = data.parts;
// An arrow after the name of a number: whether higher or lower is better.
const arrow = (name) => (!names[name] ? "" : data.lower.includes(name) ? " ↓" : " ↑");
// A match is shown as a percentage.
const show = (name, value, digits = 4) => {
  if (value === null || Number.isNaN(value)) return "";
  return name === "match" ? `${Math.round(100 * value)} %` : value.toFixed(digits);
};
// A mean with its interval, whose ends are null if they are unknown.
const showMean = (name, [value, low, high], digits) =>
  show(name, value, digits) + (low === null ? "" : ` [${show(name, low, digits)}, ${show(name, high, digits)}]`);
// The class of a verdict: on-topic, unsure, off-topic, or none.
const classOf = (verdict) => verdict.replace(" ", "-") || "none";
// The verdict of a match, if no warning withholds it.
const verdictOf = (match) => Object.keys(data.verdicts).find((name) => match >= data.verdicts[name][0]) ?? "";
// A colour of the palette in the current colour scheme.
const probe = document.createElement("i");
document.body.append(probe);
const shade = (name) => {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
};

// Filters and order of the table; `visible` are the indices of the matching rows in that order.
const state = {
  search: "",
  system: "",
  failed: false,
  verdict: "",
  ranges: {},
  metric: numbers.match ? "match" : "msd",
  sort: null,
  down: false,
};
let visible = new Uint32Array(0),
  shownRow = -1;

function select() {
  const tests = [];
  if (state.search) tests.push((row) => folded[row].includes(state.search));
  if (state.system) tests.push((row) => data.texts.system[row] === state.system);
  if (state.verdict) tests.push((row) => texts.verdict[row] === state.verdict);
  if (state.failed) tests.push((row) => data.texts.error[row] !== "");
  for (const [name, [low, high]] of Object.entries(state.ranges)) {
    const values = numbers[name];
    tests.push((row) => values[row] >= low && values[row] <= high);
  }
  const kept = [];
  for (let row = 0; row < total; row++) if (tests.every((test) => test(row))) kept.push(row);
  visible = Uint32Array.from(kept);
  if (state.sort) order();
}

function order() {
  const values = numbers[state.sort],
    words = texts[state.sort],
    sign = state.down ? -1 : 1;
  // Missing values are last in both directions.
  const compare = values
    ? (a, b) =>
        (Number.isNaN(values[a]) ? 1 : 0) - (Number.isNaN(values[b]) ? 1 : 0) || sign * (values[a] - values[b]) || a - b
    : (a, b) =>
        (words[a] === "") - (words[b] === "") ||
        sign * (words[a] < words[b] ? -1 : words[a] > words[b] ? 1 : 0) ||
        a - b;
  visible.sort(compare);
}

// Plots: the whole file in grey, the selected rows in colour.
const extents = {};
function extent(name) {
  if (name === "match") return [0, 1];
  if (!extents[name]) {
    let low = Infinity,
      high = -Infinity;
    for (const value of numbers[name]) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (!(high > low)) {
      low = Number.isFinite(low) ? low - 0.5 : 0;
      high = low + 1;
    }
    extents[name] = [low, high];
  }
  return extents[name];
}
const metricOf = (plot) => (plot === "score" ? state.metric : plot);

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1,
    box = canvas.getBoundingClientRect();
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  return [pen, box.width, box.height];
}

const end = (name, value) => (name === "match" ? show(name, value) : value.toPrecision(3));
function axis(pen, width, height, name) {
  const [low, high] = extent(name);
  pen.fillStyle = shade("soft");
  pen.textBaseline = "bottom";
  pen.textAlign = "left";
  pen.fillText(end(name, low), 0, height);
  pen.textAlign = "right";
  pen.fillText(end(name, high), width, height);
}

function histogram(canvas) {
  const plot = canvas.dataset.plot,
    name = metricOf(plot),
    values = numbers[name];
  const [pen, width, height] = prepare(canvas),
    [low, high] = extent(name),
    bins = 15,
    floor = height - 15;
  const tally = (rows, count) => {
    const heights = new Float64Array(bins);
    for (let index = 0; index < count; index++) {
      const value = values[rows ? rows[index] : index];
      if (value === value) heights[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))]++;
    }
    return heights;
  };
  const all = tally(null, total),
    some = tally(visible, visible.length),
    top = Math.max(1, ...all);
  const bars = (heights, colour) => {
    heights.forEach((count, bin) => {
      pen.fillStyle = shade(colour ?? (name === "match" ? classOf(verdictOf((bin + 0.5) / bins)) : "accent"));
      const tall = (count / top) * (floor - 4);
      pen.fillRect((bin / bins) * width, floor - tall, width / bins - 1, tall);
    });
  };
  bars(all, "line");
  bars(some);
  const range = state.ranges[name];
  if (range) {
    const at = (value) => ((value - low) / (high - low)) * width;
    pen.strokeStyle = shade("ink");
    pen.strokeRect(at(range[0]), 1, at(range[1]) - at(range[0]), floor - 1);
  }
  axis(pen, width, height, name);
}

const inset = { left: 46, bottom: 28, top: 6, right: 8 };
function scatter(canvas) {
  const [pen, width, height] = prepare(canvas),
    [x0, x1] = extent(partX),
    [y0, y1] = extent(partY);
  const wide = width - inset.left - inset.right,
    high = height - inset.top - inset.bottom;
  const x = (v) => inset.left + ((v - x0) / (x1 - x0)) * wide,
    y = (v) => inset.top + high - ((v - y0) / (y1 - y0)) * high;
  const dots = (rows, count, colour, size) => {
    pen.fillStyle = colour;
    for (let index = 0; index < count; index++) {
      const row = rows ? rows[index] : index;
      if (numbers[partX][row] === numbers[partX][row])
        pen.fillRect(x(numbers[partX][row]) - size / 2, y(numbers[partY][row]) - size / 2, size, size);
    }
  };
  const size = total > 5000 ? 1.6 : 3.2;
  dots(null, total, shade("line"), size);
  pen.globalAlpha = total > 5000 ? 0.35 : 0.65;
  dots(visible, visible.length, shade("accent"), size);
  pen.globalAlpha = 1;
  if (shownRow >= 0) {
    pen.strokeStyle = shade("off-topic");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(x(numbers[partX][shownRow]), y(numbers[partY][shownRow]), 6, 0, 7);
    pen.stroke();
    pen.lineWidth = 1;
  }
  frame(pen, width, height, [x0, x1], [y0, y1], partX + arrow(partX), partY + arrow(partY));
  canvas.at = (px, py) => [
    x0 + ((px - inset.left) / wide) * (x1 - x0),
    y0 + ((inset.top + high - py) / high) * (y1 - y0),
  ];
  canvas.to = (row) => [x(numbers[partX][row]), y(numbers[partY][row])];
}

function frame(pen, width, height, xs, ys, xName, yName) {
  pen.strokeStyle = shade("line");
  pen.strokeRect(inset.left, inset.top, width - inset.left - inset.right, height - inset.top - inset.bottom);
  pen.fillStyle = shade("soft");
  pen.textBaseline = "top";
  pen.textAlign = "left";
  const low = height - inset.bottom + 3;
  pen.fillText(xs[0].toPrecision(3), inset.left, low);
  pen.textAlign = "right";
  pen.fillText(xs[1].toPrecision(3), width - inset.right, low);
  pen.textAlign = "center";
  pen.fillText(xName, (width + inset.left) / 2, low);
  pen.textAlign = "right";
  pen.fillText(ys[1].toPrecision(3), inset.left - 4, inset.top);
  pen.textBaseline = "bottom";
  pen.fillText(ys[0].toPrecision(3), inset.left - 4, height - inset.bottom);
  pen.save();
  pen.translate(12, (height - inset.bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(yName, 0, 0);
  pen.restore();
}

function lengths(canvas) {
  const [pen, width, height] = prepare(canvas),
    values = numbers[state.metric],
    size = numbers.length;
  const groups = new Map();
  for (const row of visible) {
    if (values[row] !== values[row] || size[row] !== size[row]) continue;
    if (!groups.has(size[row])) groups.set(size[row], []);
    groups.get(size[row]).push(values[row]);
  }
  const pool = [...groups].sort((a, b) => a[0] - b[0]);
  // Adjacent lengths are merged until a point represents enough captions.
  const least = Math.max(1, visible.length / 60),
    points = [];
  for (let index = 0; index < pool.length;) {
    const some = [],
      used = [];
    while (index < pool.length && some.length < least) {
      some.push(...pool[index][1]);
      used.push(pool[index][0]);
      index++;
    }
    some.sort((a, b) => a - b);
    const at = (share) => some[Math.min(some.length - 1, Math.floor(share * some.length))];
    points.push([used.reduce((a, b) => a + b) / used.length, at(0.25), at(0.5), at(0.75)]);
  }
  if (!points.length) return;
  const xs = [points[0][0], points.at(-1)[0] > points[0][0] ? points.at(-1)[0] : points[0][0] + 1];
  let ys = [Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[3]))];
  if (!(ys[1] > ys[0])) ys = [ys[0] - 0.5, ys[0] + 0.5];
  const wide = width - inset.left - inset.right,
    high = height - inset.top - inset.bottom;
  const x = (v) => inset.left + ((v - xs[0]) / (xs[1] - xs[0])) * wide,
    y = (v) => inset.top + high - ((v - ys[0]) / (ys[1] - ys[0])) * high;
  pen.fillStyle = shade("line");
  pen.beginPath();
  points.forEach((p) => pen.lineTo(x(p[0]), y(p[3])));
  points.toReversed().forEach((p) => pen.lineTo(x(p[0]), y(p[1])));
  pen.fill();
  pen.strokeStyle = shade("accent");
  pen.lineWidth = 2;
  pen.beginPath();
  points.forEach((p) => pen.lineTo(x(p[0]), y(p[2])));
  pen.stroke();
  pen.lineWidth = 1;
  if (points.length < 40) {
    pen.fillStyle = shade("accent");
    points.forEach((p) => pen.fillRect(x(p[0]) - 2, y(p[2]) - 2, 4, 4));
  }
  frame(pen, width, height, xs, ys, "length, tokens", names[state.metric]);
}

const painters = { scatter, length: lengths };
const canvases = [...document.querySelectorAll("canvas")];
const paint = () => canvases.forEach((canvas) => (painters[canvas.dataset.plot] || histogram)(canvas));

// Dragging over a histogram or the scatter plot selects a range; a click without dragging clears it or opens a point.
for (const canvas of canvases) {
  const plot = canvas.dataset.plot;
  if (plot === "length") continue;
  canvas.addEventListener("pointerdown", (start) => {
    const box = canvas.getBoundingClientRect(),
      from = [start.clientX - box.left, start.clientY - box.top];
    canvas.setPointerCapture(start.pointerId);
    canvas.onpointerup = (end) => {
      canvas.onpointerup = null;
      const to = [end.clientX - box.left, end.clientY - box.top];
      (plot === "scatter" ? pickBox : pickRange)(canvas, from, to, box.width);
    };
  });
}
const rising = (a, b) => (a < b ? [a, b] : [b, a]);
function pickRange(canvas, from, to, width) {
  const name = metricOf(canvas.dataset.plot),
    [low, high] = extent(name);
  if (Math.abs(from[0] - to[0]) < 3) delete state.ranges[name];
  else
    state.ranges[name] = rising(
      ...[from, to].map((p) => low + (Math.max(0, Math.min(width, p[0])) / width) * (high - low)),
    );
  refresh();
}
function pickBox(canvas, from, to) {
  if (Math.abs(from[0] - to[0]) < 3 && Math.abs(from[1] - to[1]) < 3) {
    let best = -1,
      near = 100;
    for (const row of visible) {
      const [x, y] = canvas.to(row),
        distance = (x - to[0]) ** 2 + (y - to[1]) ** 2;
      if (distance < near) {
        near = distance;
        best = row;
      }
    }
    if (best >= 0) return detail(best);
    delete state.ranges[partX];
    delete state.ranges[partY];
  } else {
    const [a, b] = [canvas.at(...from), canvas.at(...to)];
    state.ranges[partX] = rising(a[0], b[0]);
    state.ranges[partY] = rising(a[1], b[1]);
  }
  refresh();
}

// The table: only the rows within the scrolled view are in the document.
const height = 28,
  limit = 15_000_000; // pixels; browsers support heights up to about 33 million
const scores = Object.keys(names).filter((name) => numbers[name]);
const columns = [
  ...scores.filter((name) => name === "match"),
  "caption",
  ...(data.texts.system ? ["system"] : []),
  ...scores.filter((name) => name !== "match"),
  ...["length"].filter((name) => numbers[name]),
  "error",
  ...Object.keys(data.others),
];
const kindOf = (name) => (numbers[name] ? "" : name === "caption" || name === "error" ? name : "text");
const part = (tag, role, className, text) => {
  const node = make(tag, className, text);
  node.setAttribute("role", role);
  return node;
};
function header() {
  $("head").replaceChildren(
    ...columns.map((name) => {
      const cell = part("div", "columnheader", "cell " + kindOf(name)),
        mark = state.sort === name ? (state.down ? " ▾" : " ▴") : "";
      const button = make("button", "", (names[name] || name) + arrow(name) + mark);
      button.title = names[name] ? (data.lower.includes(name) ? "lower is better" : "higher is better") : name;
      button.dataset.column = name;
      button.addEventListener("click", () => {
        if (state.sort === name) state.down = !state.down;
        else {
          state.sort = name;
          state.down = false;
        }
        select();
        header();
        $("view").scrollTop = 0;
        rows();
      });
      cell.append(button);
      return cell;
    }),
  );
}
function rows() {
  const view = $("view"),
    tall = visible.length * height,
    room = Math.min(tall, limit);
  view.style.height = Math.min(560, Math.max(tall, height)) + "px"; // no empty space below a few rows
  $("space").style.height = room + "px";
  const share = room > view.clientHeight ? view.scrollTop / (room - view.clientHeight) : 0;
  const first = Math.max(
    0,
    Math.min(visible.length, Math.floor((share * Math.max(0, tall - view.clientHeight)) / height) - 4),
  );
  const last = Math.min(visible.length, first + Math.ceil(view.clientHeight / height) + 9),
    lines = [];
  for (let index = first; index < last; index++) lines.push(line(visible[index]));
  $("window").style.top =
    Math.min(view.scrollTop - (share * Math.max(0, tall - view.clientHeight) - first * height), room) + "px";
  $("window").replaceChildren(...lines);
}
function line(row) {
  const node = part("div", "row", row === shownRow ? "row on" : "row");
  node.dataset.row = row;
  for (const name of columns) {
    const text = numbers[name] ? show(name, numbers[name][row], name === "length" ? 0 : 4) : texts[name][row];
    const cell = part("div", "cell", "cell " + kindOf(name), text);
    // Rows with an explanation show their words in colour.
    if (name === "caption" && cards.get(row)?.explained) cell.innerHTML = cards.get(row).words;
    if (name === "match") cell.classList.add(classOf(texts.verdict[row]));
    if (!numbers[name]) cell.title = text;
    node.append(cell);
  }
  return node;
}
$("view").addEventListener("scroll", () => requestAnimationFrame(rows));
$("window").addEventListener("click", (event) => {
  const node = event.target.closest(".row");
  if (node) detail(Number(node.dataset.row));
});

const cards = new Map();
for (const gallery of data.galleries)
  for (const card of gallery.cards) if (!cards.has(card.row)) cards.set(card.row, card);
function caption(card, row) {
  const node = make("div", "text");
  // Escaped when the page was built; everything else is set as text.
  if (card) node.innerHTML = card.words;
  else node.textContent = data.texts.caption[row];
  return node;
}
function detail(row) {
  shownRow = row;
  const box = $("detail"),
    card = cards.get(row),
    words = caption(card, row),
    list = make("dl");
  words.className = "caption";
  const facts = [
    ...Object.entries(numbers).map(([name, values]) => [(names[name] || name) + arrow(name), show(name, values[row])]),
    ...Object.entries(texts)
      .filter(([name]) => name !== "caption")
      .map(([name, values]) => [name, values[row]]),
  ];
  for (const [name, value] of facts)
    if (value !== "") {
      const pair = make("div");
      pair.append(make("dt", "", name), make("dd", "", value));
      list.append(pair);
    }
  const close = make("button", "", "close");
  close.addEventListener("click", () => {
    box.hidden = true;
    shownRow = -1;
    rows();
    paint();
  });
  const images = card ? card.images.map(image) : [],
    lines = card ? card.lines.map((text) => make("div", "line", text)) : [];
  box.replaceChildren(close, words, ...lines, ...images, list);
  box.hidden = false;
  rows();
  paint();
  box.scrollIntoView({ block: "nearest" });
}
function image(source) {
  const node = make("img");
  node.src = source;
  node.alt = "Image of the row";
  node.loading = "lazy";
  return node;
}

function galleries() {
  const blocks = data.galleries
    .filter((gallery) => gallery.cards.length)
    .map((gallery) => {
      const block = make("section"),
        heading = make("h2", "", gallery.title),
        grid = make("div", "cards");
      heading.append(make("small", "", "  " + gallery.note));
      for (const card of gallery.cards) {
        const node = make("article", "card");
        node.dataset.row = card.row;
        if (card.images.length) {
          const images = make("div", "images");
          images.append(...card.images.map(image));
          node.append(images);
        }
        node.append(
          caption(card, card.row),
          make(
            "div",
            "facts",
            (numbers.match ? ["match"] : ["msd", partX, partY])
              .filter((name) => numbers[name])
              .map((name) => names[name] + arrow(name) + " " + show(name, numbers[name][card.row], 3))
              .join("  ") + (data.texts.system ? "  " + data.texts.system[card.row] : ""),
          ),
        );
        if (card.note) node.append(make("div", "note", card.note));
        node.addEventListener("click", () => detail(card.row));
        grid.append(node);
      }
      block.append(heading, grid);
      return block;
    });
  $("galleries").replaceChildren(...blocks);
}

// Numbers of captions by verdict, of which each tile is a filter, and of those whose verdict was withheld.
function tiles() {
  $("tiles").hidden = !numbers.match;
  if (!numbers.match) return;
  const counts = Object.fromEntries(Object.keys(data.verdicts).map((verdict) => [verdict, 0]));
  let known = 0,
    withheld = 0;
  numbers.match.forEach((match, row) => {
    if (match !== match) return;
    known++;
    if (texts.verdict[row]) counts[texts.verdict[row]]++;
    else withheld++;
  });
  $("withheld").hidden = !withheld;
  $("withheld").textContent = `${withheld.toLocaleString("en")} without a verdict; their warnings say why`;
  $("tiles").replaceChildren(
    ...Object.entries(counts).map(([verdict, count]) => {
      const tile = make("button", `tile ${classOf(verdict)}`);
      const on = state.verdict === verdict;
      tile.type = "button";
      tile.setAttribute("aria-pressed", String(on));
      const share = known ? Math.round((100 * count) / known) : 0;
      tile.append(make("b", "", count.toLocaleString("en")), ` ${verdict} `, make("small", "", `${share} %`));
      tile.addEventListener("click", () => {
        state.verdict = on ? "" : verdict;
        refresh();
      });
      return tile;
    }),
  );
}

function captioners() {
  const list = data.systems[state.metric] || [];
  $("captioners").hidden = !list.length;
  if (!list.length) return;
  const ends = list.flatMap((one) => one.mean).filter((end) => end !== null),
    lowest = Math.min(...ends),
    wide = Math.max(...ends) - lowest || 1;
  const head = make("tr"),
    better = data.lower.includes(state.metric) ? "lower is better" : "higher is better";
  for (const name of ["captioner", "captions", "mean " + names[state.metric] + " [95 %], " + better, ""])
    head.append(make(name ? "th" : "td", "", name)); // the bars have no name
  document.querySelector("#captioners thead").replaceChildren(head);
  document.querySelector("#captioners tbody").replaceChildren(
    ...list.map((one) => {
      const row = make("tr"),
        range = make("td"),
        bar = make("div", "range"),
        line = make("i"),
        dot = make("b");
      const at = (value) => (100 * (value - lowest)) / wide + "%";
      if (one.mean[1] !== null) {
        line.style.left = at(one.mean[1]);
        line.style.width = (100 * (one.mean[2] - one.mean[1])) / wide + "%";
      }
      dot.style.left = at(one.mean[0]);
      bar.append(line, dot);
      range.append(bar);
      row.append(
        make("td", "", one.system),
        make("td", "", one.captions),
        make("td", "", showMean(state.metric, one.mean)),
        range,
      );
      row.addEventListener("click", () => {
        $("system").value = state.system = state.system === one.system ? "" : one.system;
        refresh();
      });
      return row;
    }),
  );
}

function errors() {
  const counts = new Map();
  for (const text of data.texts.error) {
    // The message comes last; the text before it identifies the row.
    const reason = text.slice(text.lastIndexOf(": ") + 1).trim();
    if (reason) counts.set(reason, (counts.get(reason) || 0) + 1);
  }
  $("errors").hidden = !counts.size;
  $("errors")
    .querySelector("tbody")
    .replaceChildren(
      ...[...counts]
        .sort((a, b) => b[1] - a[1])
        .slice(0, 20)
        .map(([reason, count]) => {
          const row = make("tr");
          row.append(make("td", "", count), make("td", "", reason));
          return row;
        }),
    );
}

function refresh() {
  select();
  $("count").textContent = visible.length.toLocaleString("en") + " of " + total.toLocaleString("en") + " rows";
  $("chips").replaceChildren(
    ...Object.entries(state.ranges).map(([name, range]) =>
      make("span", "chip", (names[name] || name) + " " + range.map((value) => end(name, value)).join(" to ")),
    ),
  );
  tiles();
  const inside = new Set(visible);
  for (const card of document.querySelectorAll(".card")) card.hidden = !inside.has(Number(card.dataset.row));
  $("view").scrollTop = 0;
  rows();
  paint();
}

function start() {
  const failed = data.texts.error.filter(Boolean).length,
    mean = (name) => data.means[name] && `${names[name]}${arrow(name)} ${showMean(name, data.means[name], 3)}`;
  $("summary").textContent = [
    total.toLocaleString("en") + " rows",
    failed.toLocaleString("en") + " with errors",
    ...["match", "msd", "similarity", partX, partY].map(mean).filter(Boolean),
  ].join("  ·  ");
  const option = (value, text) => Object.assign(make("option", "", text), { value });
  $("metric").append(...scores.map((name) => option(name, names[name] + arrow(name))));
  $("metric").value = state.metric;
  if (data.texts.system) {
    $("system").hidden = false;
    const systems = [...new Set(data.texts.system)].sort();
    $("system").append(option("", "all captioners"), ...systems.map((name) => option(name, name)));
  }
  let waiting = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      state.search = $("search").value.trim().toLowerCase();
      refresh();
    }, 120);
  });
  $("system").addEventListener("change", () => {
    state.system = $("system").value;
    refresh();
  });
  $("failed").addEventListener("change", () => {
    state.failed = $("failed").checked;
    refresh();
  });
  $("metric").addEventListener("change", () => {
    state.metric = $("metric").value;
    captioners();
    refresh();
  });
  $("clear").addEventListener("click", () => {
    Object.assign(state, { search: "", system: "", failed: false, verdict: "", ranges: {} });
    $("search").value = "";
    $("system").value = "";
    $("failed").checked = false;
    refresh();
  });
  window.addEventListener("resize", () => {
    rows();
    paint();
  });
  $("more").addEventListener("toggle", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  header();
  captioners();
  errors();
  galleries();
  refresh();
  document.body.dataset.ready = "yes";
}
start();
