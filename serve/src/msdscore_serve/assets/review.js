// A queue of rows, worst first, each decided with one key: accept, edit or skip.
import { html, useEffect, useState } from "./preact.js";
import * as rows from "./rows.js";
import { changed } from "./store.js";
import { Thumbnail } from "./image.js";
import { coloured } from "./words.js";

const DECISIONS = { accepted: "A", fixed: "E", skipped: "S" };

// The order is fixed when the review starts: a corrected row must not move while it is on the screen.
export function Review() {
  const by = rows.defaultBy();
  const [queue] = useState(() => rows.selected(by).filter((row) => row.caption));
  const next = (from) => queue.findIndex((row, number) => number >= from && !row.decision);
  const [at, setAt] = useState(() => Math.max(0, next(0)));
  const [editing, setEditing] = useState(false);
  const row = queue[at];
  const decide = (decision) => {
    if (!row) return;
    row.decision = decision === "accepted" && rows.isEdited(row) ? "fixed" : decision;
    rows.rememberRows();
    setEditing(false);
    const following = next(at + 1);
    setAt(following < 0 ? queue.length : following);
    changed();
  };
  const back = () => {
    setEditing(false);
    setAt(Math.max(0, at - 1));
  };
  const press = (event) => {
    if (event.target.matches?.("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      a: () => decide("accepted"),
      s: () => decide("skipped"),
      e: () => setEditing(true),
      b: back,
      arrowleft: back,
    }[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  };
  useEffect(() => {
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  useEffect(() => rows.showRows(queue.slice(at, at + 2)));
  const counts = Object.keys(DECISIONS).map((name) => [name, queue.filter((each) => each.decision === name).length]);
  const done = counts.reduce((sum, [, count]) => sum + count, 0);
  const progress = html`<p class="tools" id="review-place">
    <progress max=${queue.length} value=${done} aria-label="Reviewed"></progress>
    ${done} of ${queue.length} reviewed${counts.map(([name, count]) => (count ? `, ${count} ${name}` : "")).join("")}
  </p>`;
  if (!row)
    return html`${progress}
      <div id="review" class="card">
        <p>
          ${queue.length ? "All rows are reviewed." : "There is nothing to review."} <b>Save as CSV</b>${" "}
          writes the corrected captions with
          the original ones and your decisions.
        </p>
        <p class="tools">${queue.length > 0 && html`<button type="button" onClick=${back}>Back</button>`}</p>
      </div>`;
  const { number, text, kind } = rows.headlineOf(row, by);
  const finish = (event) => {
    setEditing(false);
    rows.setCaption(row, event.target.value);
  };
  const enter = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    event.target.blur();
  };
  const key = (name, letter, act) =>
    html`<button
      type="button"
      class=${name === "Accept" ? "primary" : ""}
      onClick=${act}
    >${name} <kbd>${letter}</kbd></button>`;
  return html`${progress}
    <div id="review" class="card">
      ${
        row.file
          ? html`<${Thumbnail}
        file=${row.file}
        alt=${row.image}
      />`
          : html`<p class="small">No image for this row.</p>`
      }
      <div class="body">
        <div class=${`match ${kind}`}><b>${number}</b><small>${text}</small></div>
        ${
          editing
            ? html`<textarea
                class="describe"
                rows="3"
                ref=${(field) => field && document.activeElement !== field && field.focus()}
                value=${row.caption}
                aria-label="Corrected caption"
                onKeyDown=${enter}
                onBlur=${finish}
              ></textarea>`
            : html`<p class="said" dir="auto">${row.result ? coloured(row) : row.caption}</p>`
        }
        ${rows.isEdited(row) && html`<p class="small">Before: ${row.original}</p>`}
        ${[row.error, ...row.warnings].filter(Boolean).map((note) => html`<p class="note" key=${note}>${note}</p>`)}
        <${Suggestions} row=${row} />
        <p class="tools">
          ${key("Accept", "A", () => decide("accepted"))} ${key("Edit", "E", () => setEditing(true))}
          ${key("Skip", "S", () => decide("skipped"))} ${key("Back", "B", back)}
        </p>
        <p class="small">${[row.image, row.system, row.decision].filter(Boolean).join(" · ")}</p>
      </div>
    </div>`;
}

function Suggestions({ row }) {
  const { suggestions = [], words = [] } = row.result ?? {};
  const take = (word, text) =>
    rows.setCaption(row, row.caption.slice(0, word.start) + text + row.caption.slice(word.end));
  return suggestions.map(
    ({ number, instead }) =>
      html`<p class="hints" key=${number}>
        <q>${words[number].text}</q> try:
        ${instead.map(
          ({ word }) =>
            html`<button
              type="button"
              class="word"
              key=${word}
              onClick=${() => take(words[number], word)}
            >${word}</button>`,
        )}
      </p>`,
  );
}
