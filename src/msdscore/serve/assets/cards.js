// One card per caption: text that is edited in place with coloured words, one number, one bar and one row of icons.
import { html, useEffect, useRef } from "./preact.js";
import * as store from "./store.js";

const { state, changed, headline, signed } = store;

// Icons as SVG paths in a square of 24 by 24.
const ICONS = {
  numbers: "M5 4h14M5 4l7 8-7 8h14",
  compare: "M8 4v16M8 4 4 8M8 4l4 4M16 20V4M16 20l-4-4M16 20l4-4",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  remove: "M6 6l12 12M18 6 6 18",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
}

export function Cards() {
  const card = (caption, place) =>
    html`<${Card} key=${caption.id} caption=${caption} place=${place} shown=${shownNumber(caption)} />`;
  return html`<ol id="captions" aria-label="Captions, best first">
      ${store.inOrder().map(card)}
    </ol>
    <${Difference} />`;
}

const shownNumber = (caption) => {
  const word = store.shownWord();
  return word?.caption === caption ? word.number : -1;
};

function Card({ caption, place, shown }) {
  const { result } = caption;
  const stale = !store.isCurrent(caption) && caption.text.trim() && !caption.error && !state.image?.error;
  const best = place === 0 && result && state.captions.length > 1;
  const waits = stale && Boolean(state.working);
  const kind = ["card", best && "best", stale && "stale", waits && "waits"].filter(Boolean).join(" ");
  return html`<li class=${kind} data-card=${caption.id} aria-busy=${String(waits)}>
    <div class="top">
      <${Editor} caption=${caption} place=${place} shown=${shown} />
      ${result && html`<${Headline} caption=${caption} />`}
    </div>
    <div class="foot">
      <${Bar} caption=${caption} />
      <${Tools} caption=${caption} place=${place} />
    </div>
    ${result && html`<${Hints} caption=${caption} />`}
    ${caption.error && html`<p class="note">${caption.error}</p>`}
    ${result?.warnings?.map((text) => html`<p class="note" key=${text}>${warning(text)}</p>`)}
    ${result && caption.numbers && html`<${Numbers} caption=${caption} />`}
  </li>`;
}

const WARNINGS = {
  "not English": "Not English: this encoder cannot read the caption, so it has no score.",
};
const warning = (text) => WARNINGS[text] ?? text[0].toUpperCase() + text.slice(1);

function Tools({ caption, place }) {
  const compared = state.compared.includes(caption.id);
  const button = (icon, title, act, pressed) =>
    html`<button
      type="button"
      class="tool"
      data-tool=${icon}
      title=${title}
      aria-label=${`${title}, caption ${place + 1}`}
      aria-pressed=${pressed === undefined ? undefined : String(pressed)}
      onClick=${act}
    >
      <${Icon} name=${icon} />
    </button>`;
  const numbers = () => {
    caption.numbers = !caption.numbers;
    changed();
  };
  return html`<div class="tool-row">
    ${caption.result && button("numbers", "Numbers", numbers, caption.numbers)}
    ${state.captions.length > 1 && button("compare", "Compare", () => store.compare(caption, !compared), compared)}
    ${caption.text && button("copy", "Copy", () => copy(caption))}
    ${button("remove", "Remove", () => discard(caption))}
  </div>`;
}

async function copy(caption) {
  try {
    await navigator.clipboard.writeText(caption.text);
    store.say("Copied.");
    setTimeout(() => state.message?.text === "Copied." && store.say(""), 1500);
  } catch {
    store.say("This browser does not allow copying here.", true);
  }
}

function discard(caption) {
  store.remove(caption);
  document.getElementById("add").focus();
}

function Headline({ caption }) {
  const { number, verdict, kind } = headline(caption);
  const { ref_msd } = caption.result.score;
  const change = store.moved(caption);
  return html`<div class=${`match ${kind}`}>
    <b>${number}</b><small>${verdict}</small>
    ${ref_msd != null && html`<small class="refs">Ref-MSD ${signed(ref_msd, 2)}</small>`}
    ${change && html`<small class="moved">${change}</small>`}
  </div>`;
}

// The match from 0 to 100 %; the bar is drawn from the start, so that the layout does not shift later.
function Bar({ caption }) {
  const match = caption.result?.readable === false ? null : caption.result?.score.match;
  const kind = caption.result ? headline(caption).kind : "none";
  const width = match == null ? "0" : `${100 * match}%`;
  // An encoder without calibration has no match.
  const bare = caption.result && match == null ? "bare" : "";
  return html`<div class=${`track ${kind} ${bare}`} aria-hidden="true">
    ${match != null && html`<i style=${{ width }}></i>`}
  </div>`;
}

// A text field over the same text with coloured words, so that input methods, undo and selection work as usual.
function Editor({ caption, place, shown }) {
  const field = useRef(null);
  useEffect(() => {
    if (!caption.text && state.focus === caption.id) {
      state.focus = null;
      field.current.focus({ preventScroll: true });
      field.current.scrollIntoView({ block: "nearest" });
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
      placeholder="Describe the image; words are coloured as you type"
      onInput=${(event) => store.edit(caption, event.target.value)}
      onKeyDown=${(event) => press(event, caption)}
      onKeyUp=${(event) => walk(event, caption)}
      onPaste=${(event) => paste(event, caption)}
      onPointerMove=${(event) => event.pointerType === "mouse" && point(event)}
      onPointerLeave=${() => state.word && ((state.word = null), changed())}
      onClick=${(event) => pin(caption, wordUnder(event, caption))}
      onFocus=${() => ((state.typing = true), (state.active = caption.id))}
      onBlur=${() => ((state.typing = false), store.sortCards(), store.rememberNow())}
    ></textarea>
    <span class="unseen" id=${`said-${caption.id}`}>${spoken(caption)}</span>
  </div>`;
}

// Words keep their colours while another part of the text changes: the unchanged start and end still match.
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
      html`<span class=${kind} style=${style} data-word=${number} title=${caption.id === null && meaning(word, look)}
        >${text.slice(start, stop)}</span
      >`,
    );
    end = stop;
  });
  return [...nodes, text.slice(end)];
}

// The caption of a result with coloured words, read-only.
export const coloured = ({ caption: text, result }) => pieces({ id: null, text, result }, -1);

// The colours of a word on light and dark pages; none for a word that is neither supported nor in doubt.
const colours = (look) =>
  look.back && {
    "--back": look.back,
    "--text": look.ink,
    "--dark-back": look.dark_back,
    "--dark-text": look.dark_ink,
  };

export function meaning(word, look) {
  if (!look.judged) return "not judged";
  if (word.p_value != null) {
    const share = word.p_value < 0.1 ? (100 * word.p_value).toPrecision(2) : Math.round(100 * word.p_value);
    if (word.p_value < 0.1) return `likely wrong: only ${share} % of true words look this unsupported`;
    const verdict = word.p_value < 0.5 ? "neither supported nor wrong" : "supported";
    return `${verdict}: ${share} % of true words look like this`;
  }
  const size = Math.abs(word.gap).toFixed(2);
  return word.gap > 0 ? `likely wrong, +${size} nats` : `supported, −${size} nats`;
}

function spoken(caption) {
  if (!caption.result) return "";
  const { words, look } = caption.result;
  const inDoubt = ({ p_value, gap }) => (p_value != null ? p_value < 0.1 : gap > 0);
  const doubt = words.filter((word, number) => look.words[number].judged && inDoubt(word)).map((word) => word.text);
  const list = doubt.length ? `Likely wrong: ${doubt.join(", ")}.` : "";
  const { number, verdict } = headline(caption);
  return `${number} ${verdict}. ${list} Arrow keys show where each word looks.`;
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
    store.announce(`${words[number].text}: ${meaning(words[number], look.words[number])}`);
  }
  changed();
}

// Arrow keys move the cursor as usual; the map of the word at the cursor is shown.
function walk(event, caption) {
  if (!/^(Arrow|Home|End)/.test(event.key) || !store.isCurrent(caption)) return;
  const at = event.target.selectionStart;
  const number = caption.result.words.findIndex((word) => word.start <= at && at <= word.end);
  pin(caption, number >= 0 && caption.result.look.spreads[number] ? number : -1);
}

function press(event, caption) {
  if (event.isComposing) return; // the input method handles the keys
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

// Each pasted line becomes a caption.
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

function Hints({ caption }) {
  const { suggestions = [], words } = caption.result;
  if (!store.isCurrent(caption) || !suggestions.length) return null;
  const choice = (word, text) =>
    html`<button type="button" class="word" key=${text} onClick=${() => replace(caption, word, text)}>${text}</button>`;
  return html`<p class="hints">
    ${suggestions.map(
      ({ number, instead }) =>
        html`<span class="rather" key=${number}>
          <q>${words[number].text}</q> try: ${instead.map(({ word }) => choice(words[number], word))}
        </span>`,
    )}
  </p>`;
}

// Inserted as if typed, so that the browser can undo it; without a word to replace, the text is appended.
export function replace(caption, word, text) {
  const field = document.querySelector(`[data-card="${caption.id}"] textarea`);
  field.focus();
  field.setSelectionRange(word ? word.start : field.value.length, word ? word.end : field.value.length);
  document.execCommand("insertText", false, word ? text : ` ${text}`);
}

const HIDDEN = "msd match reading alpha gamma delta balance candidates soft_msd uncertainty ref_msd".split(" ");

const sizesOf = ({ result }) => Object.fromEntries(store.termsOf(result).map(({ name, size }) => [name, size]));

// The score as a sum: the value of each number and its contribution to MSD.
function Numbers({ caption }) {
  const { score } = caption.result;
  const adds = sizesOf(caption);
  const names = Object.keys(score).filter((name) => typeof score[name] === "number" && !HIDDEN.includes(name));
  const all = [...new Set([...Object.keys(adds), ...names])];
  const shown = (value) => (value === undefined ? "" : Number.isInteger(value) ? value : signed(value));
  const added = (value) => (value === undefined ? "" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`);
  return html`<table class="numbers">
    <thead>
      <tr><th scope="col">number</th><th scope="col">value</th><th scope="col">adds to MSD</th></tr>
    </thead>
    <tbody>
      ${all.map(
        (name) =>
          html`<tr key=${name}>
            <th scope="row">${name}</th><td>${shown(score[name])}</td><td>${added(adds[name])}</td>
          </tr>`,
      )}
    </tbody>
    <tfoot>
      <tr><th scope="row">MSD</th><td></td><td>${signed(score.msd)}</td></tr>
      ${score.ref_msd != null && html`<tr><th scope="row">Ref-MSD</th><td></td><td>${signed(score.ref_msd)}</td></tr>`}
    </tfoot>
  </table>`;
}

// Two captions: the words that only one of them contains, and the differences of their numbers.
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
  const line = (caption, other) => {
    const { number, kind } = headline(caption);
    return html`<p dir="auto"><b class=${`match ${kind}`}>${number}</b> ${only(caption, other)}</p>`;
  };
  const [a, b] = [sizesOf(first), sizesOf(second)];
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const row = (name, x = 0, y = 0) =>
    html`<tr key=${name}>
      <th scope="row">${name}</th><td>${signed(x)}</td><td>${signed(y)}</td>
      <td>${y - x >= 0 ? "+" : "−"}${Math.abs(y - x).toFixed(3)}</td>
    </tr>`;
  return html`<section id="difference" aria-label="Difference of two captions">
    <h2>Difference</h2>
    ${line(first, second)} ${line(second, first)}
    <table class="numbers">
      <thead>
        <tr>
          <th scope="col">adds to MSD</th><th scope="col">first</th><th scope="col">second</th>
          <th scope="col">difference</th>
        </tr>
      </thead>
      <tbody>
        ${names.map((name) => row(name, a[name], b[name]))}
      </tbody>
      <tfoot>
        ${row("MSD", first.result.score.msd, second.result.score.msd)}
      </tfoot>
    </table>
  </section>`;
}

export function addCard() {
  write("", state.order.at(-1) ?? null);
}
