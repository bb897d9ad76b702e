// What is on the page, and the few functions that every part of it needs.
export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Cards keep their identity while they are edited; their order on the screen is that of their score.
export const state = {
  file: null, bitmap: null, cards: [], map: "picture", word: null, patch: null, chosen: null,
  look: null, version: null, next: 0,
};

export const newCard = (text) => ({
  id: state.next++, text, score: null, why: null, compare: false, editing: !text.trim(), before: null, stale: false,
});

const valueOf = (card) => card.score?.soft_msd ?? -Infinity;
// A caption that is being typed keeps its place until its score is there.
export const inOrder = () => [...state.cards].sort((a, b) => valueOf(b) - valueOf(a) || a.id - b.id);

// The captions whose maps are shown: two side by side, or the one that is pointed at, chosen or best.
export function shown() {
  const compared = inOrder().filter((card) => card.compare && card.why);
  if (compared.length === 2) return compared;
  const one = state.word?.card ?? state.cards.find((card) => card.id === state.chosen) ?? inOrder()[0];
  return one ? [one] : [];
}

export function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", wrong);
}

// Said to those who hear the page; what they see says it in another way.
export const tell = (text) => { $("spoken").textContent = text; };

export const signed = (value) => value.toFixed(3).replace("-", "−");
export const nats = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)} nats`;
