// The image: its maps with their legend, where a word looks, and which words tell of a region.
import { html, useEffect, useRef } from "./preact.js";
import * as store from "./store.js";
import * as draw from "./draw.js";
import { meaning } from "./cards.js";

const { state, changed } = store;
const LONGEST = 720;
const HINT = "Point at a word, or tap it, to see where it looks; point at the image to see which words tell of it.";
const LOST = "The image of these captions is not in this browser.";
const UNSHOWN = "This browser cannot show the image; it is scored all the same.";

const mapNames = () => [
  "image",
  ...Object.keys(store.shownCaptions()[0]?.result.look.maps ?? state.look.titles).filter((name) => name !== "leaning"),
];
const titleOf = (name) =>
  name === "image" ? "image" : (store.shownCaptions()[0]?.result.look.maps[name]?.title ?? state.look.titles[name]);

// What colours the image: where a word looks, or the map that was picked, on the scale of all captions.
function mapOf(caption) {
  if (!caption) return null;
  const { look, words } = caption.result;
  const shown = store.shownWord();
  if (shown?.caption === caption) {
    const spread = look.spreads[shown.number];
    if (!spread) return null;
    const high = Math.max(...spread);
    const title = `where “${words[shown.number].text}” looks`;
    return {
      role: "leaning",
      cells: look.cells,
      strength: spread.map((share) => share / high),
      title,
      low: "0",
      high: `${(100 * high).toPrecision(2)} % of it`,
    };
  }
  const map = look.maps[state.map];
  if (!map) return null;
  const all = state.captions.filter((other) => other.result).map((other) => other.result.look.maps[state.map]);
  const limit = Math.max(...all.map((other) => other.limit)) || 1;
  const widest = all.find((other) => other.limit === limit) ?? map;
  const below = all.find((other) => other.below)?.below ?? null;
  return {
    role: state.map,
    cells: look.cells,
    strength: map.strength.map((share) => (share * map.limit) / limit),
    title: map.title,
    low: widest.low,
    high: widest.high,
    below,
  };
}

export function ImageView() {
  const { image } = state;
  const captions = store.shownCaptions();
  const stages = image?.bitmap ? (captions.length ? captions : [null]) : [];
  const stage = (caption, number) => html`<${Stage} key=${number} caption=${caption} paired=${stages.length > 1} />`;
  return html`<section id="see" aria-label="Image">
    <div id="drop">
      ${!image?.bitmap && html`<${Empty} />`}
      <div id="stages">${stages.map(stage)}</div>
    </div>
    ${image?.bitmap && image.error && html`<p class="note" id="image-error">${image.error}</p>`}
    <div id="maps" role="radiogroup" aria-label="What the image shows">
      ${mapNames().map((name) => html`<${Tab} key=${name} name=${name} />`)}
    </div>
    <${Legend} />
    <${Samples} />
  </section>`;
}

function Empty() {
  const { image, captions } = state;
  if (image) return html`<p id="empty">${image.error ?? UNSHOWN}</p>`;
  return html`<p id="empty">
    ${captions.some((caption) => caption.text) && LOST} <b>Drop an image here</b>, paste one, or${" "}
    <button type="button" onClick=${choose}>choose a file</button>
  </p>`;
}

function Stage({ caption, paired }) {
  const canvas = useRef(null);
  const map = mapOf(caption);
  const cells = caption?.result.look.cells;
  const patch = caption && state.patch?.id === caption.id ? state.patch.number : -1;
  const { bitmap } = state.image;
  const share = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * share)));
  const key = JSON.stringify([state.image.key, map?.title, map?.role, map?.strength, patch, width]);
  useEffect(() => {
    draw.tint(canvas.current, bitmap, map);
    if (cells && patch >= 0) draw.frame(canvas.current, cells, patch);
  }, [key, bitmap]);
  const point = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    if (cells) region(caption, draw.patchAt(cells, x, y));
  };
  const coloured = map ? `, coloured: ${map.title}` : "";
  return html`<figure>
    <canvas
      ref=${canvas}
      width=${width}
      height=${height}
      role="img"
      tabindex=${cells ? 0 : -1}
      style=${{ aspectRatio: `${width} / ${height}`, "--ratio": width / height }}
      aria-label=${`The image${coloured}${cells ? ". Arrow keys walk over its regions." : ""}`}
      onMouseMove=${point}
      onClick=${point}
      onMouseLeave=${() => region(caption, -1)}
      onBlur=${() => region(caption, -1)}
      onKeyDown=${(event) => caption && step(caption, event)}
    ></canvas>
    ${caption && (paired || state.map !== "image") && html`<figcaption dir="auto">${caption.text}</figcaption>`}
  </figure>`;
}

function step(caption, event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!way) return;
  event.preventDefault();
  const { columns, rows } = caption.result.look.cells;
  const [wide, high] = [columns.length, rows.length];
  const at = state.patch?.id === caption.id ? state.patch.number : Math.floor(high / 2) * wide + Math.floor(wide / 2);
  const column = Math.min(wide - 1, Math.max(0, (at % wide) + way[0]));
  const row = Math.min(high - 1, Math.max(0, Math.floor(at / wide) + way[1]));
  region(caption, row * wide + column);
}

// Show which words tell of a region; −1 is none.
function region(caption, number) {
  if (!caption || (state.patch?.number ?? -1) === number || (number < 0 && state.patch.id !== caption.id)) return;
  state.patch = number < 0 ? null : { id: caption.id, number };
  if (number >= 0) state.pinned = null;
  if (number >= 0) store.tell(regionText(caption, number));
  changed();
}

function regionText(caption, number) {
  const words = (caption.result.look.told_by[number] ?? []).map((word) => caption.result.words[word].text);
  return words.length ? `This region is told by: ${words.join(", ")}` : "No word tells of this region in particular.";
}

function Legend() {
  const [caption] = store.shownCaptions();
  if (caption && state.patch?.id === caption.id)
    return html`<p id="legend">${regionText(caption, state.patch.number)}</p>`;
  const map = mapOf(caption);
  if (!map) return html`<p id="legend" class="hint">${state.image ? HINT : ""}</p>`;
  const shown = store.shownWord();
  const meant =
    shown && meaning(shown.caption.result.words[shown.number], shown.caption.result.look.words[shown.number]);
  return html`<p id="legend">
    <b>${map.title}</b> ${map.low}
    <i aria-hidden="true" style=${{ background: draw.gradient(map.role, map.below) }}></i>
    ${map.high} ${state.pinned && html`<button type="button" class="small" onClick=${unpin}>show the image</button>`}
    ${meant && html`<span id="meant">${meant}</span>`}
  </p>`;
}

function unpin() {
  state.pinned = state.word = null;
  changed();
}

function Tab({ name }) {
  const on = state.map === name;
  const press = (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const names = mapNames();
    const other = names[(names.indexOf(name) + way + names.length) % names.length];
    pick(other);
    document.querySelector(`[data-map=${other}]`).focus();
  };
  return html`<button
    type="button"
    role="radio"
    data-map=${name}
    aria-checked=${String(on)}
    tabindex=${on ? 0 : -1}
    onClick=${() => pick(name)}
    onKeyDown=${press}
  >
    ${titleOf(name)}
  </button>`;
}

function pick(name) {
  state.map = name;
  state.word = state.pinned = state.patch = null;
  changed();
}

const choose = () => document.getElementById("file").click();

function Samples() {
  return html`<div id="samples" role="group" aria-label="Images">
    <button type="button" class="choose" onClick=${choose}>Your own<br />image</button>
    ${state.samples.map(
      (sample) =>
        html`<button type="button" key=${sample.file} title=${sample.credit} onClick=${() => store.openSample(sample)}>
          <img src=${`samples/${sample.file}`} alt=${`Sample: ${sample.name}`} />
        </button>`,
    )}
  </div>`;
}
