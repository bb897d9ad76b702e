// A scored file: its histogram, its worst rows, ten at a time, with filters; a row opens as a card.
import { html, useState } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";

const { say, signed } = store;
const PAGE = 10;

const parts = (path) => String(path ?? "").split(/[\\/]/).filter((part) => part && part !== ".");

// The file of a row's image: its path must end as the row's does, by more than the bare name where there are folders.
export function fileOf(image, files) {
  const wanted = parts(image);
  let best = { length: 0, files: [] };
  for (const file of files) {
    const own = parts(file.webkitRelativePath || file.name);
    let length = 0;
    while (length < Math.min(own.length, wanted.length) && own.at(-1 - length) === wanted.at(-1 - length)) length++;
    const enough = length > 0 && (length === wanted.length || length === own.length || length > 1);
    if (!enough || (own.length === 1 && wanted.length > 1)) continue;
    if (length > best.length) best = { length, files: [file] };
    else if (length === best.length) best.files.push(file);
  }
  return best.files.length === 1 ? best.files[0] : null;
}

export function ScoredFile() {
  const [view, setView] = useState({ file: null, table: null, files: [], at: 0, by: "", contains: "", low: "", high: "" });
  const change = (some) => setView((old) => ({ ...old, ...some }));
  const read = async (some) => {
    const asked = { ...view, ...some, at: 0 };
    change(asked);
    if (!asked.file) return;
    say(`Reading ${asked.file.name}…`);
    try {
      const { by, contains, low, high } = asked;
      change({ table: await service.rows(asked.file, { by, contains, low, high }), at: 0 });
      say("");
    } catch (error) {
      say(`${asked.file.name}: ${error.message}`, true);
    }
  };
  const { table, at } = view;
  return html`<details id="scored">
    <summary>Look through a scored file</summary>
    <p>
      Open a file that <code>msdscore score</code> wrote (.parquet, .jsonl, .json, .csv or .tsv) and, to see them, the folder of the
      images. The images stay in the browser until you open one.
    </p>
    <p class="tools">
      <label>Scores <input id="rows-file" type="file" accept=".parquet,.jsonl,.ndjson,.json,.csv,.tsv"
        onChange=${(event) => read({ file: event.target.files[0], by: "", low: "", high: "" })} /></label>
      <label>Images <input id="rows-images" type="file" webkitdirectory multiple onChange=${(event) => change({ files: [...event.target.files] })} /></label>
    </p>
    ${table && html`<${Filters} view=${view} read=${read} />`}
    <ol id="rows" aria-label="Worst rows first">
      ${table?.rows.slice(at, at + PAGE).map((row) => html`<${Row} key=${row.row} row=${row} by=${table.by} files=${view.files} />`)}
    </ol>
    ${table &&
    html`<p class="tools">
      <button type="button" id="rows-back" disabled=${at === 0} onClick=${() => change({ at: Math.max(0, at - PAGE) })}>Back</button>
      <output id="rows-place">${place(table, at)}</output>
      <button type="button" id="rows-on" disabled=${at + PAGE >= table.rows.length} onClick=${() => change({ at: at + PAGE })}>Next</button>
    </p>`}
  </details>`;
}

function place(table, at) {
  const last = Math.min(at + PAGE, table.rows.length);
  const failed = table.failed ? `, ${table.failed} without a score` : "";
  return table.rows.length ? `${at + 1} to ${last} of ${table.matching} (${table.total} rows${failed})` : `none of ${table.total} rows`;
}

function Filters({ view, read }) {
  const { table } = view;
  const { edges, counts } = table.histogram;
  const most = Math.max(...counts, 1);
  const range = (number) => ({ by: table.by, low: String(edges[number]), high: String(edges[number + 1]) });
  return html`<div id="filters">
    <div id="histogram" role="group" aria-label=${`Histogram of ${table.by}`}>
      ${counts.map((count, number) => {
        const label = `${table.by} ${signed(edges[number])} to ${signed(edges[number + 1])}: ${count} rows`;
        const on = view.low === String(edges[number]) && view.high === String(edges[number + 1]);
        return html`<button type="button" key=${number} title=${label} aria-label=${label} aria-pressed=${String(on)}
          onClick=${() => read(on ? { low: "", high: "" } : range(number))}><i style=${{ height: `${(100 * count) / most}%` }}></i></button>`;
      })}
    </div>
    <p class="tools">
      <label>worst by
        <select id="rows-by" value=${table.by} onChange=${(event) => read({ by: event.target.value, low: "", high: "" })}>
          ${table.columns.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <label>captions with <input id="rows-contains" value=${view.contains} onChange=${(event) => read({ contains: event.target.value })} /></label>
      ${(view.low || view.contains) && html`<button type="button" class="small" onClick=${() => read({ low: "", high: "", contains: "" })}>All rows</button>`}
    </p>
  </div>`;
}

function Row({ row, by, files }) {
  const file = fileOf(row.image, files);
  const value = row[by];
  const show = async () => {
    await store.open(file, { captions: [row.caption ?? ""] });
    scrollTo(0, 0);
  };
  return html`<li class="card">
    ${file && html`<${Thumbnail} file=${file} />`}
    <div>
      <b>${value === undefined ? "no score" : `${by} ${signed(value)}`}</b><small> row ${row.row + 1}${row.image ? ` · ${row.image}` : ""}</small>
      <p dir="auto">${row.caption ?? ""}</p>
      ${[row.error, row.warnings].filter(Boolean).map((note) => html`<p class="note">${note}</p>`)}
      ${file && html`<button type="button" class="small" aria-label=${`Open row ${row.row + 1}`} onClick=${show}>Open</button>`}
    </div>
  </li>`;
}

function Thumbnail({ file }) {
  const [url] = useState(() => URL.createObjectURL(file));
  return html`<img src=${url} alt="" />`;
}
