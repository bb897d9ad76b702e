// Two captions word by word: aligned, so that replaced, added and moved words are visible.
import { html } from "./preact.js";
import { colours } from "./words.js";

const MOVED = "Underlined words are in both captions, at different positions. Word order hardly changes the score.";
const plain = (word) => word.text.toLowerCase();

// The longest common subsequence of two lists of words, as pairs of indices.
function common(first, second) {
  const lengths = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1));
  for (let i = first.length - 1; i >= 0; i--)
    for (let j = second.length - 1; j >= 0; j--)
      lengths[i][j] =
        first[i] === second[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const pairs = [];
  for (let i = 0, j = 0; i < first.length && j < second.length;) {
    if (first[i] === second[j]) pairs.push([i++, j++]);
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}

// Columns of an alignment: { first, second, kind } with indices or null. Judged words that stand elsewhere in the other
// caption are “moved”; words between two common ones are paired in order.
export function align(first, second) {
  const [a, b] = [first.map(plain), second.map(plain)];
  const columns = [];
  let [i, j] = [0, 0];
  const gap = (toFirst, toSecond) => {
    for (; i < toFirst || j < toSecond;) {
      columns.push({ first: i < toFirst ? i++ : null, second: j < toSecond ? j++ : null, kind: "changed" });
    }
  };
  for (const [x, y] of common(a, b)) {
    gap(x, y);
    columns.push({ first: i++, second: j++, kind: "same" });
  }
  gap(a.length, b.length);
  const loose = (side, words) => columns.filter(({ kind }) => kind === "changed").map((column) => words[column[side]]);
  const [left, right] = [loose("first", first), loose("second", second)].map(
    (words) => new Set(words.filter((word) => word?.judged).map(plain)),
  );
  for (const column of columns) {
    if (column.kind !== "changed") continue;
    if ((column.first !== null && right.has(a[column.first])) || (column.second !== null && left.has(b[column.second])))
      column.kind = "moved";
  }
  return columns;
}

// Both captions with their words in columns; words that differ have the colours of their cards.
export function Aligned({ first, second, label }) {
  const cell = (result, number, kind) => {
    if (number === null) return html`<span class="gap" aria-hidden="true">·</span>`;
    const style = kind === "same" ? null : colours(result.look.words[number]);
    const names = ["w", kind === "same" ? "common" : style && "tinted"].filter(Boolean).join(" ");
    return html`<span class=${names} style=${style}>${result.words[number].text}</span>`;
  };
  const columns = align(first.words, second.words);
  const moved = columns.some(({ kind }) => kind === "moved");
  return html`<div class="aligned" role="group" aria-label=${label}>
      ${columns.map(
        (column, number) =>
          html`<span
            class=${`pair ${column.kind}`}
            key=${number}
            title=${column.kind === "moved" ? "at another position in the other caption" : undefined}
          >
            ${cell(first, column.first, column.kind)} ${cell(second, column.second, column.kind)}
          </span>`,
      )}
    </div>
    ${moved && html`<p class="small moved-note">${MOVED}</p>`}`;
}
