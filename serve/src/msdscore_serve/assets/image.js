// The image with its maps and their legend, the regions of a word, the words of a region, and the examples.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as store from "./store.js";
import * as draw from "./draw.js";
import { describes, meaning } from "./words.js";

const { state, changed } = store;
const LONGEST = 720;
const HINT = "Point at a word, or tap it, to see its region; point at the image to see which words mention it.";
const SHOW = "Show the image";
const LOST = "The image of these captions is not stored in this browser.";
const UNSHOWN = "This browser cannot show the image, but it is scored.";
const UNREAD = "This browser cannot show the image. Describe it, and the service will try to read it.";

const mapNames = () => ["image", ...Object.keys(state.look.titles)];
const titleOf = (name) =>
  name === "image" ? "image" : (store.shownCaptions()[0]?.result.look.maps[name]?.title ?? state.look.titles[name]);

// The map of the word under the pointer, from 0 at its weakest region to 1 at its strongest.
function spotlightOf(caption) {
  const shown = caption && store.shownWord();
  const spread = shown?.caption === caption ? caption?.result.look.spreads[shown.number] : null;
  if (!spread) return null;
  const [low, high] = [Math.min(...spread), Math.max(...spread)];
  return {
    cells: caption.result.look.cells,
    strength: spread.map((share) => (share - low) / (high - low || 1)),
    title: `regions matching “${caption.result.words[shown.number].text}”`,
  };
}

// The selected map, on the common scale of all captions.
function mapOf(caption) {
  const map = caption?.result.look.maps[state.map];
  if (!map) return null;
  const all = state.captions.filter((other) => other.result).map((other) => other.result.look.maps[state.map]);
  const limit = Math.max(...all.map((other) => other.limit)) || 1;
  const widest = all.find((other) => other.limit === limit) ?? map;
  return {
    role: state.map,
    cells: caption.result.look.cells,
    strength: map.strength.map((share) => (share * map.limit) / limit),
    title: map.title,
    low: widest.low,
    high: widest.high,
  };
}

export function ImageView() {
  const { image, opening } = state;
  const captions = store.shownCaptions();
  const stages = image?.bitmap ? (captions.length ? captions : [null]) : [];
  const stage = (caption, number) => html`<${Stage} key=${number} caption=${caption} paired=${stages.length > 1} />`;
  return html`<section id="see" aria-label="Image" aria-busy=${String(opening)}>
    <div id="drop" class=${opening ? "opening" : ""}>
      ${!image?.bitmap && html`<${Empty} />`}
      <div id="stages">${stages.map(stage)}</div>
      <${Legend} />
    </div>
    ${image?.bitmap && image.error && html`<p class="note" id="image-error">${image.error}</p>`}
    ${image?.note && html`<p class="small" id="image-note">${image.note}</p>`}
    <div id="maps" role="radiogroup" aria-label="Map on the image">
      ${mapNames().map((name) => html`<${Tab} key=${name} name=${name} />`)}
    </div>
    <${Samples} />
  </section>`;
}

function Empty() {
  const { image, captions } = state;
  const button = (text) => html`<button type="button" class="primary" onClick=${choose}>${text}</button>`;
  const reason = image?.error ?? (captions.some((caption) => caption.result) ? UNSHOWN : UNREAD);
  if (image)
    return html`<div id="empty">
      <p><b>${image.file.name}</b><br />${reason}</p>
      ${image.error && button("Choose another image")}
    </div>`;
  return html`<div id="empty">
    <p>${captions.some((caption) => caption.text) && `${LOST} `}<b>Drop an image here</b>, or paste one.</p>
    ${button("Choose an image")}
    <small>Or start with one of the examples below.</small>
  </div>`;
}

function Stage({ caption, paired }) {
  const canvas = useRef(null);
  const veil = useRef(null);
  const map = mapOf(caption);
  const spot = spotlightOf(caption);
  const cells = caption?.result.look.cells;
  const patch = caption && state.patch?.id === caption.id ? state.patch.number : -1;
  const { bitmap } = state.image;
  const share = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * share)));
  // For a word, the photograph is shown in its colours, whichever map is selected.
  const drawn = spot ? null : map;
  const key = JSON.stringify([state.image.key, drawn?.role, drawn?.strength, patch, width]);
  useEffect(() => {
    draw.tint(canvas.current, bitmap, drawn);
    if (cells && patch >= 0) draw.frame(canvas.current, cells, patch);
  }, [key, bitmap]);
  useEffect(() => {
    if (spot) draw.spotlight(veil.current, spot, width / height);
  }, [spot?.title, caption?.id, spot && JSON.stringify(spot.strength), bitmap]);
  const point = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    if (cells) region(caption, draw.patchAt(cells, x, y));
  };
  const title = spot?.title ?? map?.title;
  const coloured = title ? `, ${spot ? "lit" : "coloured"}: ${title}` : "";
  return html`<figure>
    <div class="stage" style=${{ aspectRatio: `${width} / ${height}`, "--ratio": width / height }}>
      <canvas
        class="base"
        ref=${canvas}
        width=${width}
        height=${height}
        role="img"
        tabindex=${cells ? 0 : -1}
        aria-label=${`The image${coloured}${cells ? ". Arrow keys move over its regions." : ""}`}
        onMouseMove=${point}
        onClick=${point}
        onMouseLeave=${() => region(caption, -1)}
        onBlur=${() => region(caption, -1)}
        onKeyDown=${(event) => caption && step(caption, event)}
      ></canvas>
      <canvas class=${spot ? "veil on" : "veil"} ref=${veil} aria-hidden="true"></canvas>
    </div>
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

// Show which words mention a region; −1 is none.
function region(caption, number) {
  if (!caption || (state.patch?.number ?? -1) === number || (number < 0 && state.patch.id !== caption.id)) return;
  state.patch = number < 0 ? null : { id: caption.id, number };
  if (number >= 0) state.pinned = null;
  if (number >= 0) store.announce(regionText(caption, number));
  changed();
}

function regionText(caption, number) {
  const { look, words: all } = caption.result;
  const words = all.filter((_, word) => describes(look, word, number)).map(({ text }) => text);
  return words.length ? `This region is mentioned by: ${words.join(", ")}` : "No word mentions this region.";
}

function Legend() {
  const [caption] = store.shownCaptions();
  if (caption && state.patch?.id === caption.id)
    return html`<p id="legend">${regionText(caption, state.patch.number)}</p>`;
  const word = caption && store.shownWord();
  if (word) {
    const { result } = caption;
    const [own, look] = [result.words[word.number], result.look.words[word.number]];
    const region =
      spotlightOf(caption)?.title ?? (look.judged ? `“${own.text}” has no reliable region` : `“${own.text}”`);
    return html`<p id="legend">
      ${state.pinned && html`<button type="button" class="small" aria-label=${SHOW} onClick=${unpin}>✕</button>`}
      <b>${region}</b> <span id="meant">${meaning(own, look)}</span>
    </p>`;
  }
  const map = mapOf(caption);
  if (!map) return html`<p id="legend" class="hint">${state.image ? HINT : ""}</p>`;
  return html`<p id="legend">
    <b>${map.title}</b> ${map.low}
    <i aria-hidden="true" style=${{ background: draw.gradient(map.role) }}></i>
    ${map.high}
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
    ${titleOf(name).replace(/^regions (matching|of) (the )?/, "")}
  </button>`;
}

function pick(name) {
  state.map = name;
  state.word = state.pinned = state.patch = null;
  changed();
}

const choose = () => document.getElementById("file").click();

const isAnswered = () => Boolean(state.message) || state.captions.some(({ result, error }) => result || error);

// The examples are one stop of the Tab key; arrow keys move between them.
function Samples() {
  const shown = useRef(false);
  // On a slow line the pictures wait for the first score; the image of the first example is among them.
  shown.current ||= state.image ? !state.image.sample || isAnswered() : !state.opening;
  const current = state.samples.findIndex(({ file }) => file === state.image?.sample);
  const move = (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const buttons = [...event.currentTarget.querySelectorAll("button:not(.choose)")];
    const at = buttons.indexOf(document.activeElement);
    if (!way || at < 0) return;
    event.preventDefault();
    buttons[(at + way + buttons.length) % buttons.length].focus();
  };
  return html`<div id="samples" role="group" aria-label="Examples" onKeyDown=${move}>
    <button type="button" class="choose" onClick=${choose}>Your image</button>
    ${state.samples.map(
      (sample, number) =>
        html`<button
          type="button"
          key=${sample.file}
          title=${`${sample.name} (${sample.credit})`}
          aria-current=${number === current ? "true" : undefined}
          tabindex=${number === Math.max(0, current) ? 0 : -1}
          onClick=${() => store.openSample(sample)}
        >
          <img
            src=${shown.current ? `samples/${sample.file}` : undefined}
            alt=${`Example: ${sample.name}`}
            loading="lazy"
          />
        </button>`,
    )}
  </div>`;
}

// A small image of a file, in lists of rows.
export function Thumbnail({ file, alt = "" }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return url && html`<img src=${url} alt=${alt} />`;
}
