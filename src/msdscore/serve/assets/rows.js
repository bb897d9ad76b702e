// Many images: a scored file with tiles, histogram, filters and worst rows, or images that are scored in the page.
import { html, useEffect, useState } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";
import * as images from "./images.js";
import { save } from "./export.js";
import { coloured } from "./cards.js";

const { changed, percent, signed, state } = store;
const PAGE = 20;
const ALL = { low: "", high: "", contains: "" };
const AT_ONCE = 2; // images that are scored in parallel
const READINGS = { good: [0.7, 1], doubtful: [0.3, 0.7], poor: [0, 0.3] };

const parts = (path) =>
  String(path ?? "")
    .split(/[\\/]/)
    .filter((part) => part && part !== ".");

// Files by their base names, so that only a few are compared for each row.
export function indexed(files) {
  const index = new Map();
  for (const file of files) {
    const own = parts(file.webkitRelativePath || file.name);
    if (!index.has(own.at(-1))) index.set(own.at(-1), []);
    index.get(own.at(-1)).push({ own, file });
  }
  return index;
}

// The file of a row's image: the ends of both paths must match, including folders if there are any.
export function fileOf(image, index) {
  const wanted = parts(image);
  let best = { length: 0, files: [] };
  for (const { own, file } of index.get(wanted.at(-1)) ?? []) {
    let length = 0;
    while (length < Math.min(own.length, wanted.length) && own.at(-1 - length) === wanted.at(-1 - length)) length++;
    const enough = length === wanted.length || length === own.length || length > 1;
    if (!enough || (own.length === 1 && wanted.length > 1)) continue;
    if (length > best.length) best = { length, files: [file] };
    else if (length === best.length) best.files.push(file);
  }
  return best.files.length === 1 ? best.files[0] : null;
}

const view = {
  file: null, // a scored file
  name: null, // its name at the service
  table: null,
  images: new Map(),
  results: new Map(), // explanations of its rows, by number
  scored: null, // rows that are scored in the page: { row, file, caption, result, problem }
  start: 0,
  by: "",
  ...ALL,
  note: "",
  wrong: false,
};
let requests = 0;

function change(values) {
  Object.assign(view, values);
  changed();
}

// A scored file ---------------------------------------------------------------------------------

// The file is uploaded once; later requests refer to it by name. A late response never overwrites a newer one.
async function read(values) {
  change({ start: 0, ...values });
  const number = ++requests;
  change({ note: view.name ? "" : `Reading ${view.file.name}…`, wrong: false });
  const { by, start, low, high, contains } = view;
  try {
    const table = await service.rows(view, { by, start, low, high, contains, count: PAGE });
    if (number !== requests) return;
    change({ table, name: table.file, note: "" });
    colourRows();
  } catch (error) {
    if (number === requests) change({ note: `${view.file.name}: ${error.message}`, wrong: true });
  }
}

export function openRows(file) {
  if (file) read({ file, name: null, table: null, scored: null, results: new Map(), by: "", ...ALL });
}

// The words of visible rows are coloured if their images were chosen.
function colourRows() {
  const { table, results } = view;
  for (const row of table.rows) {
    row.file = fileOf(row.image, view.images);
    if (!results.has(row.row)) results.set(row.row, { file: row.file, caption: row.caption });
    row.explained = results.get(row.row);
    row.explained.file = row.file;
  }
  const explained = table.rows.map((row) => row.explained).filter(({ file, caption }) => file && caption);
  explainAll(explained, () => view.table === table);
}

// Images that are scored in the page --------------------------------------------------------------------

const stem = (name) => name.replace(/\.[^.]*$/, "");

// Captions of images: a text file of the same name, or lines of "image,caption" (.csv, .tsv) or JSON (.jsonl).
async function captionsIn(files) {
  const captions = new Map();
  const put = (name, text) => {
    const key = parts(name).at(-1);
    if (!key || !text?.trim()) return;
    captions.set(key, [...(captions.get(key) ?? []), text.trim()]);
  };
  for (const file of files) {
    const end = file.name.split(".").at(-1).toLowerCase();
    if (!["txt", "csv", "tsv", "jsonl", "ndjson"].includes(end)) continue;
    const lines = (await file.text()).split(/\r?\n/).filter((line) => line.trim());
    if (end === "txt") lines.forEach((line) => put(stem(file.name), line));
    else if (end.endsWith("json") || end === "jsonl") lines.forEach((line) => fromJson(line, put));
    else lines.forEach((line) => put(...fromCells(line, end === "tsv" ? "\t" : ",")));
  }
  return captions;
}

function fromJson(line, put) {
  try {
    const { image, caption, captions = [caption] } = JSON.parse(line);
    for (const text of captions) put(image?.path ?? image, text);
  } catch {
    // A line that is not JSON has no caption.
  }
}

function fromCells(line, sign) {
  const at = line.indexOf(sign);
  const text = at < 0 ? "" : line.slice(at + 1).trim();
  return [line.slice(0, Math.max(at, 0)), text.startsWith('"') ? text.slice(1, -1).replaceAll('""', '"') : text];
}

export async function openImages(files) {
  const captions = await captionsIn(files);
  const rows = files.filter(images.isImage).flatMap((file) => {
    const own = captions.get(file.name) ?? captions.get(stem(file.name)) ?? [""];
    return own.map((caption) => ({ file, caption }));
  });
  if (rows.length) scoreHere(rows);
  else change({ note: "There is no image among these files.", wrong: true });
}

function scoreHere(rows) {
  rows.forEach((row, number) => (row.row = number));
  change({ scored: rows, table: null, file: null, note: "", wrong: false, start: 0, ...ALL });
  scoreAll();
}

async function openExamples() {
  const loaded = await Promise.all(
    state.samples.map(async ({ file, captions }) => {
      const bytes = await service.sample(file);
      return captions.map((caption) => [new File([bytes], file, { type: bytes.type }), caption]);
    }),
  ).catch((error) => change({ note: error.message, wrong: true }));
  if (loaded) scoreHere(loaded.flat().map(([file, caption]) => ({ file, caption })));
}

const scoreAll = () => {
  const rows = view.scored;
  return explainAll(rows, () => view.scored === rows);
};

// Every image is prepared and uploaded once, however many captions it has.
const prepared = new WeakMap();
async function imageOf(file) {
  if (!prepared.has(file)) {
    const { sent } = await images.prepare(file, state.look.limits);
    prepared.set(file, { file, sent, id: null });
  }
  return prepared.get(file);
}

// A few workers explain one row at a time while they are needed; rows that changed meanwhile are explained again.
async function explainAll(rows, wanted) {
  const due = () => rows.find((row) => row.caption.trim() && row.at !== row.caption && !row.busy);
  const work = async () => {
    for (let row = due(); row && wanted(); row = due()) {
      const { caption } = row;
      row.busy = true;
      try {
        const [item] = await service.explain(await imageOf(row.file), [caption]);
        row.result = item.explanations[0];
        row.problem = item.error ?? item.errors[0];
      } catch (error) {
        row.result = null;
        row.problem = error.message;
        if (error.status === 401) state.needsToken = true;
      }
      row.busy = false;
      row.at = caption;
      changed();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

const COLUMNS = ["image", "caption", "match", "reading", "msd", "similarity", "warnings", "error"];

function cells(row) {
  const { score = {}, warnings = [], readable } = row.result ?? {};
  const known = readable === false ? {} : score;
  const { match = "", reading = "", msd = "", similarity = "" } = known;
  return [row.file.name, row.caption, match, reading, msd, similarity, warnings.join("; "), row.problem ?? ""];
}

// Cells that a spreadsheet would evaluate as formulas are written as text.
const safe = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value));
const csvCell = (value) => (/[",\n\r]/.test(safe(value)) ? `"${safe(value).replaceAll('"', '""')}"` : safe(value));

function saveCsv() {
  const lines = [COLUMNS, ...view.scored.map(cells)].map((line) => line.map(csvCell).join(","));
  save("scores.csv", `${lines.join("\r\n")}\r\n`, "text/csv");
}

async function copyTable() {
  const lines = [COLUMNS, ...view.scored.map(cells)];
  const text = lines.map((line) => line.map((value) => safe(value).replace(/[\t\r\n]/g, " ")).join("\t")).join("\n");
  try {
    await navigator.clipboard.writeText(text);
    change({ note: "Copied: paste it into a spreadsheet.", wrong: false });
  } catch {
    change({ note: "This browser does not allow copying here; save the CSV instead.", wrong: true });
  }
}

// The view ---------------------------------------------------------------------------------------

export function FileView({ hidden }) {
  const { table, scored, note, wrong } = view;
  return html`<section id="scored" hidden=${hidden} aria-label="Many images">
    ${!table && !scored && html`<${Invitation} />`}
    <p id="rows-note" role="status" class=${wrong ? "note" : "small"}>${note}</p>
    ${table && html`<${ScoredFile} table=${table} />`} ${scored && html`<${ScoredHere} rows=${scored} />`}
    ${
      (table || scored) &&
      html`<p class="tools">
        <button type="button" class="small" onClick=${() => change({ table: null, scored: null, note: "" })}>
          Open something else
        </button>
      </p>`
    }
  </section>`;
}

function Invitation() {
  return html`<div id="invite">
    <p><b>Drop files here</b>: images to score, or a file that <code>msdscore score</code> wrote.</p>
    <p class="tools">
      <label class="pick">
        Choose images
        <input
          id="many-images"
          type="file"
          multiple
          accept="image/*,.heic,.heif,.txt,.csv,.tsv,.jsonl"
          onChange=${(event) => openImages([...event.target.files])}
        />
      </label>
      <label class="pick">
        Choose a folder
        <input
          id="many-folder"
          type="file"
          webkitdirectory
          multiple
          onChange=${(event) => openImages([...event.target.files])}
        />
      </label>
      <label class="pick">
        Choose a scored file
        <input
          id="rows-file"
          type="file"
          accept=".parquet,.jsonl,.ndjson,.json,.csv,.tsv"
          onChange=${(event) => openRows(event.target.files[0])}
        />
      </label>
      <button type="button" id="try-examples" onClick=${openExamples}>Try the examples</button>
    </p>
    <p class="small">
      Captions are read from text files of the same name (dog.jpg, dog.txt), or from lines “image,caption” (.csv, .tsv)
      or JSON (.jsonl) among the files; or write them here.
    </p>
  </div>`;
}

// Numbers of good, doubtful and poor captions; each tile is a filter.
function Tiles({ counts, onPick, picked }) {
  const total = Math.max(
    1,
    Object.values(counts).reduce((sum, count) => sum + count, 0),
  );
  return html`<div class="tiles">
    ${Object.entries(counts).map(
      ([reading, count]) =>
        html`<button
          type="button"
          key=${reading}
          class=${`tile ${reading}`}
          aria-pressed=${String(picked === reading)}
          onClick=${() => onPick(reading)}
        >
          <b>${count}</b> ${reading} <small>${percent(count / total)}</small>
        </button>`,
    )}
  </div>`;
}

function ScoredFile({ table }) {
  const picked = Object.keys(READINGS).find(
    (name) => view.by === "match" && view.low === String(READINGS[name][0]) && view.high === String(READINGS[name][1]),
  );
  const pick = (reading) => {
    const [low, high] = picked === reading ? ["", ""] : READINGS[reading].map(String);
    read({ by: "match", low, high });
  };
  return html`<p class="tools">
      <b id="file-name">${view.file.name}</b>
      <label class="pick">
        Show images from a folder
        <input
          id="rows-images"
          type="file"
          webkitdirectory
          multiple
          onChange=${(event) => {
            change({ images: indexed(event.target.files) });
            colourRows();
          }}
        />
      </label>
      <span class="small">Visible images are sent to the service to colour the words.</span>
    </p>
    ${table.readings && html`<${Tiles} counts=${table.readings} picked=${picked} onPick=${pick} />`}
    <${Filters} table=${table} />
    <ol id="rows" aria-label="Worst rows first">
      ${table.rows.map((row) => html`<${Row} key=${row.row} row=${row} ...${shownRow(row, table.by)} />`)}
    </ol>
    <${Pages} table=${table} />`;
}

const shownNumber = (name, value) => (name === "match" ? percent(value) : signed(value));
const readingOf = (match) =>
  match == null ? "none" : Object.keys(READINGS).find((name) => match >= READINGS[name][0]);

function Pages({ table }) {
  const { start } = view;
  const failed = table.failed ? `, ${table.failed} without a score` : "";
  const shown = table.rows.length
    ? `${start + 1} to ${start + table.rows.length} of ${table.matching} (${table.total} rows${failed})`
    : `none of ${table.total} rows`;
  const button = (id, text, to) => {
    const off = to < 0 || to >= table.matching;
    return html`<button type="button" id=${id} disabled=${off} onClick=${() => read({ start: to })}>${text}</button>`;
  };
  return html`<p class="tools">
    ${button("rows-back", "Back", start - PAGE)} <output id="rows-place">${shown}</output>
    ${button("rows-on", "Next", start + PAGE)}
  </p>`;
}

function Filters({ table }) {
  const { edges, counts } = table.histogram;
  const most = Math.max(...counts, 1);
  const bar = (count, number) => {
    const [low, high] = [String(edges[number]), String(edges[number + 1])];
    const ends = [edges[number], edges[number + 1]].map((edge) => shownNumber(table.by, edge));
    const label = `${table.by} ${ends.join(" to ")}: ${count} rows`;
    const on = view.low === low && view.high === high;
    const kind = table.by === "match" ? readingOf((edges[number] + edges[number + 1]) / 2) : "none";
    const filter = () => read(on ? { low: "", high: "" } : { by: table.by, low, high });
    return html`<button
      type="button"
      key=${number}
      class=${kind}
      title=${label}
      aria-label=${label}
      aria-pressed=${String(on)}
      onClick=${filter}
    >
      <i style=${{ height: `${(100 * count) / most}%` }}></i>
    </button>`;
  };
  const order = (event) => read({ by: event.target.value, low: "", high: "" });
  const end = (edge) => shownNumber(table.by, edge);
  return html`<div id="filters">
    <div id="histogram" role="group" aria-label=${`Histogram of ${table.by}`}>${counts.map(bar)}</div>
    <p id="edges" aria-hidden="true"><span>${end(edges[0])}</span>${table.by}<span>${end(edges.at(-1))}</span></p>
    <p class="tools">
      <label>
        worst by
        <select id="rows-by" value=${table.by} onChange=${order}>
          ${table.columns.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <label>
        captions containing
        <input id="rows-contains" value=${view.contains} onInput=${(event) => read({ contains: event.target.value })} />
      </label>
      ${
        (view.low || view.contains) &&
        html`<button type="button" class="small" onClick=${() => read(ALL)}>All rows</button>`
      }
    </p>
  </div>`;
}

const openCard = async (file, caption) => {
  await store.open(file, { captions: [caption ?? ""] });
  scrollTo(0, 0);
};

// A row of a file: the number that the view is sorted by, and the match if it is sorted by another number.
function shownRow(row, by) {
  const { result, problem } = row.explained ?? {};
  const { match } = row;
  const kind = readingOf(match);
  const value = row[by] === undefined ? "no score" : shownNumber(by, row[by]);
  const verdict = by === "match" ? `${kind} match` : by;
  const other = by !== "match" && match != null ? `${percent(match)} match` : "";
  return { number: value, verdict, other, kind, result, notes: [row.error, problem, ...row.warnings] };
}

// A row that is scored in the page, with the headline of a card.
function shownHere(row) {
  const current = row.result && row.at === row.caption;
  const shown = current ? store.headline(row) : { number: "", verdict: "", kind: "none" };
  const notes = [row.problem, ...(row.result?.warnings ?? [])];
  return { ...shown, number: row.busy ? "…" : shown.number, result: current && row.result, notes, editable: !current };
}

// One row: image, caption with coloured words, number.
function Row({ row, number, verdict, other, kind, result, notes, editable }) {
  const { caption, file } = row;
  const edit = (event) => {
    row.caption = event.target.value;
    changed();
  };
  return html`<li class="card">
    ${file && html`<${Thumbnail} file=${file} />`}
    <div class="body">
      ${
        editable
          ? html`<input
            class="describe"
            value=${caption}
            placeholder=${`Describe ${file.name}`}
            aria-label=${`Caption of ${file.name}`}
            onInput=${edit}
            onChange=${scoreAll}
          />`
          : html`<p dir="auto" class="said">${result ? coloured({ caption, result }) : caption}</p>`
      }
      <small>row ${row.row} ${(row.image ?? file?.name) && `· ${row.image ?? file.name}`}</small>
      ${notes.filter(Boolean).map((note) => html`<p class="note">${note}</p>`)}
    </div>
    <div class=${`match ${kind}`}>
      <b>${number}</b><small>${verdict}</small>${other && html`<small>${other}</small>`}
    </div>
    ${
      file &&
      html`<button
        type="button"
        class="small"
        aria-label=${`Open row ${row.row}`}
        onClick=${() => openCard(file, caption)}
      >
        Open
      </button>`
    }
  </li>`;
}

function ScoredHere({ rows }) {
  const known = rows.filter((row) => row.result && row.result.readable !== false);
  const matches = known.filter((row) => row.result.score.match != null);
  const counts = { good: 0, doubtful: 0, poor: 0 };
  for (const row of matches) counts[row.result.score.reading]++;
  const [picked, setPicked] = useState(null);
  const shown = picked ? matches.filter((row) => row.result.score.reading === picked) : rows;
  const waiting = rows.filter((row) => row.caption.trim() && row.at !== row.caption).length;
  const pick = (reading) => setPicked(picked === reading ? null : reading);
  return html`${matches.length > 0 && html`<${Tiles} counts=${counts} picked=${picked} onPick=${pick} />`}
    <p class="tools">
      <output id="here-place">${rows.length - waiting} of ${rows.length} captions scored</output>
      <button type="button" id="save-csv" disabled=${!known.length} onClick=${saveCsv}>Save as CSV</button>
      <button type="button" id="copy-table" disabled=${!known.length} onClick=${copyTable}>Copy table</button>
    </p>
    <ol id="here" aria-label="Images and captions">
      ${shown.map((row) => html`<${Row} key=${row.row} row=${row} ...${shownHere(row)} />`)}
    </ol>`;
}

function Thumbnail({ file }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return url && html`<img src=${url} alt="" />`;
}
