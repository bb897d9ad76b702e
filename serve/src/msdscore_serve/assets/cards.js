// One card per caption: text that is edited in place with coloured words, one number, one bar and one row of icons.
import { html, useLayoutEffect, useRef } from "./preact.js";
import * as store from "./store.js";
import { Aligned } from "./difference.js";
import { meaning, pieces } from "./words.js";
import { Answers } from "./answers.js";
import { Broken, breakCaption } from "./break.js";
import { openShare } from "./share.js";

const { state, changed, headline, signed } = store;

// Icons as SVG paths in a square of 24 by 24.
const ICONS = {
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
    ${result && html`<${Hints} caption=${caption} />`} ${caption.error && html`<p class="note">${caption.error}</p>`}
    ${isProposed(caption) && html`<p class="small proposed">${PROPOSAL}</p>`}
    ${result && notesOf(result).map((text) => html`<p class="note" key=${text}>${warning(text)}</p>`)}
    ${result && caption.numbers && html`<${Numbers} caption=${caption} />`}
    ${caption.broken && html`<${Broken} caption=${caption} />`}
    ${caption.asked && html`<${Answers} caption=${caption} />`}
  </li>`;
}

const isProposed = ({ proposed, text }) => Boolean(proposed) && proposed === text;
const PROPOSAL = "What the metric finds most probable in the image: describe it.";
const WARNINGS = {
  "not English": "Not English: this encoder cannot read the caption, so it has no score.",
};
// The warnings that the headline does not name.
const notesOf = ({ warnings = [], score }) =>
  score.match == null ? warnings : warnings.filter((text) => !store.withheldBy([text]).length);
const warning = (text) => WARNINGS[text] ?? `${text[0].toUpperCase()}${text.slice(1)}.`.replace(/([.?!])\.$/, "$1");

function Tools({ caption, place }) {
  const compared = state.compared.includes(caption.id);
  const button = (name, title, act, pressed) =>
    html`<button
      type="button"
      class=${name in ICONS ? "tool" : "tool named"}
      data-tool=${name}
      title=${name in ICONS ? title : undefined}
      aria-label=${`${title}, caption ${place + 1}`}
      aria-pressed=${pressed === undefined ? undefined : String(pressed)}
      onClick=${act}
    >
      ${name in ICONS ? html`<${Icon} name=${name} />` : title}
    </button>`;
  const toggle = (name) => () => {
    caption[name] = !caption[name];
    changed();
  };
  return html`<div class="tool-row">
    ${caption.result && button("numbers", "Numbers", toggle("numbers"), caption.numbers)}
    ${store.isCurrent(caption) && state.image?.bitmap && button("share", "Share", () => openShare(caption))}
    ${
      store.isCurrent(caption) &&
      caption.result.readable !== false &&
      button("break", "Break it", () => breakCaption(caption), Boolean(caption.broken))
    }
    ${
      store.isCurrent(caption) &&
      caption.result.readable !== false &&
      button("answers", "Was this wrong?", toggle("asked"), caption.asked)
    }
    ${state.captions.length > 1 && button("compare", "Compare", () => store.compare(caption, !compared), compared)}
    ${caption.text && button("copy", "Copy", () => copy(caption))} ${button("remove", "Remove", () => discard(caption))}
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
    ${
      ref_msd != null &&
      html`<small class="refs" title=${REF_MSD}>Ref-MSD ${signed(ref_msd, 2)}${rank(caption)}</small>`
    }
    ${change && html`<small class="moved">${change}</small>`}
  </div>`;
}

const REF_MSD = "MSD with references. It has no fixed scale: compare it only between captions of this image.";

// The rank of a caption by Ref-MSD among those of the image, since that number has no scale of its own.
function rank(caption) {
  const all = state.captions.map(({ result }) => result?.score.ref_msd).filter((value) => value != null);
  if (all.length < 2) return "";
  return `, rank ${1 + all.filter((value) => value > caption.result.score.ref_msd).length} of ${all.length}`;
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
  // Before the next key press: text that is typed right after Enter belongs to the new card.
  useLayoutEffect(() => {
    if (state.focus !== caption.id) return;
    state.focus = null;
    field.current.focus({ preventScroll: true });
    if (isProposed(caption)) field.current.select(); // typing replaces it
    field.current.scrollIntoView({ block: "nearest" });
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
      ontouchstart=${(event) => (touched = event.touches[0])}
      ontouchend=${(event) => tap(event, caption)}
      onFocus=${() => ((state.typing = true), (state.active = caption.id))}
      onBlur=${() => ((state.typing = false), store.sortCards(), store.rememberNow())}
    ></textarea>
    <span class="unseen" id=${`said-${caption.id}`}>${spoken(caption)}</span>
  </div>`;
}

// A tap on a word shows its regions without opening the keyboard; a second tap edits the caption.
let touched = null;
const STILL = 8; // pixels that a finger may move during a tap
function tap(event, caption) {
  const [end] = event.changedTouches;
  if (!touched || Math.hypot(end.clientX - touched.clientX, end.clientY - touched.clientY) > STILL) return;
  const number = wordUnder(end, caption);
  if (number < 0 || event.target === document.activeElement) return;
  if (state.pinned?.id === caption.id && state.pinned.number === number) return;
  event.preventDefault();
  pin(caption, number);
}

function spoken(caption) {
  if (!caption.result) return "";
  const { words, look } = caption.result;
  const isWrong = ({ p_value, gap, finding }) => (p_value != null ? finding === "likely wrong" : gap > 0);
  const wrong = words.filter((word, number) => look.words[number].judged && isWrong(word)).map((word) => word.text);
  const list = wrong.length ? `Likely wrong: ${wrong.join(", ")}.` : "";
  const { number, verdict } = headline(caption);
  return `${number} ${verdict}. ${list} Arrow keys show the regions that match each word.`;
}

function wordUnder(event, caption) {
  if (!store.isCurrent(caption)) return -1;
  const span = document.elementsFromPoint(event.clientX, event.clientY).find((node) => node.matches(".w"));
  if (span?.closest("[data-card]")?.dataset.card !== String(caption.id)) return -1;
  return /[\p{L}\p{N}]/u.test(span.textContent) ? Number(span.dataset.word) : -1;
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
  pin(caption, number);
}

function press(event, caption) {
  if (event.isComposing) return; // the input method handles the keys
  if (event.key === "Escape") {
    state.pinned = null;
    event.target.blur();
  }
  if (event.key !== "Enter") return;
  event.preventDefault();
  store.focusOn(store.add("", { after: caption.id }));
}

export const isAddress = (text) => /^https?:\/\/\S+$/.test(text);
export const NO_ADDRESS = "Addresses are not loaded: save the image, then drop the file here.";

// Each pasted line becomes a caption.
function paste(event, caption) {
  const lines = event.clipboardData
    .getData("text")
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter(Boolean);
  if (lines.length === 1 && isAddress(lines[0])) {
    event.preventDefault();
    return store.say(NO_ADDRESS, true);
  }
  if (lines.length < 2) return;
  event.preventDefault();
  document.execCommand("insertText", false, lines[0]);
  let after = caption.id;
  for (const line of lines.slice(1)) after = store.add(line, { after }).id;
}

function Hints({ caption }) {
  const { suggestions = [], words } = caption.result;
  const missing = caption === hinted() ? (caption.result.missing ?? []) : [];
  const misspelt = words.flatMap((word) => {
    const [, meant] = /did you mean (.+)\?$/.exec(word.reason ?? "") ?? [];
    return meant ? [{ word, meant }] : [];
  });
  const unjudged = unjudgedOf(caption.result);
  const notes = store.wordNotes(caption.result);
  const count = suggestions.length + missing.length + misspelt.length + unjudged.length + notes.length;
  if (!store.isCurrent(caption) || !count) return null;
  const choice = (word, text) =>
    html`<button type="button" class="word" key=${text} onClick=${() => replace(caption, word, text)}>${text}</button>`;
  return html`<p class="hints">
    ${notes.map((text) => html`<span class="found" key=${text}>${text[0].toUpperCase() + text.slice(1)}.</span>`)}
    ${misspelt.map(
      ({ word, meant }) =>
        html`<span class="rather" key=${word.start}><q>${word.text}</q> did you mean ${choice(word, meant)}?</span>`,
    )}
    ${suggestions.map(
      ({ number, instead }) =>
        html`<span class="rather" key=${number}>
          <q>${words[number].text}</q> try: ${instead.map(({ word }) => choice(words[number], word))}
        </span>`,
    )}
    ${
      missing.length > 0 &&
      html`<span id="also">Probably missing: ${missing.slice(0, ALSO).map(({ word }) => choice(null, word))}</span>`
    }
    ${unjudged.map((text) => html`<span class="unjudged" key=${text}>${text}</span>`)}
  </p>`;
}

// What the caption says and the metric does not judge, such as counts; or that it judges nothing at all.
function unjudgedOf({ words, look, readable, score }) {
  if (readable === false || score.match == null) return [];
  const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
  const reasons = [...new Set(words.map((word) => word.reason).filter((reason) => reason?.endsWith("not judged")))];
  const none = look.words.some((word) => word.judged) ? [] : ["No word of this caption is judged."];
  return [...reasons.map(sentence), ...none];
}

const ALSO = 6; // words that are probably missing

// The card that lists missing words: the one that was edited last, else the best one.
function hinted() {
  const edited = store.captionOf(state.active);
  const caption = edited && store.isCurrent(edited) ? edited : store.inOrder().find(store.isCurrent);
  return caption?.result.readable === false ? null : caption;
}

// Inserted as if typed, so that the browser can undo it; without a word to replace, the text is appended.
export function replace(caption, word, text) {
  const field = document.querySelector(`[data-card="${caption.id}"] textarea`);
  field.focus();
  field.setSelectionRange(word ? word.start : field.value.length, word ? word.end : field.value.length);
  document.execCommand("insertText", false, word ? text : ` ${text}`);
}

const HIDDEN = "msd match verdict alpha gamma delta balance candidates soft_msd uncertainty ref_msd".split(" ");

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
      <tr>
        <th scope="col">number</th>
        <th scope="col">value</th>
        <th scope="col">adds to MSD</th>
      </tr>
    </thead>
    <tbody>
      ${all.map(
        (name) =>
          html`<tr key=${name}>
            <th scope="row">${name}</th>
            <td>${shown(score[name])}</td>
            <td>${added(adds[name])}</td>
          </tr>`,
      )}
    </tbody>
    <tfoot>
      <tr>
        <th scope="row">MSD</th>
        <td></td>
        <td>${signed(score.msd)}</td>
      </tr>
      ${
        score.ref_msd != null &&
        html`<tr>
          <th scope="row">Ref-MSD</th>
          <td></td>
          <td>${signed(score.ref_msd)}</td>
        </tr>`
      }
    </tfoot>
  </table>`;
}

// Two captions: their words in columns, and the differences of their numbers.
function Difference() {
  const [first, second] = state.compared.map(store.captionOf).filter((caption) => caption?.result);
  if (!second) return null;
  const head = (caption) => {
    const { number, verdict, kind } = headline(caption);
    return html`<p><b class=${`match ${kind}`}>${number}</b> <small>${verdict}</small></p>`;
  };
  const [a, b] = [sizesOf(first), sizesOf(second)];
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const row = (name, x = 0, y = 0) =>
    html`<tr key=${name}>
      <th scope="row">${name}</th>
      <td>${signed(x)}</td>
      <td>${signed(y)}</td>
      <td>${y - x >= 0 ? "+" : "−"}${Math.abs(y - x).toFixed(3)}</td>
    </tr>`;
  return html`<section id="difference" aria-label="Difference of two captions">
    <h2>Difference</h2>
    <div class="heads">${head(first)} ${head(second)}</div>
    <${Aligned} first=${first.result} second=${second.result} label="Words of both captions" />
    <table class="numbers">
      <thead>
        <tr>
          <th scope="col">adds to MSD</th>
          <th scope="col">first</th>
          <th scope="col">second</th>
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
  store.focusOn(store.add("", { after: state.order.at(-1) ?? null }));
}
