// A card per caption: the text is edited in place with its words in colour, one number, one bar, words to click.
import { html, useEffect, useRef } from "./preact.js";
import * as store from "./store.js";
import { colour } from "./draw.js";

const { state, changed, headline, signed } = store;

export function Cards() {
  const captions = store.inOrder();
  const bounds = scaleOf(captions);
  const card = (caption, place) =>
    html`<${Card}
      key=${caption.id}
      caption=${caption}
      place=${place}
      bounds=${bounds}
      shown=${shownNumber(caption)}
    />`;
  return html`<ol id="captions" aria-label="Captions, best first">
      ${captions.map(card)}
    </ol>
    <${Difference} />`;
}

const shownNumber = (caption) => {
  const word = store.shownWord();
  return word?.caption === caption ? word.number : -1;
};

function Card({ caption, place, bounds, shown }) {
  const { result } = caption;
  const stale = !store.isCurrent(caption) && caption.text.trim();
  const best = place === 0 && result && state.captions.length > 1;
  return html`<li class=${["card", best && "best", stale && "stale"].filter(Boolean).join(" ")} data-card=${caption.id}>
    <div class="top">
      <${Editor} caption=${caption} place=${place} shown=${shown} />
      ${result && html`<${Headline} caption=${caption} />`}
    </div>
    ${result && html`<${Waterfall} caption=${caption} bounds=${bounds} />`}
    ${result && html`<${Hints} caption=${caption} />`}
    ${caption.error && html`<p class="note">${caption.error}</p>`}
    ${[].concat(result?.score.warnings ?? []).map((text) => html`<p class="note">${text}</p>`)}
    <div class="does">
      ${result && html`<${Numbers} caption=${caption} />`}
      ${state.captions.length > 1 && html`<${Compare} caption=${caption} place=${place} />`}
      <button type="button" class="small" aria-label=${`Remove caption ${place + 1}`} onClick=${() => discard(caption)}>
        Remove
      </button>
    </div>
  </li>`;
}

function Compare({ caption, place }) {
  return html`<label class="small">
    <input
      type="checkbox"
      checked=${state.compared.includes(caption.id)}
      onChange=${(event) => store.compare(caption, event.target.checked)}
    />
    compare<span class="unseen"> caption ${place + 1}</span>
  </label>`;
}

function discard(caption) {
  store.remove(caption);
  document.getElementById("add").focus();
}

function Headline({ caption }) {
  const [number, reading] = headline(caption);
  const moved = caption.before === null ? 0 : caption.result.score.msd - caption.before;
  return html`<div class="match">
    <b>${number}</b><small>${reading}</small>
    ${
      Math.abs(moved) >= 0.0005 &&
      html`<small class="moved">${moved > 0 ? "▲ +" : "▼ −"}${Math.abs(moved).toFixed(3)}</small>`
    }
  </div>`;
}

// The text field lies over the same text with its words in colour: composing, undo, selection stay the browser's own.
function Editor({ caption, place, shown }) {
  const field = useRef(null);
  useEffect(() => {
    if (!caption.text && state.focus === caption.id) {
      state.focus = null;
      field.current.focus();
    }
  });
  const point = (event) => {
    const number = wordUnder(event, caption);
    if (state.word?.id === caption.id && state.word.number === number) return;
    if (number < 0 && !state.word) return;
    state.word = number < 0 ? null : { id: caption.id, number };
    state.patch = null;
    changed();
  };
  return html`<div class="editor" dir="auto">
    <div class="words" aria-hidden="true">${pieces(caption, shown)}<br /></div>
    <textarea
      ref=${field}
      rows="1"
      dir="auto"
      spellcheck="true"
      value=${caption.text}
      aria-label=${`Caption ${place + 1}`}
      aria-describedby=${`said-${caption.id}`}
      placeholder="Describe the image; the words are coloured while you type"
      onInput=${(event) => store.edit(caption, event.target.value)}
      onKeyDown=${(event) => press(event, caption)}
      onKeyUp=${(event) => walk(event, caption)}
      onPaste=${(event) => paste(event, caption)}
      onPointerMove=${(event) => event.pointerType === "mouse" && point(event)}
      onPointerLeave=${() => state.word && ((state.word = null), changed())}
      onClick=${(event) => pin(caption, wordUnder(event, caption))}
      onFocus=${() => (state.typing = true)}
      onBlur=${() => ((state.typing = false), store.sortCards())}
    ></textarea>
    <span class="unseen" id=${`said-${caption.id}`}>${spoken(caption)}</span>
  </div>`;
}

// Words keep their colours while another part of the text changes: those at the start and at the end still match.
function pieces(caption, shown) {
  const { text, result } = caption;
  if (!result) return text;
  const old = result.caption;
  let head = 0;
  while (head < Math.min(text.length, old.length) && text[head] === old[head]) head++;
  let tail = 0;
  while (tail < Math.min(text.length, old.length) - head && text.at(-1 - tail) === old.at(-1 - tail)) tail++;
  const shift = text.length - old.length;
  const nodes = [];
  let end = 0;
  result.words.forEach((word, number) => {
    const late = word.start >= old.length - tail;
    if (word.end > head && !late) return;
    const [start, stop] = late ? [word.start + shift, word.end + shift] : [word.start, word.end];
    const look = result.look.words[number];
    const patch = state.patch?.id === caption.id && result.look.told_by[state.patch.number]?.includes(number);
    const style = colours(look);
    const on = number === shown || patch;
    const kind = ["w", style && "tinted", !look.judged && "none", on && "on"].filter(Boolean).join(" ");
    nodes.push(
      text.slice(end, start),
      html`<span class=${kind} style=${style} data-word=${number}>${text.slice(start, stop)}</span>`,
    );
    end = stop;
  });
  return [...nodes, text.slice(end)];
}

// The colours of a word on light and on dark pages; none for those that are neither supported nor in doubt.
const colours = (look) =>
  look.back && {
    "--back": look.back,
    "--ink": look.ink,
    "--dark-back": look.dark_back,
    "--dark-ink": look.dark_ink,
  };

export function meaning(word, look) {
  if (!look.judged) return "not judged";
  if (word.p_value != null) {
    const share = (100 * word.p_value).toPrecision(2);
    return `${word.p_value < 0.1 ? "in doubt" : "not in doubt"}: ${share} % of true words look as unsupported`;
  }
  const size = Math.abs(word.gap).toFixed(2);
  return word.gap > 0 ? `not supported, +${size} nats` : `supported, −${size} nats`;
}

function spoken(caption) {
  if (!caption.result) return "";
  const { words, look } = caption.result;
  const inDoubt = ({ p_value, gap }) => (p_value != null ? p_value < 0.1 : gap > 0);
  const doubt = words.filter((word, number) => look.words[number].judged && inDoubt(word)).map((word) => word.text);
  const list = doubt.length ? `In doubt: ${doubt.join(", ")}.` : "";
  return `${headline(caption).join(" ")}. ${list} Arrow keys show where each word looks.`;
}

function wordUnder(event, caption) {
  if (!store.isCurrent(caption)) return -1;
  const span = document.elementsFromPoint(event.clientX, event.clientY).find((node) => node.matches(".w"));
  const number = span?.closest("[data-card]")?.dataset.card === String(caption.id) ? Number(span.dataset.word) : -1;
  return number >= 0 && caption.result.look.spreads[number] ? number : -1;
}

export function pin(caption, number) {
  state.pinned = number < 0 ? null : { id: caption.id, number };
  if (number >= 0) {
    const { words, look } = caption.result;
    store.tell(`${words[number].text}: ${meaning(words[number], look.words[number])}`);
  }
  changed();
}

// Arrow keys walk over the text as ever; the word at the cursor shows where it looks.
function walk(event, caption) {
  if (!/^(Arrow|Home|End)/.test(event.key) || !store.isCurrent(caption)) return;
  const at = event.target.selectionStart;
  const number = caption.result.words.findIndex((word) => word.start <= at && at <= word.end);
  pin(caption, number >= 0 && caption.result.look.spreads[number] ? number : -1);
}

function press(event, caption) {
  if (event.isComposing) return; // keys belong to the input method
  if (event.key === "Escape") {
    state.pinned = null;
    event.target.blur();
  }
  if (event.key !== "Enter") return;
  event.preventDefault();
  write("", caption.id);
}

function write(text, after) {
  const caption = store.add(text, { after });
  state.focus = caption.id;
  return caption;
}

// Lines that are pasted become captions.
function paste(event, caption) {
  const lines = event.clipboardData
    .getData("text")
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter(Boolean);
  if (lines.length < 2) return;
  event.preventDefault();
  document.execCommand("insertText", false, lines[0]);
  let after = caption.id;
  for (const line of lines.slice(1)) after = store.add(line, { after }).id;
}

const ROW = 5; // pixels per part of the bar
// What a bar spans at least, so that that of a lone caption is not always full: scores, and those of the paper's form.
const USUAL = [-0.5, 1.25];
const COSINES = [0, 0.5];

// One bar from zero to the score, made of its parts in their own sizes; all cards share one scale.
function partsOf(caption) {
  const { score, look } = caption.result;
  return [{ name: "similarity", size: score.similarity, role: null }, ...look.sum];
}

function stepsOf(caption) {
  let at = 0;
  return partsOf(caption).map((part) => {
    const from = at;
    at += part.size;
    return { ...part, low: Math.min(from, at), high: Math.max(from, at), end: at };
  });
}

function scaleOf(captions) {
  const ends = captions
    .filter((caption) => caption.result)
    .flatMap((caption) => stepsOf(caption).flatMap((step) => [step.low, step.high]));
  const [low, high] = captions.some((caption) => caption.result?.score.match != null) ? USUAL : COSINES;
  return [Math.min(low, ...ends), Math.max(high, ...ends)];
}

function Waterfall({ caption, bounds: [low, high] }) {
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const steps = stepsOf(caption);
  const { msd } = caption.result.score;
  const sum = steps.map(({ name, size }, number) => {
    const sign = number ? (size < 0 ? " − " : " + ") : "";
    return `${sign}${name} ${number ? Math.abs(size).toFixed(2) : signed(size, 2)}`;
  });
  return html`<div class="waterfall">
    <div class="track" aria-hidden="true" style=${{ height: `${steps.length * ROW}px` }}>
      ${steps.map((step, number) => {
        const width = `${(100 * (step.high - step.low)) / (high - low)}%`;
        const style = { left: at(step.low), width, top: `${number * ROW}px`, height: `${ROW}px` };
        if (step.role) style.background = colour(step.role, 0.85);
        const title = `${step.name} ${signed(step.size)}`;
        return html`<i key=${step.name} class=${step.role ? "" : "first"} style=${style} title=${title}></i>`;
      })}
      <u style=${{ left: at(0) }}></u><s style=${{ left: at(msd) }}></s>
    </div>
    <p class="sum">${sum} = <b>${signed(msd)}</b></p>
  </div>`;
}

const HINTS = 5; // words that are probably also there

function Hints({ caption }) {
  const { missing = [], suggestions = [], words } = caption.result;
  if (!store.isCurrent(caption) || (!missing.length && !suggestions.length)) return null;
  const choice = (word, text) =>
    html`<button type="button" class="word" key=${text} onClick=${() => replace(caption, word, text)}>${text}</button>`;
  return html`<div class="hints">
    ${
      suggestions.length > 0 &&
      html`<p>
      ${suggestions.map(
        ({ number, instead }) =>
          html`<span class="rather" key=${number}>
            <q>${words[number].text}</q> rather: ${instead.map(({ word }) => choice(words[number], word))}
          </span>`,
      )}
    </p>`
    }
    ${
      missing.length > 0 &&
      html`<p>probably also there: ${missing.slice(0, HINTS).map(({ word }) => choice(null, word))}</p>`
    }
  </div>`;
}

// As if it were typed, so that the browser can undo it.
function replace(caption, word, text) {
  const field = document.querySelector(`[data-card="${caption.id}"] textarea`);
  field.focus();
  field.setSelectionRange(word ? word.start : field.value.length, word ? word.end : field.value.length);
  document.execCommand("insertText", false, word ? text : ` ${text}`);
}

const HIDDEN = ["msd", "match", "reading", "alpha", "gamma", "balance", "candidates", "soft_msd"];

function Numbers({ caption }) {
  const { score } = caption.result;
  const names = Object.keys(score).filter((name) => typeof score[name] === "number" && !HIDDEN.includes(name));
  const shown = (value) => (Number.isInteger(value) ? value : signed(value));
  return html`<details class="numbers">
    <summary class="small">Numbers</summary>
    <dl>
      ${["msd", ...names].map((name) => html`<dt>${name === "msd" ? "MSD" : name}</dt><dd>${shown(score[name])}</dd>`)}
    </dl>
  </details>`;
}

// Two captions: the words that only one of them has, and what that changes.
function Difference() {
  const [first, second] = state.compared.map(store.captionOf).filter((caption) => caption?.result);
  if (!second) return null;
  const plain = (caption) => new Set(caption.result.words.map((word) => word.text.toLowerCase()));
  const only = (caption, other) =>
    caption.result.words.map((word, number) => {
      const style = plain(other).has(word.text.toLowerCase()) ? null : colours(caption.result.look.words[number]);
      const kind = plain(other).has(word.text.toLowerCase()) ? "w common" : style ? "w tinted" : "w";
      return html`<span class=${kind} style=${style}>${word.text}</span>${" "}`;
    });
  const sizes = (caption) => Object.fromEntries(partsOf(caption).map((part) => [part.name, part.size]));
  const [a, b] = [sizes(first), sizes(second)];
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const change = (name) => (b[name] ?? 0) - (a[name] ?? 0);
  const shown = (value) => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(3)}`;
  return html`<section id="difference" aria-label="Difference of two captions">
    <h2>Difference</h2>
    <p dir="auto">${only(first, second)}</p>
    <p dir="auto">${only(second, first)}</p>
    <p class="sum">
      second − first: ${names.map((name) => `${name} ${shown(change(name))}  `)} =${" "}
      <b>${shown(second.result.score.msd - first.result.score.msd)}</b>
    </p>
  </section>`;
}

export function addCard() {
  write("", state.order.at(-1) ?? null);
}
