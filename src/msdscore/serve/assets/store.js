// The state of the page: one image, its captions, and what the service answered about them.
import * as service from "./service.js";

const PAUSE = 120; // milliseconds without a key before the service is asked
const STORED = 4_000_000; // characters of an image that survives a reload

export const state = {
  image: null, // { file, bitmap, sample, id, error }
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
  const place = state.word ?? state.pinned;
  const caption = place && captionOf(place.id);
  return caption?.result?.words[place.number] ? { ...place, caption } : null;
}

// The captions whose maps are shown: the two that are compared, or the one that is pointed at, else the first.
export function shownCaptions() {
  const compared = state.compared.map(captionOf).filter((caption) => caption?.result);
  if (compared.length === 2 && state.map !== "image") return compared;
  const caption = shownWord()?.caption ?? captionOf(state.patch?.id) ?? inOrder().find((one) => one.result);
  return caption ? [caption] : [];
}

export function sortCards() {
  const value = (caption) => caption.result?.score.msd ?? -Infinity;
  state.order = [...state.captions].sort((a, b) => value(b) - value(a) || a.id - b.id).map((caption) => caption.id);
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
  say("Scoring…");
  try {
    const items = await service.explain(image, texts, running.signal);
    if (state.image !== image) return;
    due.forEach((caption, number) => accept(caption, texts[number], items[number]));
    say("");
    if (!state.typing) sortCards();
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
  const { match, msd } = caption.result.score;
  if (match === null || match === undefined) return [signed(msd), "MSD"];
  return [`${Math.round(100 * match)} %`, `${match >= 0.7 ? "good" : match >= 0.3 ? "doubtful" : "poor"} match`];
}

export const signed = (value) => value.toFixed(3).replace("-", "−");

// Images ------------------------------------------------------------------------------------------

const opened = new Map(); // images of this visit, by key, for Back

export async function open(file, { captions = null, sample = null, key = null, push = true } = {}) {
  if (!file) return;
  running?.abort();
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    // A format that this browser cannot show; the service may still read it.
  }
  const image = { file, bitmap, sample, id: null, error: null, key: key ?? `image-${Date.now()}` };
  opened.set(image.key, file);
  if (push && state.image) history.pushState(null, "", location.hash);
  state.image = image;
  state.word = state.pinned = state.patch = null;
  state.compared = [];
  state.captions = (captions ?? [""]).map(newCaption);
  state.order = state.captions.map((caption) => caption.id);
  if (!sample) keep(file);
  remember();
  changed();
  await score();
}

export async function openSample(sample, captions = sample.captions, push = true) {
  const bytes = await (await fetch(`samples/${sample.file}`)).blob();
  const file = new File([bytes], sample.file, { type: "image/jpeg" });
  await open(file, { captions, sample: sample.file, key: sample.file, push });
}

// The address has the sample and the captions, so that it can be shared, reloaded and gone back to.
function remember() {
  if (!state.image) return;
  const fields = new URLSearchParams();
  fields.set(state.image.sample ? "sample" : "image", state.image.key);
  for (const caption of inOrder()) if (caption.text.trim()) fields.append("c", caption.text);
  history.replaceState(null, "", `#${fields}`);
}

export async function restore(push = false) {
  const fields = new URLSearchParams(location.hash.slice(1));
  const captions = fields.getAll("c");
  const sample = state.samples.find((one) => one.file === fields.get("sample"));
  if (sample) return openSample(sample, captions.length ? captions : [""], push);
  const file = fields.has("image") ? (opened.get(fields.get("image")) ?? (await kept())) : null;
  if (file) return open(file, { captions: captions.length ? captions : [""], key: fields.get("image"), push });
  const first = state.samples[0];
  return openSample(first, captions.length ? captions : first.captions, push);
}

// An image of the reader's own stays in this tab for a reload; nothing is sent anywhere for it.
function keep(file) {
  const reader = new FileReader();
  reader.onload = () => {
    try {
      sessionStorage.setItem("image", JSON.stringify({ name: file.name, url: reader.result }));
    } catch {
      sessionStorage.removeItem("image");
    }
  };
  if (file.size * 1.4 < STORED) reader.readAsDataURL(file);
}

async function kept() {
  const stored = JSON.parse(sessionStorage.getItem("image") ?? "null");
  if (!stored) return null;
  const [head, body] = stored.url.split(",");
  const bytes = Uint8Array.from(atob(body), (char) => char.charCodeAt(0));
  return new File([bytes], stored.name, { type: head.slice(5).split(";")[0] });
}
