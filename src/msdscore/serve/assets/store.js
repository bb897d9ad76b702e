// The state of the page: one image, its captions, and what the service answered about them.
import * as service from "./service.js";
import * as images from "./images.js";

const PAUSE = 60; // milliseconds without a key before the service is asked

export const state = {
  view: "image", // or "file": a scored file
  image: null, // { file, bitmap, sample, id, error, key }
  captions: [], // { id, text, scored, result, error, before }
  order: [], // ids of captions as they are shown
  typing: false, // a field has the focus: cards keep their places
  map: "image",
  word: null, // { id, number } that the mouse points at
  pinned: null, // { id, number } that was tapped, or reached with the arrow keys
  patch: null, // { id, number } of the region that is pointed at
  compared: [], // ids of at most two captions
  look: null,
  version: null,
  samples: [],
  message: null, // { text, wrong }
  spoken: "",
  token: { wanted: false, value: "" },
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

export function say(text, wrong = false) {
  state.message = text ? { text, wrong } : null;
  changed();
}

// Said to those who hear the page; what they see says it in another way.
export function tell(text) {
  state.spoken = text;
  changed();
}

let next = 0;
const newCaption = (text) => ({ id: next++, text, scored: null, result: null, error: null, before: null });
export const captionOf = (id) => state.captions.find((caption) => caption.id === id);
export const inOrder = () => state.order.map(captionOf).filter(Boolean);
export const isCurrent = (caption) => Boolean(caption.result) && caption.scored === caption.text;

// The word whose map is shown: the one under the mouse, else the one that was pinned.
export function shownWord() {
  const word = state.word ?? state.pinned;
  const caption = word && captionOf(word.id);
  return caption?.result?.words[word.number] ? { ...word, caption } : null;
}

// The captions whose maps are shown: the two that are compared, or the one that is pointed at, else the first.
export function shownCaptions() {
  const compared = state.compared.map(captionOf).filter((caption) => caption?.result);
  if (compared.length === 2 && state.map !== "image") return compared;
  const first = inOrder().find((caption) => caption.result);
  const caption = shownWord()?.caption ?? captionOf(state.patch?.id) ?? first;
  return caption ? [caption] : [];
}

// Best first, but never under a finger or a mouse that is down: its click would miss.
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
  const value = (caption) => caption.result?.score.msd ?? -Infinity;
  const order = [...state.captions].sort((a, b) => value(b) - value(a) || a.id - b.id).map((caption) => caption.id);
  if (order.join() === state.order.join()) return;
  state.order = order;
  changed();
}

// Editing -----------------------------------------------------------------------------------------

let timer = null;
let running = null;

export function edit(caption, text) {
  caption.text = text;
  state.pinned = state.word = null;
  if (!text.trim()) caption.result = caption.scored = caption.error = null;
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
  state.captions = state.captions.filter((other) => other !== caption);
  state.order = state.order.filter((id) => id !== caption.id);
  state.compared = state.compared.filter((id) => id !== caption.id);
  if (state.pinned?.id === caption.id) state.pinned = null;
  remember();
  changed();
}

export function compare(caption, on) {
  state.compared = state.compared.filter((id) => id !== caption.id);
  if (on) state.compared = [...state.compared, caption.id].slice(-2);
  changed();
}

// Scoring: only captions that changed are sent, and an answer counts only for the text that it was made for.
export async function score() {
  running?.abort();
  clearTimeout(timer);
  const { image } = state;
  const due = state.captions.filter((caption) => caption.text.trim() && caption.scored !== caption.text);
  if (!image || !due.length) return;
  running = new AbortController();
  const texts = due.map((caption) => caption.text);
  try {
    const items = await service.explain(image, texts, running.signal);
    if (state.image !== image) return;
    due.forEach((caption, number) => accept(caption, texts[number], items[number]));
    say("");
    sortCards();
    announce();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

function accept(caption, text, item) {
  if (caption.text !== text) return;
  state.image.error = item.error;
  caption.before = caption.result?.score.msd ?? null;
  caption.scored = text;
  caption.result = item.explanations[0];
  caption.error = item.error ? null : item.errors[0];
}

function announce() {
  const best = inOrder().find((caption) => caption.result);
  if (best) tell(`Scored. First: ${best.text}, ${headline(best).join(" ")}.`);
}

// The one number of a card and its plain reading.
export function headline(caption) {
  const { match, msd, reading } = caption.result.score;
  if (match === null || match === undefined) return [signed(msd), "MSD"];
  return [`${Math.round(100 * match)} %`, `${reading ?? (match >= 0.7 ? "good" : match >= 0.3 ? "doubtful" : "poor")} match`];
}

export const signed = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

// Images ------------------------------------------------------------------------------------------

export async function open(file, { captions = null, sample = null, key = null, push = true } = {}) {
  if (!file) return;
  running?.abort();
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    // A format that this browser cannot show; the service may still read it.
  }
  // Captions that wait for their image, from an address that somebody shared, are kept.
  const waiting = state.image || captions ? null : state.captions.map((caption) => caption.text);
  const image = { file, bitmap, sample, id: null, error: null, key: key ?? `image-${Date.now()}` };
  if (push && (state.image || state.view !== "image")) history.pushState(null, "", location.hash);
  show(image, captions ?? (waiting?.length ? waiting : [""]));
  if (!sample) images.keep(image.key, file);
  await score();
}

function show(image, captions) {
  state.view = "image";
  state.image = image;
  state.message = state.word = state.pinned = state.patch = null;
  state.compared = [];
  state.captions = captions.map(newCaption);
  state.order = state.captions.map((caption) => caption.id);
  remember();
  changed();
}

export async function openSample(sample, captions = sample.captions, push = true) {
  const bytes = await (await fetch(`samples/${sample.file}`)).blob();
  const file = new File([bytes], sample.file, { type: "image/jpeg" });
  await open(file, { captions, sample: sample.file, key: sample.file, push });
}

// The address has the sample and the captions, so that it can be shared, reloaded and gone back to.
function address() {
  const fields = new URLSearchParams();
  fields.set(state.image.sample ? "sample" : "image", state.image.key);
  for (const caption of inOrder()) if (caption.text.trim()) fields.append("c", caption.text);
  return `#${fields}`;
}

function remember() {
  if (state.image) history.replaceState(null, "", address());
}

export function viewFile() {
  if (state.view === "file") return;
  state.view = "file";
  history.pushState(null, "", "#file");
  changed();
}

export async function restore(push = false) {
  if (location.hash === "#file") {
    state.view = "file";
    return changed();
  }
  if (state.image && location.hash === address()) {
    state.view = "image";
    return changed();
  }
  const fields = new URLSearchParams(location.hash.slice(1));
  const captions = fields.has("c") ? fields.getAll("c") : [""];
  const key = fields.get("image");
  const sample = state.samples.find(({ file }) => file === fields.get("sample"));
  if (sample) return openSample(sample, captions, push);
  if (!key) return openSample(state.samples[0], fields.has("c") ? captions : undefined, push);
  const file = await images.kept(key);
  if (file) return open(file, { captions, key, push });
  show(null, captions);
}
