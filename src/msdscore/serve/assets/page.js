// The page: pictures come in, captions are typed, the service judges, and everything is shown again.
import { $, inOrder, make, newCard, say, state, tell } from "./state.js";
import * as service from "./service.js";
import * as draw from "./draw.js";
import * as cards from "./cards.js";
import * as rows from "./rows.js";
import { exported } from "./export.js";

const PAUSE = 250;  // milliseconds without a key before the service is asked
let timer = null, running = null;

function later() {
  clearTimeout(timer);
  timer = setTimeout(judge, PAUSE);
}

async function judge() {
  running?.abort();
  const asked = state.cards.filter((card) => card.text.trim());
  if (!state.file || !asked.length) return cards.show();
  running = new AbortController();
  const { signal } = running, texts = asked.map((card) => card.text);
  say("Scoring…");
  try {
    // Numbers first: they are ready sooner than words and regions.
    const ranked = await service.rank(texts, signal);
    asked.forEach((card, number) => take(card, ranked.scores[number], texts[number]));
    cards.show();
    const explained = await service.explain(texts, signal);
    asked.forEach((card, number) => { card.why = explained.explanations[number]; });
    say("");
    cards.show();
    scale();
    announce();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

function take(card, score, text) {
  card.before = card.stale ? card.score?.soft_msd ?? null : null;
  card.score = score;
  card.stale = false;
  if (card.why?.caption !== text) card.why = null;
}

function announce() {
  const best = inOrder()[0];
  if (best?.score && !best.score.error) tell(`Scored. Best: ${best.text}, Soft-MSD ${best.score.soft_msd.toFixed(3)}.`);
}

// The key at the top, with the ends of the scale that the words have now.
function scale() {
  const limit = state.cards.find((card) => card.why)?.why.look.word_limit;
  if (limit) $("key").title = `The scale of the words: −${limit.toPrecision(2)} to +${limit.toPrecision(2)} nats, white is 0`;
}

async function open(file, captions) {
  if (!file) return;
  running?.abort();
  try {
    state.bitmap = await createImageBitmap(file);
  } catch {
    state.bitmap = null;  // a format that this browser cannot show; the service may still read it
  }
  state.file = file;
  state.word = state.patch = state.chosen = null;
  if (captions) state.cards = captions.map(newCard);
  if (!state.cards.length) state.cards = [newCard("")];
  for (const card of state.cards) card.score = card.why = card.before = null;
  cards.show();
  judge();
}

async function sample(one) {
  const bytes = await (await fetch("samples/" + one.file)).blob();
  await open(new File([bytes], one.file, { type: "image/jpeg" }), one.captions);
}

function listen() {
  for (const button of document.querySelectorAll(".choose")) button.addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", (event) => { open(event.target.files[0]); event.target.value = ""; });
  for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file) open(file);
  });
  $("add").addEventListener("click", cards.add);
  $("token").addEventListener("change", async () => { state.version = await service.version(); judge(); });
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => exported(button.dataset.export));
}

async function start() {
  state.look = await (await fetch("assets/look.json")).json();
  draw.load(state.look);
  $("key-scale").style.background = draw.gradient("penalty", "support");
  $("signature").textContent = state.look.signature;
  listen();
  cards.whenEdited(later);
  rows.start(open);
  const samples = await (await fetch("samples/samples.json")).json();
  $("samples").append(...samples.map((one) => make("button", { type: "button", title: one.credit, onclick: () => sample(one) }, make("img", { src: "samples/" + one.file, alt: `Sample: ${one.name}` }))));
  await sample(samples[0]);
  state.version = await service.version();
}
start().catch((error) => say(error.message, true));
