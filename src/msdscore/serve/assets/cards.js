// The captions: words in colour, the score and what it is made of as bars, and an editor for each.
import { $, inOrder, make, nats, newCard, say, signed, state } from "./state.js";
import { colour } from "./draw.js";
import { lookAt, paint } from "./picture.js";

let edited = () => {};
export const whenEdited = (call) => { edited = call; };

const BARS = [
  { name: "similarity", means: "how alike picture and caption are as a whole: higher is better" },
  { name: "coverage", gloss: "left out", role: "omission", means: "what the picture shows and the caption leaves out: lower is better" },
  { name: "support", gloss: "invented", role: "penalty", means: "what the caption says and the picture does not support: lower is better" },
  { name: "information", role: "leaning", below: "penalty", means: "how much the caption tells about this picture: higher is better, below zero it is false" },
  { name: "uncertainty", means: "how little the similarities decide among these captions: 1 not at all", whole: true },
];
const NEUTRAL = "var(--bar)";

export function show() {
  const typing = document.activeElement?.tagName === "TEXTAREA" ? document.activeElement : null;
  const held = typing && { id: typing.closest("li").dataset.card, from: typing.selectionStart, to: typing.selectionEnd };
  $("captions").replaceChildren(...inOrder().map(cardNode));
  const again = held && document.querySelector(`[data-card="${held.id}"] textarea`);
  if (again) { again.focus(); again.setSelectionRange(held.from, held.to); }
  paint();
  requestAnimationFrame(() => { for (const fill of document.querySelectorAll(".track i")) { fill.style.left = fill.dataset.left; fill.style.width = fill.dataset.width; } });
}

function cardNode(card, place) {
  const score = card.score && !card.score.error ? card.score : null;
  const kinds = ["card", place === 0 && score && state.cards.length > 1 ? "best" : "", card.id === state.chosen ? "on" : "", card.stale ? "stale" : ""];
  return make("li", { class: kinds.filter(Boolean).join(" "), "data-card": card.id },
    make("div", { class: "top" }, number(card, place), wordsOf(card, place), score ? headline(card) : null),
    card.editing ? editor(card, place) : null,
    score ? bars(card, place) : null,
    ...(score ? notes(score) : []),
    card.score?.error ? make("p", { class: "note" }, card.score.error) : null,
    score ? sum(card) : does(card, place));
}

function number(card, place) {
  return make("button", { type: "button", class: "place", "aria-pressed": String(state.chosen === card.id), "aria-label": `Caption ${place + 1}: show its maps`, title: "Show the maps of this caption", onclick: () => { state.chosen = state.chosen === card.id ? null : card.id; show(); document.querySelector(`[data-card="${card.id}"] .place`).focus(); } }, String(place + 1));
}

function headline(card) {
  const { match, soft_msd: soft } = card.score, known = match !== null && match !== undefined;
  const moved = card.before === null ? 0 : soft - card.before;
  const change = Math.abs(moved) < 0.0005 ? null : make("small", { class: "moved" }, `${moved > 0 ? "▲ +" : "▼ −"}${Math.abs(moved).toFixed(3)}`);
  return make("div", { class: "match" }, make("b", {}, known ? `${Math.round(100 * match)} %` : signed(soft)), make("small", {}, known ? "match" : "Soft-MSD"), known ? make("small", {}, `Soft-MSD ${signed(soft)}`) : null, change);
}

function wordsOf(card, place) {
  const box = make("div", { class: "words", dir: "auto", ondblclick: () => edit(card) });
  if (!card.why) { box.append(card.text || "New caption"); return box; }
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `Words of caption ${place + 1}; arrow keys go from word to word`);
  let end = 0;
  card.why.words.forEach((word, at) => {
    box.append(card.why.caption.slice(end, word.start), wordNode(card, word, at));
    end = word.end;
  });
  box.append(card.why.caption.slice(end));
  const first = box.querySelector("[role=button]");
  if (first) first.tabIndex = 0;
  return box;
}

function wordNode(card, word, at) {
  const look = card.why.look.words[at];
  if (!card.why.look.spreads[at]) return make("span", { class: "w none", "data-word": at }, word.text);
  const judged = !look.judged ? "not judged" : word.gap > 0 ? `not supported, ${nats(word.gap)}` : `supported, ${nats(word.gap)}`;
  const node = make("span", {
    class: look.judged ? "w" : "w none", role: "button", tabindex: -1, "data-word": at, "aria-label": `${word.text}: ${judged}`, title: judged,
    onmouseenter: () => lookAt(card, at), onmouseleave: () => lookAt(null), onfocus: () => lookAt(card, at), onblur: () => lookAt(null),
    onclick: () => node.focus(), onkeydown: (event) => toNext(event, node),
  }, word.text);
  if (look.back) { node.style.background = look.back; node.style.color = look.ink; }
  return node;
}

function toNext(event, node) {
  const all = [...node.parentElement.querySelectorAll("[role=button]")], at = all.indexOf(node);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined || !all[next]) return;
  event.preventDefault();
  for (const one of all) one.tabIndex = one === all[next] ? 0 : -1;
  all[next].focus();
}

// Bars reach from zero in the middle; the longest of any caption on the page fills its half.
function bars(card, place) {
  const scored = state.cards.filter((other) => other.score && !other.score.error);
  const parts = [];
  for (const { name, gloss, role, below = "support", means, whole } of BARS) {
    const value = card.score[name];
    if (value === null || value === undefined) continue;
    const most = whole ? 1 : Math.max(...scored.map((other) => Math.abs(other.score[name] ?? 0)), 1e-9);
    const wide = (whole ? 100 : 50) * Math.abs(value) / most, counts = name !== "coverage" || card.score.beta > 0;
    const fill = make("i", { "data-left": whole ? "0%" : value < 0 ? `${50 - wide}%` : "50%", "data-width": `${wide}%` });
    const old = card.bars?.[name];
    [fill.style.left, fill.style.width] = old ?? [fill.dataset.left, fill.dataset.width];
    card.bars = { ...card.bars, [name]: [fill.dataset.left, fill.dataset.width] };
    fill.style.background = role ? colour(value > 0 ? role : below, 0.9) : NEUTRAL;
    parts.push(make("div", { class: counts ? "bar" : "bar faint", title: counts ? means : `${means}. It has no weight in this score.` },
      make("span", {}, name, gloss ? make("small", {}, ` ${gloss}`) : null),
      make("span", { class: whole ? "track whole" : "track", "aria-hidden": "true" }, fill), make("output", {}, signed(value))));
  }
  return make("div", { class: "bars" }, ...parts, does(card, place));
}

// The score as the similarity and what regions and words take from it or add to it.
function sum(card) {
  if (!card.why) return null;
  const parts = card.why.look.sum.map(({ name, size }) => ` ${size < 0 ? "−" : "+"} ${name} ${Math.abs(size).toFixed(3)}`);
  return make("p", { class: "sum" }, `${signed(card.why.score.soft_msd)} = similarity ${signed(card.why.score.similarity)}${parts.join("")}`);
}

const notes = (score) => [].concat(score.warnings ?? []).filter(Boolean).map((text) => make("p", { class: "note" }, text));

function does(card, place) {
  return make("div", { class: "does" },
    make("button", { type: "button", class: "small", "aria-label": `Edit caption ${place + 1}`, "aria-expanded": String(card.editing), onclick: () => edit(card, !card.editing) }, card.editing ? "Done" : "Edit"),
    make("label", { class: "small" }, make("input", { type: "checkbox", checked: card.compare, onchange: (event) => compare(card, event.target.checked) }), " side by side", make("span", { class: "unseen" }, `: caption ${place + 1}`)),
    make("button", { type: "button", class: "small", "aria-label": `Remove caption ${place + 1}`, onclick: () => remove(card) }, "Remove"));
}

function editor(card, place) {
  const text = make("textarea", {
    rows: 2, "aria-label": `Text of caption ${place + 1}`, placeholder: "Type what you see in the picture", dir: "auto", spellcheck: "true",
    oninput: (event) => { card.text = event.target.value; card.stale = true; event.target.closest("li").classList.add("stale"); edited(); },
    onkeydown: (event) => { if (event.key === "Escape") edit(card, false); },
  });
  text.value = card.text;
  return text;
}

export function edit(card, on = true) {
  card.editing = on;
  show();
  const place = document.querySelector(`[data-card="${card.id}"] ${on ? "textarea" : "[aria-expanded]"}`);
  place.focus();
  if (on) place.setSelectionRange(card.text.length, card.text.length);
}

export function add() {
  const card = newCard("");
  state.cards.push(card);
  edit(card);
}

function remove(card) {
  state.cards = state.cards.filter((other) => other !== card);
  if (state.chosen === card.id) state.chosen = null;
  show();
  $("add").focus();
  edited();
}

function compare(card, on) {
  card.compare = on;
  const ticked = state.cards.filter((other) => other.compare);
  if (ticked.length > 2) ticked.find((other) => other !== card).compare = false;
  if (ticked.length === 1 && on) say("Tick a second caption to see both side by side.");
  else say("");
  if (ticked.length >= 2 && state.map === "picture") state.map = "penalty";
  show();
  document.querySelector(`[data-card="${card.id}"] input[type=checkbox]`).focus();
}
