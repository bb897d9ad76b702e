// The picture: its maps with their legend, where a word looks, and which words tell of a region.
import { $, make, shown, state, tell } from "./state.js";
import * as draw from "./draw.js";

const LONGEST = 720;
const MAPS = ["picture", "support", "penalty", "omission"];

const titleOf = (name) => (name === "picture" ? "picture" : shown()[0]?.why?.look.maps[name].title ?? state.look.titles[name]);

// What colours a picture: where a word looks, or the map that was picked.
function mapOf(card) {
  const look = card?.why?.look;
  if (!look) return null;
  if (state.word?.card === card) {
    const spread = look.spreads[state.word.number];
    if (!spread) return null;
    const high = Math.max(...spread);
    const text = card.why.words[state.word.number].text;
    return { role: "leaning", cells: look.cells, strength: spread.map((share) => share / high), title: `where “${text}” looks`, low: "0", high: `${(100 * high).toPrecision(2)} % of it` };
  }
  if (state.map === "picture") return null;
  const map = look.maps[state.map];
  return { role: state.map, cells: look.cells, strength: map.strength, title: map.title, low: map.low, high: map.high, below: map.below };
}

export function paint() {
  const cards = shown();
  $("empty").hidden = Boolean(state.bitmap);
  if (state.file && !state.bitmap) $("empty").textContent = cards[0]?.score?.error ?? "This browser cannot show the picture; it is scored all the same.";
  const wanted = state.bitmap ? (cards.length ? cards : [null]) : [];
  // Pictures that stay are drawn anew in place: they keep the focus and the mouse.
  const old = [...$("stages").children];
  if (old.length !== wanted.length || wanted.some((card, place) => old[place].card !== card)) $("stages").replaceChildren(...wanted.map(figure));
  wanted.forEach((card, place) => redraw($("stages").children[place], card, wanted.length > 1));
  tabs();
  legend(cards[0]);
}

function redraw(node, card, paired) {
  const [canvas, caption] = node.children, map = mapOf(card), cells = card?.why?.look.cells;
  const share = Math.min(1, LONGEST / Math.max(state.bitmap.width, state.bitmap.height));
  canvas.width = Math.max(1, Math.round(state.bitmap.width * share));
  canvas.height = Math.max(1, Math.round(state.bitmap.height * share));
  canvas.ariaLabel = `The picture${map ? `, coloured: ${map.title}` : ""}${cells ? ". Arrow keys walk over its regions." : ""}`;
  canvas.tabIndex = cells ? 0 : -1;
  draw.tint(canvas, state.bitmap, map);
  if (cells && state.patch?.card === card) draw.frame(canvas, cells, state.patch.number);
  caption.textContent = card?.text ?? "";
  caption.hidden = !card || !(paired || state.map !== "picture");
}

function figure(card) {
  const canvas = make("canvas", { role: "img" }), node = make("figure", {}, canvas, make("figcaption", { dir: "auto" }));
  node.card = card;
  if (!card) return node;
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect(), cells = card.why?.look.cells;
    if (cells) walk(card, draw.patchAt(cells, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height));
  });
  for (const name of ["mouseleave", "blur"]) canvas.addEventListener(name, () => walk(card, -1));
  canvas.addEventListener("keydown", (event) => { if (card.why) step(card, event); });
  return node;
}

function step(card, event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!way) return;
  event.preventDefault();
  const { columns, rows } = card.why.look.cells, wide = columns.length, high = rows.length;
  const at = state.patch?.card === card ? state.patch.number : Math.floor(high / 2) * wide + Math.floor(wide / 2);
  const column = Math.min(wide - 1, Math.max(0, (at % wide) + way[0])), row = Math.min(high - 1, Math.max(0, Math.floor(at / wide) + way[1]));
  walk(card, row * wide + column);
}

// Show which words tell of a region; −1 is none.
function walk(card, number) {
  const now = state.patch?.card === card ? state.patch.number : -1;
  if (now === number || state.word || !card.why) return;
  state.patch = number < 0 ? null : { card, number };
  const told = number < 0 ? [] : card.why.look.told_by[number];
  for (const word of document.querySelectorAll(`[data-card="${card.id}"] .w`)) word.classList.toggle("on", told.includes(Number(word.dataset.word)));
  paint();
  if (number < 0) return;
  const words = told.map((place) => card.why.words[place].text);
  const said = words.length ? `This region is told by: ${words.join(", ")}` : "No word tells of this region in particular.";
  $("legend").replaceChildren(said);
  tell(said);
}

function legend(card) {
  const map = mapOf(card);
  if (!map) return $("legend").replaceChildren(state.file ? "Point at a word to see where it looks, at the picture to see which words tell of it." : "");
  const bar = make("i", { "aria-hidden": "true" });
  bar.style.background = draw.gradient(map.role, map.below);
  $("legend").replaceChildren(make("b", {}, map.title), ` ${map.low}`, bar, map.high);
}

function tabs() {
  if (!$("maps").children.length) $("maps").append(...MAPS.map(tab));
  for (const button of $("maps").children) {
    const on = button.dataset.map === state.map;
    button.ariaChecked = String(on);
    button.tabIndex = on ? 0 : -1;
    button.textContent = titleOf(button.dataset.map);
  }
}

function tab(name, place) {
  return make("button", {
    type: "button", role: "radio", "data-map": name, onclick: () => pick(name),
    onkeydown: (event) => {
      const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const next = MAPS[(place + way + MAPS.length) % MAPS.length];
      pick(next);
      $("maps").querySelector(`[data-map=${next}]`).focus();
    },
  });
}

function pick(name) {
  state.map = name;
  state.word = state.patch = null;
  paint();
}

export function lookAt(card, number) {
  state.word = card ? { card, number } : null;
  state.patch = null;
  paint();
}
