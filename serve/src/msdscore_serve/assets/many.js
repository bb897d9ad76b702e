// The view of many images: a start, tiles, histogram, filters, a list of rows that can be edited.
import { html, useEffect, useState } from "./preact.js";
import * as store from "./store.js";
import * as rows from "./rows.js";
import { Thumbnail } from "./image.js";
import { coloured } from "./words.js";
import { Review } from "./review.js";
import { Captioners, captioners } from "./captioners.js";

const { percent, state } = store;
const { view, change, PAGE } = rows;
const BINS = 15;

export function FileView({ hidden }) {
  const { note, wrong } = view;
  return html`<section id="scored" hidden=${hidden} aria-label="Many images">
    ${!view.rows && html`<${Invitation} />`}
    <p id="rows-note" role="status" class=${wrong ? "note" : "small"}>${note}</p>
    ${view.rows && html`<${Opened} />`}
  </section>`;
}

function Picker({ id, text, accept, folder, onPick }) {
  return html`<label class="pick">
    ${text}
    <input
      id=${id}
      type="file"
      multiple
      webkitdirectory=${folder || undefined}
      accept=${accept}
      onChange=${(event) => {
        onPick([...event.target.files]);
        event.target.value = "";
      }}
    />
  </label>`;
}

const TABLES = ".csv,.tsv,.jsonl,.ndjson,.json,.parquet";

function Invitation() {
  return html`<div id="invite">
      <h2>Which captions of many need a second look?</h2>
      <p>Drop images, a folder, or a file with captions or scores anywhere on this page.</p>
      <p class="tools">
        <${Picker}
          id="many-images"
          text="Choose files"
          accept=${`image/*,.heic,.heif,.txt,${TABLES}`}
          onPick=${rows.openFiles}
        />
        <${Picker} id="many-folder" text="Choose a folder" folder onPick=${rows.openFiles} />
        <button type="button" id="try-examples" class="primary" onClick=${rows.openExamples}>Try the examples</button>
      </p>
    </div>
    <div id="ways">
      <section>
        <h3>1. Bring captions</h3>
        <p>Beside the images, as <code>dog.txt</code>, or in one file:</p>
        <pre>
image,caption
dog.jpg,a dog on a beach
cat.jpg,"a cat, asleep"</pre
        >
        <p class="small">
          CSV, TSV, JSON lines, Parquet. Or write them here. Outputs of <code>msdscore score</code>${" "}
          open too, without images.
        </p>
      </section>
      <section>
        <h3>2. See the worst first</h3>
        <p>Every caption is scored by the service. Sort, search, filter by verdict, and edit in place.</p>
        <div class="sketch" aria-hidden="true">
          <i class="off-topic"></i><i class="unsure"></i><i class="on-topic"></i><i class="on-topic"></i>
        </div>
      </section>
      <section>
        <h3>3. Decide</h3>
        <p>
          <b>Review</b> goes through them with one key each: <kbd>A</kbd> accept, <kbd>E</kbd> edit, <kbd>S</kbd>${" "}
          skip. Save the
          corrected captions as CSV.
        </p>
        <p>With a column <code>system</code>, two captioners are <b>compared</b>.</p>
      </section>
    </div>`;
}

function Opened() {
  const count = view.rows.length;
  const waiting = view.rows.filter(rows.isWaiting).length;
  const scored = view.rows.filter((row) => Object.keys(row.numbers).length).length;
  const counts = Object.fromEntries(state.look.verdicts.map(([, name]) => [name, 0]));
  for (const row of view.rows) {
    const verdict = rows.verdictOf(row);
    if (verdict) counts[verdict] = (counts[verdict] ?? 0) + 1;
  }
  const judged = Object.values(counts).some(Boolean);
  const withheld = view.rows.filter((row) => row.numbers.match !== undefined && !rows.verdictOf(row)).length;
  const pick = (verdict) => change({ verdict: view.verdict === verdict ? null : verdict, start: 0 });
  const mode = (name, id, text) =>
    html`<button
      type="button"
      id=${id}
      aria-pressed=${String(view.mode === name)}
      onClick=${() => change({ mode: view.mode === name ? "list" : name })}
    >
      ${text}
    </button>`;
  return html`<p class="tools bar">
      <b id="file-name">${view.name}</b>
      <output id="here-place">
        ${waiting ? `${count - waiting} of ${count} captions scored` : `${count} rows, ${scored} scored`}${
          withheld ? `, ${withheld} without a verdict` : ""
        }
      </output>
      <span class="right">
        ${mode("review", "to-review", "Review")}
        ${captioners().length > 1 && mode("captioners", "to-captioners", "Compare captioners")}
        <button type="button" id="save-csv" disabled=${!scored} onClick=${rows.saveCsv}>Save as CSV</button>
        <button type="button" id="copy-table" disabled=${!scored} onClick=${rows.copyTable}>Copy table</button>
        <${Picker}
          id="rows-images"
          text="Add images"
          folder
          onPick=${(files) => rows.openFiles(files, { keep: view.rows })}
        />
        <button type="button" id="close-rows" onClick=${rows.closeRows}>Close</button>
      </span>
    </p>
    ${judged && html`<${Tiles} counts=${counts} picked=${view.verdict} onPick=${pick} />`}
    ${view.mode === "review" && html`<${Review} />`} ${view.mode === "captioners" && html`<${Captioners} />`}
    ${view.mode === "list" && html`<${List} />`}`;
}

// Numbers of captions by verdict; each tile is a filter.
function Tiles({ counts, onPick, picked }) {
  const total = Math.max(1, Object.values(counts).reduce((sum, count) => sum + count, 0)); // prettier-ignore
  return html`<div class="tiles">
    ${Object.entries(counts).map(
      ([verdict, count]) =>
        html`<button
          type="button"
          key=${verdict}
          class=${`tile ${store.kindOf(verdict)}`}
          aria-pressed=${String(picked === verdict)}
          onClick=${() => onPick(verdict)}
        >
          <b>${count}</b> ${verdict} <small>${percent(count / total)}</small>
        </button>`,
    )}
  </div>`;
}

function List() {
  const by = view.by === "file" ? null : rows.defaultBy();
  const all = rows.selected(by);
  const start = view.start < all.length ? view.start : 0;
  const page = all.slice(start, start + PAGE);
  useEffect(() => rows.showRows(page));
  return html`<${Filters} by=${by} />
    <ol id="rows" aria-label="Rows">
      ${page.map((row) => html`<${Row} key=${row.row} row=${row} by=${by ?? rows.defaultBy()} />`)}
    </ol>
    <${Pages} start=${start} count=${page.length} matching=${all.length} />`;
}

function Pages({ start, count, matching }) {
  const shown = count ? `${start + 1} to ${start + count} of ${matching}` : `none of ${view.rows.length} rows`;
  const button = (id, text, to) =>
    html`<button
      type="button"
      id=${id}
      disabled=${to < 0 || to >= matching}
      onClick=${() => change({ start: to })}
    >${text}</button>`;
  const several = matching > PAGE;
  return html`<p class="tools">
    ${several && button("rows-back", "Back", start - PAGE)} <output id="rows-place">${shown}</output>
    ${several && button("rows-on", "Next", start + PAGE)}
  </p>`;
}

// Edges and counts of a histogram; a probability is shown over its full range, and equal values get a bin.
export function histogram(values, by) {
  let [low, high] = by === "match" ? [0, 1] : [Math.min(...values), Math.max(...values)];
  if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
  const wide = (high - low) / BINS;
  const counts = Array(BINS).fill(0);
  for (const value of values) counts[Math.min(BINS - 1, Math.max(0, Math.floor((value - low) / wide)))]++;
  return { edges: Array.from({ length: BINS + 1 }, (_, number) => low + number * wide), counts };
}

function Filters({ by }) {
  const values = by ? view.rows.map((row) => row.numbers[by]).filter((value) => value !== undefined) : [];
  const names = rows.numberNames();
  const filtered = view.low !== null || view.contains || view.verdict;
  return html`<div id="filters">
    ${values.length > 1 && html`<${Histogram} by=${by} ...${histogram(values, by)} />`}
    <p class="tools">
      <label>
        Sort by
        <select
          id="rows-by"
          value=${by ?? "file"}
          onChange=${(event) => change({ by: event.target.value, ...rows.ALL, contains: view.contains })}
        >
          ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          <option value="file">order of the file</option>
        </select>
      </label>
      ${
        by &&
        html`<button type="button" id="rows-turn" onClick=${() => change({ reversed: !view.reversed, start: 0 })}>
          ${view.reversed ? "best first" : "worst first"}
        </button>`
      }
      <label>
        Search <input
          id="rows-contains"
          type="search"
          value=${view.contains}
          onInput=${(event) => change({ contains: event.target.value, start: 0 })}
        />
      </label>
      ${
        filtered &&
        html`<button
        type="button"
        class="small"
        id="all-rows"
        onClick=${() => change(rows.ALL)}
      >All rows</button>`
      }
    </p>
  </div>`;
}

function Histogram({ by, edges, counts }) {
  const most = Math.max(...counts, 1);
  const bar = (count, number) => {
    const [low, high] = [edges[number], edges[number + 1]];
    const label = `${by} ${rows.shownNumber(by, low)} to ${rows.shownNumber(by, high)}: ${count} rows`;
    const on = view.low === low;
    const found = state.look.verdicts.find(([least]) => (low + high) / 2 >= least)?.[1];
    const kind = by === "match" ? store.kindOf(found) : "none";
    const filter = () => change(on ? { low: null, high: null, start: 0 } : { low, high, start: 0 });
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
  return html`<div id="histogram" role="group" aria-label=${`Histogram of ${by}`}>${counts.map(bar)}</div>
    <p id="edges" aria-hidden="true">
      <span>${rows.shownNumber(by, edges[0])}</span>${by}<span>${rows.shownNumber(by, edges.at(-1))}</span>
    </p>`;
}

const openCard = async (row) => {
  await store.open(row.file, { captions: [row.caption] });
  scrollTo(0, 0);
};

// One row: image, caption with coloured words, number; a click on the caption edits it.
function Row({ row, by }) {
  const [editing, setEditing] = useState(false);
  const { number, text, kind, other } = rows.headlineOf(row, by);
  const notes = [row.error, row.problem, ...row.warnings].filter(Boolean);
  const about = [row.image || row.file?.name, row.system, row.decision, rows.isEdited(row) && row.original && "edited"];
  const done = (event) => {
    setEditing(false);
    rows.setCaption(row, event.target.value);
  };
  return html`<li class="card" data-row=${row.row}>
    ${row.file && html`<${Thumbnail} file=${row.file} />`}
    <div class="body">
      ${
        editing || !row.caption
          ? html`<${Describe} row=${row} onDone=${done} focus=${editing} />`
          : html`<p dir="auto" class="said">${row.result ? coloured(row) : row.caption}</p>`
      }
      <small>${about.filter(Boolean).join(" · ")}</small>
      ${notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}
    </div>
    <div class=${`match ${kind}`}>
      <b>${number}</b><small>${text}</small>${other && html`<small>${other}</small>`}
    </div>
    <div class="row-tools">
      ${
        row.caption &&
        html`<button
        type="button"
        class="small edit"
        aria-label=${`Edit row ${row.row + 1}`}
        onClick=${() => setEditing(!editing)}
      >Edit</button>`
      }
      ${
        row.file &&
        html`<button
        type="button"
        class="small open"
        aria-label=${`Open row ${row.row + 1}`}
        onClick=${() => openCard(row)}
      >Open</button>`
      }
    </div>
  </li>`;
}

function Describe({ row, onDone, focus }) {
  const press = (event) => {
    if (event.key === "Enter" && !event.isComposing) event.target.blur();
  };
  const name = row.image || row.file?.name || `row ${row.row + 1}`;
  return html`<input
    class="describe"
    ref=${(field) => focus && field?.focus()}
    value=${row.caption}
    placeholder=${`Describe ${name}`}
    aria-label=${`Caption of ${name}`}
    onKeyDown=${press}
    onBlur=${onDone}
  />`;
}
