// Two captioners on the same images: how often each one wins, and the images on which they disagree most.
import { html, useEffect, useState } from "./preact.js";
import { percent, signed } from "./store.js";
import * as rows from "./rows.js";
import { Thumbnail } from "./image.js";
import { coloured } from "./words.js";

const { view } = rows;
const SHOWN = 10;
const Z = 1.96; // of a 95 % interval

export const captioners = () => [...new Set((view.rows ?? []).map((row) => row.system).filter(Boolean))];

// The best-scored caption of each captioner by image, for images that both have described.
export function pairsOf(all, first, second, by) {
  const found = new Map();
  const lower = rows.isLowerBetter(by) ? -1 : 1;
  for (const row of all) {
    if (![first, second].includes(row.system) || row.numbers[by] === undefined) continue;
    const pair = found.get(row.image) ?? {};
    const side = row.system === first ? "first" : "second";
    if (!pair[side] || lower * (row.numbers[by] - pair[side].numbers[by]) > 0) pair[side] = row;
    found.set(row.image, pair);
  }
  return [...found.values()]
    .filter((pair) => pair.first && pair.second)
    .map((pair) => ({ ...pair, gap: lower * (pair.first.numbers[by] - pair.second.numbers[by]) }))
    .sort((a, b) => Math.abs(b.gap) - Math.abs(a.gap) || a.first.row - b.first.row);
}

// The share of images on which the first wins (ties count half), with Wilson's 95 % interval.
export function winRate(gaps) {
  const count = gaps.length;
  const share = gaps.reduce((sum, gap) => sum + (gap > 0 ? 1 : gap < 0 ? 0 : 0.5), 0) / count;
  const middle = (share + (Z * Z) / (2 * count)) / (1 + (Z * Z) / count);
  const half = (Z / (1 + (Z * Z) / count)) * Math.sqrt((share * (1 - share)) / count + (Z * Z) / (4 * count * count));
  return { share, low: middle - half, high: middle + half };
}

export function meanGap(gaps) {
  const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  const squares = gaps.reduce((sum, gap) => sum + (gap - mean) ** 2, 0);
  const half = gaps.length > 1 ? (Z * Math.sqrt(squares / (gaps.length - 1))) / Math.sqrt(gaps.length) : Infinity;
  return { mean, low: mean - half, high: mean + half };
}

export function Captioners() {
  const names = captioners();
  const [chosen, setChosen] = useState([names[0], names[1]]);
  const by = rows.defaultBy();
  const [first, second] = chosen;
  const pairs = by ? pairsOf(view.rows, first, second, by) : [];
  const shown = pairs.slice(0, SHOWN);
  useEffect(() => rows.showRows(shown.flatMap((pair) => [pair.first, pair.second])));
  const pick = (side) =>
    html`<select
      aria-label=${side ? "Second captioner" : "First captioner"}
      value=${chosen[side]}
      onChange=${(event) => setChosen(chosen.map((name, number) => (number === side ? event.target.value : name)))}
    >
      ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>`;
  return html`<div id="captioners">
    <p class="tools">${pick(0)} against ${pick(1)} by ${by}</p>
    ${
      pairs.length
        ? html`<${Summary}
      pairs=${pairs}
      first=${first}
      second=${second}
      by=${by}
    />`
        : html`<p>No image has scored captions of both.</p>`
    }
    <ol id="disagreements" aria-label="Images on which the captioners disagree most">
      ${shown.map((pair) => html`<${Pair} key=${pair.first.row} pair=${pair} by=${by} />`)}
    </ol>
    ${
      pairs.length > SHOWN &&
      html`<p class="small">The ${SHOWN} of ${pairs.length} images with the largest differences.</p>`
    }
  </div>`;
}

function Summary({ pairs, first, second, by }) {
  const gaps = pairs.map(({ gap }) => gap);
  const rate = winRate(gaps);
  const [won, lost] = [1, -1].map((sign) => gaps.filter((gap) => sign * gap > 0).length);
  const ties = gaps.length - won - lost;
  const { mean, low, high } = meanGap(gaps);
  const clear =
    rate.low > 0.5 ? `${first} is better.` : rate.high < 0.5 ? `${second} is better.` : "No significant difference.";
  const scale = by === "match" ? 100 : 1;
  const points = (value) => `${value < 0 ? "−" : "+"}${Math.abs(scale * value).toFixed(by === "match" ? 1 : 3)}`;
  const interval = gaps.length > 1 ? ` (${points(low)} to ${points(high)})` : "";
  return html`<p id="win-rate">
      <b>${first}</b> wins on ${won} of ${pairs.length} images, <b>${second}</b> on ${lost}${
        ties ? `, with ${ties} ${ties === 1 ? "tie" : "ties"}` : ""
      }: <b>${percent(rate.share)}</b>${" "}
      <span class="small">(95 % interval ${percent(rate.low)} to ${percent(rate.high)})</span>. <b>${clear}</b>
    </p>
    <div class="versus" aria-hidden="true">
      <i style=${{ width: percent(rate.share).replace(" ", "") }}></i>
    </div>
    <p class="small">
      ${ties > 0 && "Ties count half. "}Mean difference of ${by}: ${points(mean)}${
        by === "match" ? " points" : ""
      }${interval}.
    </p>`;
}

function Pair({ pair, by }) {
  const { first, second } = pair;
  const line = (row) => {
    const { number, kind } = rows.headlineOf(row, by);
    return html`<p dir="auto">
      <span class="side">${row.system}</span> <b class=${`match ${kind}`}>${number}</b>${" "}
      <span class="said">${row.result ? coloured(row) : row.caption}</span>
    </p>`;
  };
  const file = first.file ?? second.file;
  const difference = by === "match" ? `${signed(100 * pair.gap, 0)} points` : signed(pair.gap, 2);
  return html`<li class="card">
    ${file && html`<${Thumbnail} file=${file} />`}
    <div class="body">
      ${line(first)} ${line(second)}
      <small>${first.image} · difference ${difference}</small>
    </div>
  </li>`;
}
