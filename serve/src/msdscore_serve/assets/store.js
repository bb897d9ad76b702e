// The state of the page: one image, its captions, and the responses of the service.
import * as service from "./service.js";
import * as images from "./images.js";

const PAUSE = 60; // milliseconds without a key press before a request is sent
const BATCH = 16; // captions per request, so that the first results of many arrive early
const REMEMBERED = 400; // milliseconds between two updates of the address; Safari allows 100 in ten seconds
const LONGEST_WAIT = 15_000; // maximum time in milliseconds between two attempts to reach the service
const WORDLESS = "a photo"; // a caption without judged words, of which all words of the image are missing
const PROPOSED = 3; // words of a proposed caption
const UNDONE = 8000; // milliseconds during which a removal can be undone

export const state = {
  view: "image", // or "file": a scored file, or many images
  image: null, // { file, sent, bitmap, sample, id, error, key, note }
  references: "", // human captions of the image, one per line
  captions: [], // { id, text, scored, result, error, before, numbers, asked, proposed }
  order: [], // ids of captions in display order
  focus: null, // id of the caption whose field gets the focus
  typing: false, // a field has the focus: cards are not reordered
  active: null, // id of the caption that was edited last
  map: "image",
  word: null, // { id, number } of the word under the mouse
  pinned: null, // { id, number } of the word that was tapped, or reached with the arrow keys
  patch: null, // { id, number } of the region under the pointer
  shared: null, // id of the caption whose sharing dialog is open
  compared: [], // ids of at most two captions
  look: null,
  version: null,
  samples: [],
  opening: false, // an image is being loaded
  working: null, // { done, total } captions of the current run
  message: null, // { text, wrong, action: { title, run } }
  spoken: "",
  needsToken: false,
};

let draw = () => {};
let drawing = false;
export const onChange = (call) => {
  draw = call;
};
export function changed() {
  if (drawing) return;
  drawing = true;
  queueMicrotask(() => {
    drawing = false;
    draw();
  });
}

export function say(text, wrong = false, action = null) {
  state.message = text ? { text, wrong, action } : null;
  changed();
}

// Read out by screen readers; the page shows the same information visually.
export function announce(text) {
  state.spoken = text;
  changed();
}

let next = 0;
const newCaption = (text) => ({
  id: next++,
  text,
  scored: null,
  result: null,
  error: null,
  before: null,
  numbers: false,
  asked: false,
  proposed: null,
});
export const captionOf = (id) => state.captions.find((caption) => caption.id === id);
export const inOrder = () => state.order.map(captionOf).filter(Boolean);
export const isCurrent = (caption) => Boolean(caption.result) && caption.scored === caption.text;
const isDue = (caption) => Boolean(caption.text.trim()) && caption.scored !== caption.text;

// The word whose map is shown: the one under the mouse, else the pinned one.
export function shownWord() {
  const word = state.word ?? state.pinned;
  const caption = word && captionOf(word.id);
  return caption?.result?.words[word.number] ? { ...word, caption } : null;
}

// The captions whose maps are shown: the two that are compared, or the one under the pointer, else the first.
export function shownCaptions() {
  const compared = state.compared.map(captionOf).filter((caption) => caption?.result);
  if (compared.length === 2 && state.map !== "image") return compared;
  const first = inOrder().find((caption) => caption.result);
  const caption = shownWord()?.caption ?? captionOf(state.patch?.id) ?? first;
  return caption ? [caption] : [];
}

// Numbers -----------------------------------------------------------------------------------------

export const signed = (value, digits = 3) => value.toFixed(digits).replace("-", "−");
export const percent = (share) => `${Math.round(100 * share)} %`;

// The terms of MSD by name, which add up to it.
export const termsOf = ({ score, look }) => [{ name: "similarity", size: score.similarity }, ...look.sum];

// The number of a card: the match if the encoder is calibrated, else MSD; null for a caption that it cannot read.
export function shownValue(caption) {
  const { readable, score } = caption.result;
  return readable === false ? null : (score.match ?? score.msd);
}

// Warnings that withhold the verdict.
export const withheldBy = (warnings) => warnings.filter((text) => state.look.withholding.includes(text));

// The class of a verdict: on-topic, unsure, off-topic, or none.
export const kindOf = (verdict) => verdict?.replace(" ", "-") ?? "none";

// That number as text, its verdict, and the class of the verdict.
export function headline(caption) {
  const { readable, score, warnings } = caption.result;
  if (readable === false) return { number: "–", verdict: "cannot be judged", kind: "none" };
  if (score.match == null) return { number: signed(score.msd), verdict: "MSD", kind: "none" };
  if (!score.verdict)
    return { number: percent(score.match), verdict: `but: ${withheldBy(warnings).join(", ")}`, kind: "none" };
  return { number: percent(score.match), verdict: score.verdict, kind: kindOf(score.verdict) };
}

// The words in doubt, such as “check: blue”; empty without a verdict.
export const wordNotes = ({ score, word_notes = [] }) => (score.verdict ? word_notes : []);

// The change of a card's number since the last edit, with its unit.
export function moved(caption) {
  if (caption.before === null || shownValue(caption) === null) return "";
  const change = shownValue(caption) - caption.before;
  const sign = change > 0 ? "▲ +" : "▼ −";
  if (caption.result.score.match == null) return Math.abs(change) < 0.0005 ? "" : sign + Math.abs(change).toFixed(3);
  const points = Math.round(100 * shownValue(caption)) - Math.round(100 * caption.before);
  return points ? `${sign}${Math.abs(points)} points` : "";
}

// Cards are sorted by the shown number, best first and those without a verdict last, but not while a mouse button or
// finger is down: the click would miss. Cards without a number are not moved.
let pressed = false;
export function watchPointer() {
  document.addEventListener("pointerdown", () => (pressed = true), true);
  for (const name of ["pointerup", "pointercancel"])
    document.addEventListener(
      name,
      () => {
        pressed = false;
        setTimeout(sortCards); // after the click
      },
      true,
    );
}

export function sortCards() {
  if (state.typing || pressed) return;
  const value = (caption) => shownValue(caption) ?? -Infinity;
  const isHeld = ({ result }) => withheldBy(result.warnings).length > 0;
  const better = (a, b) =>
    isHeld(a) - isHeld(b) || value(b) - value(a) || b.result.score.msd - a.result.score.msd || a.id - b.id;
  const scored = state.captions.filter((caption) => caption.result).sort(better);
  const order = inOrder().map((caption) => (caption.result ? scored.shift() : caption).id);
  if (order.join() === state.order.join()) return;
  state.order = order;
  changed();
}

// Editing -----------------------------------------------------------------------------------------

// The field of a caption gets the focus when it is drawn next.
export function focusOn(caption) {
  state.focus = caption.id;
  changed();
}

let timer = null;
let running = null;

export function edit(caption, text) {
  caption.text = text;
  state.active = caption.id;
  state.pinned = state.word = null;
  if (!text.trim()) caption.result = caption.scored = caption.error = null;
  clearTimeout(timer);
  timer = setTimeout(score, PAUSE);
  remember();
  changed();
}

export const referenceLines = () => state.references.split("\n").filter((line) => line.trim());

// References change the scores of all captions, so all of them are scored again.
export function refer(text) {
  state.references = text;
  for (const caption of state.captions) caption.scored = null;
  clearTimeout(timer);
  timer = setTimeout(score, PAUSE);
  remember();
  changed();
}

export function add(text = "", { after = null } = {}) {
  const caption = newCaption(text);
  state.captions.push(caption);
  const at = after === null ? state.order.length : state.order.indexOf(after) + 1;
  state.order.splice(at, 0, caption.id);
  if (text) edit(caption, text);
  remember();
  changed();
  return caption;
}

export function remove(caption) {
  const at = state.order.indexOf(caption.id);
  const { image } = state;
  state.captions = state.captions.filter((other) => other !== caption);
  state.order = state.order.filter((id) => id !== caption.id);
  state.compared = state.compared.filter((id) => id !== caption.id);
  if (state.pinned?.id === caption.id) state.pinned = null;
  remember();
  const back = () => {
    say("");
    if (state.image !== image) return;
    state.captions.push(caption);
    state.order.splice(at, 0, caption.id);
    remember();
    score();
  };
  if (!caption.text.trim()) return changed();
  say("Caption removed.", false, { title: "Undo", run: back });
  const { message } = state;
  setTimeout(() => state.message === message && say(""), UNDONE);
}

export function compare(caption, on) {
  state.compared = state.compared.filter((id) => id !== caption.id);
  if (on) state.compared = [...state.compared, caption.id].slice(-2);
  changed();
}

// Scoring: only changed captions are sent, and a response is used only if the text is still the same.
export async function score() {
  running?.abort();
  clearTimeout(timer);
  const { image } = state;
  // The caption that is being edited comes first.
  const due = inOrder()
    .filter(isDue)
    .sort((a, b) => (b.id === state.active) - (a.id === state.active));
  if (!image || !due.length) return finished(running);
  const run = (running = new AbortController());
  state.working = { done: 0, total: due.length };
  changed();
  try {
    for (let start = 0; start < due.length; start += BATCH) {
      const part = due.slice(start, start + BATCH);
      const texts = part.map((caption) => caption.text);
      const items = await service.explain(image, texts, run.signal, { references: referenceLines() });
      if (state.image !== image || running !== run) return;
      part.forEach((caption, number) => accept(caption, texts[number], items[number]));
      state.working.done += part.length;
      sortCards();
      changed();
    }
    reached("score");
    announceBest();
  } catch (error) {
    if (error.name !== "AbortError" && running === run) failed(error, "score", score);
  } finally {
    if (running === run) finished(run);
  }
}

function finished(run) {
  if (running === run) running = null;
  if (!state.working) return;
  state.working = null;
  changed();
}

function accept(caption, text, item) {
  if (caption.text !== text) return;
  state.image.error = item.error;
  caption.before = caption.result ? shownValue(caption) : null;
  caption.scored = text;
  caption.result = item.explanations[0];
  caption.error = item.error ? null : item.errors[0];
}

function announceBest() {
  const best = inOrder().find((caption) => caption.result);
  if (best)
    announce(`${imageName()}: scored. First: ${best.text}, ${headline(best).number} ${headline(best).verdict}.`);
}

const imageName = () =>
  state.samples.find(({ file }) => file === state.image.sample)?.name ?? `Image ${state.image.file.name}`;

// Failures ----------------------------------------------------------------------------------------

let tries = 0;
let waiting = null;
const again = new Map(); // failed actions by name; retried together, also when a token is entered

// Requests that fail because the service or the network is unavailable are retried until they succeed.
export function failed(error, name, action) {
  state.needsToken ||= error.status === 401;
  if (error.isTemporary || error.status === 401 || error.status >= 500) again.set(name, action);
  clearTimeout(waiting);
  if (!error.isTemporary)
    return say(error.message, true, error.status >= 500 ? { title: "Try again", run: tryAgain } : null);
  waiting = setTimeout(tryAgain, Math.min(LONGEST_WAIT, 1000 * 2 ** tries++));
  say(`${error.message} Trying again…`, true, { title: "Try now", run: tryAgain });
}

export function tryAgain() {
  clearTimeout(waiting);
  const actions = [...again.values()];
  again.clear();
  for (const action of actions) action();
}

export function reached(name) {
  again.delete(name);
  state.needsToken = false;
  if (again.size) return; // another action waits, with its message
  tries = 0;
  clearTimeout(waiting);
  if (!state.message?.action || state.message.wrong) say("");
}

// Images ------------------------------------------------------------------------------------------

const SMALL =
  "This is the small copy of the image that the link contains: numbers may differ from those of the original.";
let choice = 0; // counts chosen images; late responses for earlier ones are dropped

export async function open(
  file,
  { captions = null, references = "", sample = null, key = null, push = true, note = null } = {},
) {
  if (!file) return;
  const mine = ++choice;
  running?.abort();
  state.opening = true;
  changed();
  const prepared = await images.prepare(file, state.look.limits);
  if (mine !== choice) return;
  // Captions from a shared address that have no image yet are preserved.
  const texts = state.image || captions ? null : state.captions.map((caption) => caption.text);
  const image = { file, ...prepared, sample, id: null, error: null, key: key ?? `image-${Date.now()}` };
  if (push && (state.image || state.view !== "image")) {
    rememberNow();
    history.pushState(null, "", location.hash);
  }
  image.note ??= note;
  show(image, captions ?? (texts?.length ? texts : [""]), references);
  if (!sample) images.save(image.key, file);
  // A phone would open its keyboard.
  if (!captions && !matchMedia("(pointer: coarse)").matches) focusOn(state.captions[0]);
  const [first] = state.captions;
  if (!sample && state.captions.length === 1 && !first.text) await propose(image, first);
  else await score();
}

// A new image starts with a caption of its most probable words, unless something was typed meanwhile. A file that is
// not an image is reported before anyone describes it.
async function propose(image, caption) {
  try {
    const [item] = await service.explain(image, [WORDLESS], undefined, { fields: "words" });
    if (state.image !== image) return;
    image.error = item.error;
    const words = (item.explanations[0]?.missing ?? []).slice(0, PROPOSED).map(({ word }) => word);
    if (words.length && state.captions.includes(caption) && !caption.text) {
      caption.proposed = words.join(", ");
      edit(caption, caption.proposed);
      if (state.typing) focusOn(caption);
    }
    reached("propose");
  } catch (error) {
    if (state.image === image) failed(error, "propose", () => propose(image, caption));
  }
}

function show(image, captions, references = "") {
  Object.assign(state, { view: "image", image, references, opening: false, compared: [], active: null });
  state.message = state.word = state.pinned = state.patch = null;
  for (const name of again.keys()) if (name !== "rows") again.delete(name); // they were about another image
  if (image) announce(`${imageName()}.`);
  state.captions = captions.map(newCaption);
  state.order = state.captions.map((caption) => caption.id);
  rememberNow();
  changed();
}

export async function openSample(sample, captions = sample.captions, { references = "", push = true } = {}) {
  const mine = ++choice;
  state.opening = true;
  changed();
  try {
    const bytes = await service.sample(sample.file);
    if (mine !== choice) return;
    const file = new File([bytes], sample.file, { type: bytes.type || "image/jpeg" });
    await open(file, { captions, references, sample: sample.file, key: sample.file, push });
  } catch (error) {
    if (mine !== choice) return;
    state.opening = false;
    failed(error, "open", () => openSample(sample, captions, { references, push }));
  }
}

// The address contains the sample and the captions, so that it can be shared, reloaded and reached with Back.
function address() {
  const fields = new URLSearchParams();
  fields.set(state.image.sample ? "sample" : "image", state.image.key);
  for (const caption of inOrder()) if (caption.text.trim()) fields.append("c", caption.text);
  for (const line of referenceLines()) fields.append("r", line);
  return `#${fields}`;
}

let remembering = null;
let remembered = -Infinity;

// Update the address, immediately or once enough time has passed since the last update.
function remember() {
  const left = remembered + REMEMBERED - performance.now();
  if (left <= 0) rememberNow();
  else remembering ??= setTimeout(rememberNow, left);
}

export function rememberNow() {
  clearTimeout(remembering);
  remembering = null;
  remembered = performance.now();
  if (!state.image || state.view !== "image") return;
  try {
    history.replaceState(null, "", address());
  } catch {
    remember(); // more updates than the browser allows in that time
  }
}

export function viewFile() {
  choice++; // an image that is still being loaded must not replace this view
  state.opening = false;
  if (state.view === "file") return changed();
  rememberNow();
  state.view = "file";
  history.pushState(null, "", "#file");
  scrollTo(0, 0);
  changed();
}

export async function restore(push = false) {
  clearTimeout(remembering); // an update for the previous address
  remembering = null;
  if (location.hash === "#file") {
    state.view = "file";
    return changed();
  }
  if (state.image && location.hash === address()) {
    state.view = "image";
    return changed();
  }
  const mine = ++choice;
  const fields = new URLSearchParams(location.hash.slice(1));
  const captions = fields.has("c") ? fields.getAll("c") : [""];
  const references = fields.getAll("r").join("\n");
  if (fields.has("thumb")) {
    const file = await images.fromLink(fields.get("thumb"));
    if (mine !== choice) return;
    if (file) return open(file, { captions, references, push, note: SMALL });
  }
  const key = fields.get("image");
  const sample = state.samples.find(({ file }) => file === fields.get("sample"));
  const shown = sample ?? (key || fields.has("sample") ? null : state.samples[0]);
  if (shown) return openSample(shown, fields.has("c") ? captions : undefined, { references, push });
  const file = key && (await images.load(key));
  if (mine !== choice) return;
  if (file) return open(file, { captions, references, key, push });
  show(null, captions, references);
}
