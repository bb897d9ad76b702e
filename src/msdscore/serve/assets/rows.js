// A scored file: its histogram, filters and worst rows, a page at a time; a row opens as a card.
import { html, useEffect, useState } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";

const { changed, signed } = store;
const PAGE = 20;
const ALL = { low: "", high: "", contains: "" };

const parts = (path) =>
  String(path ?? "")
    .split(/[\\/]/)
    .filter((part) => part && part !== ".");

// Files by their bare names, so that a row looks at few of them.
export function indexed(files) {
  const index = new Map();
  for (const file of files) {
    const own = parts(file.webkitRelativePath || file.name);
    if (!index.has(own.at(-1))) index.set(own.at(-1), []);
    index.get(own.at(-1)).push({ own, file });
  }
  return index;
}

// The file of a row's image: its path must end as the row's does, by more than the bare name where there are folders.
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
  file: null,
  name: null,
  table: null,
  images: new Map(),
  start: 0,
  by: "",
  ...ALL,
  note: "",
  wrong: false,
};
let asked = 0;

function change(values) {
  Object.assign(view, values);
  changed();
}

// The file is sent once; later questions name it. A slow answer never overwrites a newer one.
async function read(values) {
  change({ start: 0, ...values });
  const number = ++asked;
  change({ note: view.name ? "" : `Reading ${view.file.name}…`, wrong: false });
  const { by, start, low, high, contains } = view;
  try {
    const table = await service.rows(view, { by, start, low, high, contains, count: PAGE });
    if (number === asked) change({ table, name: table.file, note: "" });
  } catch (error) {
    if (number === asked) change({ note: `${view.file.name}: ${error.message}`, wrong: true });
  }
}

export function openRows(file) {
  if (file) read({ file, name: null, table: null, by: "", ...ALL });
}

export function ScoredFile({ hidden }) {
  const { table, note, wrong } = view;
  return html`<section id="scored" hidden=${hidden} aria-label="A scored file">
    <p>
      Open a file that <code>msdscore score</code> wrote (.parquet, .jsonl, .json, .csv or .tsv) and, to see them, the
      folder of the images. The images stay in the browser until you open one.
    </p>
    <p class="tools">
      <label>
        Scores
        <input
          id="rows-file"
          type="file"
          accept=".parquet,.jsonl,.ndjson,.json,.csv,.tsv"
          onChange=${(event) => openRows(event.target.files[0])}
        />
      </label>
      <label>
        Images
        <input
          id="rows-images"
          type="file"
          webkitdirectory
          multiple
          onChange=${(event) => change({ images: indexed(event.target.files) })}
        />
      </label>
    </p>
    <p id="rows-note" role="status" class=${wrong ? "note" : "small"}>${note}</p>
    ${table && html`<${Filters} table=${table} />`}
    <ol id="rows" aria-label="Worst rows first">
      ${table?.rows.map((row) => html`<${Row} key=${row.row} row=${row} by=${table.by} />`)}
    </ol>
    ${table && html`<${Pages} table=${table} />`}
  </section>`;
}

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
    const label = `${table.by} ${signed(edges[number])} to ${signed(edges[number + 1])}: ${count} rows`;
    const on = view.low === low && view.high === high;
    const filter = () => read(on ? { low: "", high: "" } : { by: table.by, low, high });
    return html`<button
      type="button"
      key=${number}
      title=${label}
      aria-label=${label}
      aria-pressed=${String(on)}
      onClick=${filter}
    >
      <i style=${{ height: `${(100 * count) / most}%` }}></i>
    </button>`;
  };
  const order = (event) => read({ by: event.target.value, low: "", high: "" });
  return html`<div id="filters">
    <div id="histogram" role="group" aria-label=${`Histogram of ${table.by}`}>${counts.map(bar)}</div>
    <p id="edges" aria-hidden="true"><span>${signed(edges[0])}</span>${table.by}<span>${signed(edges.at(-1))}</span></p>
    <p class="tools">
      <label>
        worst by
        <select id="rows-by" value=${table.by} onChange=${order}>
          ${table.columns.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <label>
        captions with
        <input id="rows-contains" value=${view.contains} onInput=${(event) => read({ contains: event.target.value })} />
      </label>
      ${
        (view.low || view.contains) &&
        html`<button type="button" class="small" onClick=${() => read(ALL)}>All rows</button>`
      }
    </p>
  </div>`;
}

function Row({ row, by }) {
  const file = fileOf(row.image, view.images);
  const show = async () => {
    await store.open(file, { captions: [row.caption ?? ""] });
    scrollTo(0, 0);
  };
  return html`<li class="card">
    ${file && html`<${Thumbnail} file=${file} />`}
    <div>
      <b>${row[by] === undefined ? "no score" : `${by} ${signed(row[by])}`}</b>
      <small> row ${row.row + 1}${row.image ? ` · ${row.image}` : ""}</small>
      <p dir="auto">${row.caption ?? ""}</p>
      ${[row.error, row.warnings].filter(Boolean).map((note) => html`<p class="note">${note}</p>`)}
    </div>
    ${
      file &&
      html`<button type="button" class="small" aria-label=${`Open row ${row.row + 1}`} onClick=${show}>Open</button>`
    }
  </li>`;
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
