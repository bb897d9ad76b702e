"use strict";
const $ = (id) => document.getElementById(id);
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const MAPS = { picture: "picture", support: "backs the caption", penalty: "speaks against it", omission: "left out by it" };
const KEYS = { support: "support_map", penalty: "penalty_map", omission: "coverage_terms" };
// What is on the page. `cards` keep their place while they are edited; their order on screen is that of their score.
const state = { file: null, bitmap: null, cards: [], map: "picture", word: null, chosen: null, next: 0, asked: 0, signature: "" };
let timer = null, running = null;

// ---- Asking the service ----
async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("token").value) headers.Authorization = "Bearer " + $("token").value;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const said = await answer.json().catch(() => ({ error: "the service answered " + answer.status }));
  if (answer.status === 401) $("token-label").hidden = false;
  if (!answer.ok) throw new Error(said.error || "the service answered " + answer.status);
  return said;
}

async function encoded(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(judge, 250);
}

async function judge() {
  const cards = state.cards.filter((card) => card.text.trim());
  if (!state.file || !cards.length) return;
  if (running) running.abort();
  running = new AbortController();
  const { signal } = running, turn = ++state.asked;
  say("Scoring…");
  try {
    const body = { image: await encoded(state.file), captions: cards.map((card) => card.text) };
    const ranked = await ask("v1/rank", body, signal);
    if (turn !== state.asked) return;
    // Numbers first: they are ready sooner than words and regions.
    cards.forEach((card, number) => { card.score = ranked.items[0].scores[number]; card.why = null; });
    show();
    const good = cards.filter((card) => !card.score.error);
    if (good.length) {
      const explained = await ask("v1/explain", { ...body, captions: good.map((card) => card.text) }, signal);
      if (turn !== state.asked) return;
      if (explained.items[0].error) throw new Error(explained.items[0].error);
      good.forEach((card, number) => { card.why = explained.items[0].explanations[number]; });
    }
    say("");
    show();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", wrong);
}

// ---- The picture ----
async function take(file, captions) {
  if (!file) return;
  try {
    state.bitmap = await createImageBitmap(file);
  } catch {
    state.bitmap = null;  // a format that this browser cannot show; the service may still read it
  }
  state.file = file;
  state.word = state.chosen = null;
  if (captions) state.cards = captions.map(card);
  if (!state.cards.length) state.cards = [card("")];
  for (const one of state.cards) one.score = one.why = null;
  show();
  later();
}

const extent = (why) => {
  const [left, top, right, bottom] = [0, 1, 2, 3].map((side) => why.boxes.map((box) => box[side]));
  const { width, height } = why.picture;
  return [Math.min(...left) / width, Math.min(...top) / height, Math.max(...right) / width, Math.max(...bottom) / height];
};

function mapOf(card) {
  if (!card || !card.why) return null;
  const shape = { rows: card.why.picture.rows, columns: card.why.picture.columns, extent: extent(card.why) };
  if (state.word && state.word.card === card) {
    const values = card.why.spreads[state.word.number];
    return values && { ...shape, role: "leaning", values, low: 0, high: Math.max(...values), title: `where “${card.why.words[state.word.number].text}” looks` };
  }
  if (state.map === "picture") return null;
  // One scale for the same map of all captions, so that they can be compared.
  const all = state.cards.filter((one) => one.why).flatMap((one) => one.why[KEYS[state.map]].flat());
  const low = state.map === "omission" ? Math.min(...all) : 0;
  return { ...shape, role: state.map, values: card.why[KEYS[state.map]].flat(), low, high: Math.max(...all), title: MAPS[state.map] };
}

function shown() {
  const compared = state.cards.filter((card) => card.compare && card.why);
  if (compared.length === 2) return compared;
  const ranked = order();
  return [state.word ? state.word.card : state.cards.find((card) => card.id === state.chosen) || ranked[0]].filter(Boolean);
}

function paint() {
  $("drop").classList.toggle("full", Boolean(state.file));
  $("empty").hidden = Boolean(state.file && state.bitmap);
  if (state.file && !state.bitmap) $("empty").textContent = "This browser cannot show the picture; it is scored all the same.";
  const figures = state.bitmap ? shown().map((card, place, all) => figure(card, all.length > 1)) : [];
  if (state.bitmap && !figures.length) figures.push(figure(null, false));
  $("stages").replaceChildren(...figures);
  legend();
}

function figure(card, named) {
  const share = Math.min(1, 720 / Math.max(state.bitmap.width, state.bitmap.height));
  const canvas = make("canvas", { width: Math.max(1, Math.round(state.bitmap.width * share)), height: Math.max(1, Math.round(state.bitmap.height * share)), role: "img" });
  const map = mapOf(card);
  canvas.setAttribute("aria-label", map ? `The picture, coloured: ${map.title}` : "The picture");
  Draw.tint(canvas, state.bitmap, map);
  if (card) {
    canvas.addEventListener("mousemove", (event) => over(card, canvas, event));
    canvas.addEventListener("mouseleave", () => lit(card, []));
  }
  return make("figure", {}, canvas, named ? make("figcaption", {}, card.text) : null);
}

// The words that a region is told by: those whose attention to this patch is well above an even spread.
function over(card, canvas, event) {
  if (!card.why || state.word) return;
  const box = canvas.getBoundingClientRect(), [left, top, right, bottom] = extent(card.why);
  const { rows, columns } = card.why.picture;
  const column = Math.floor((((event.clientX - box.left) / box.width - left) / (right - left)) * columns);
  const row = Math.floor((((event.clientY - box.top) / box.height - top) / (bottom - top)) * rows);
  if (column < 0 || row < 0 || column >= columns || row >= rows) return lit(card, []);
  const patch = row * columns + column;
  lit(card, card.why.spreads.map((spread, number) => (spread && spread[patch] > 2 / (rows * columns) ? number : -1)).filter((number) => number >= 0));
}

function lit(card, numbers) {
  for (const word of document.querySelectorAll(`[data-card="${card.id}"] .w`)) word.classList.toggle("on", numbers.includes(Number(word.dataset.word)));
}

function legend() {
  const card = shown()[0], map = mapOf(card);
  if (!map) return $("legend").replaceChildren(state.file ? "Point at a word to see where it looks, at the picture to see which words tell of it." : "");
  const bar = make("canvas", { "aria-hidden": "true" });
  Draw.legend(bar, map.role);
  const unit = map.role === "leaning" ? (value) => `${(100 * value).toFixed(1)} %` : (value) => `${value.toPrecision(2)} nats`;
  $("legend").replaceChildren(`${map.title}: ${unit(map.low)}`, bar, unit(map.high));
}

function maps() {
  const names = Object.entries(MAPS);
  $("maps").replaceChildren(...names.map(([name, title], place) => make("button", {
    type: "button", role: "radio", "aria-checked": String(state.map === name), tabindex: state.map === name ? 0 : -1, "data-map": name,
    onclick: () => pick(name),
    onkeydown: (event) => {
      const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      pick(names[(place + way + names.length) % names.length][0]);
      $("maps").querySelector("[aria-checked=true]").focus();
    },
  }, title)));
}

function pick(name) {
  state.map = name;
  state.word = null;
  maps();
  paint();
}

// ---- Captions ----
const card = (text) => ({ id: state.next++, text, score: null, why: null, compare: false });
const value = (one) => (one.score && one.score.soft_msd !== null && one.score.soft_msd !== undefined ? one.score.soft_msd : -Infinity);
const order = () => [...state.cards].sort((a, b) => value(b) - value(a) || a.id - b.id);

function gapLimit() {
  const gaps = state.cards.filter((one) => one.why).flatMap((one) => one.why.words.filter((word) => word.content && word.gap !== null).map((word) => Math.abs(word.gap)));
  return Math.max(...gaps, 0);
}

function wordsOf(one, limit) {
  const place = make("div", { class: "words" });
  if (!one.why) { place.append(one.text); return place; }
  let end = 0;
  one.why.words.forEach((word, number) => {
    place.append(one.text.slice(end, word.start));
    end = word.end;
    if (word.gap === null) { place.append(make("span", { class: "none w", title: "not judged" }, word.text)); return; }
    const paintIt = word.content ? Draw.wordColour(word.gap, limit) : null;
    const judged = word.gap > 0 ? "not supported" : "supported";
    const node = make("span", {
      class: word.content ? "w" : "w none", tabindex: 0, role: "button", "data-word": number,
      "aria-label": `${word.text}: ${word.content ? judged : "not judged"}, ${word.gap.toFixed(2)} nats`, title: `${word.gap > 0 ? "+" : ""}${word.gap.toFixed(2)} nats: ${word.content ? judged : "not judged"}`,
      onmouseenter: () => look(one, number), onmouseleave: () => look(null), onfocus: () => look(one, number), onblur: () => look(null),
    }, word.text);
    if (paintIt) { node.style.background = paintIt.back; node.style.color = paintIt.ink; }
    place.append(node);
  });
  place.append(one.text.slice(end));
  return place;
}

function look(one, number) {
  state.word = one ? { card: one, number } : null;
  paint();
}

function bars(one) {
  const score = one.score, rows = [];
  const scored = state.cards.filter((other) => other.score && !other.score.error);
  const bar = (name, shown, sign, role, meaning) => {
    if (shown === null || shown === undefined) return;
    const most = Math.max(...scored.map((other) => Math.abs(other.score[name] ?? 0)), 1e-9);
    const wide = (50 * Math.abs(shown)) / most, good = sign * shown >= 0;
    const fill = make("i");
    fill.style.left = shown < 0 ? `${50 - wide}%` : "50%";
    fill.style.width = `${wide}%`;
    fill.style.background = Draw.colour(good ? "support" : role, 0.9);
    rows.push(make("span", { title: meaning }, name), make("span", { class: "track", "aria-hidden": "true" }, fill, make("u")), make("output", {}, shown.toFixed(3)));
  };
  bar("similarity", score.similarity, 1, "penalty", "higher is better");
  bar("coverage", score.coverage, -1, "omission", "what is left out: lower is better");
  bar("support", score.support, -1, "penalty", "what is invented: lower is better");
  bar("information", score.information, 1, "penalty", "how much is told: higher is better");
  bar("uncertainty", score.uncertainty, 1, "leaning", "how little the similarities decide");
  return make("div", { class: "bars" }, ...rows);
}

function cardNode(one, place, limit) {
  const score = one.score, failed = score && score.error;
  const head = score && !failed ? (score.match !== null && score.match !== undefined
    ? make("div", { class: "match" }, make("b", {}, `${Math.round(100 * score.match)} %`), make("small", {}, `match · ${score.soft_msd.toFixed(3)}`))
    : make("div", { class: "match" }, make("b", {}, score.soft_msd.toFixed(3)), make("small", {}, "Soft-MSD"))) : null;
  const text = make("textarea", { rows: 1, "aria-label": `Caption ${place + 1}`, placeholder: "Type a caption", oninput: (event) => { one.text = event.target.value; one.score = one.why = null; later(); } });
  text.value = one.text;
  const node = make("li", { class: "card" + (place === 0 && score && !failed ? " best" : "") + (one.id === state.chosen ? " on" : ""), "data-card": one.id, onclick: (event) => { if (!event.target.closest("textarea,button,input,label")) { state.chosen = one.id; show(); } } },
    score && !failed ? make("div", { class: "top" }, make("span", { class: "place", "aria-label": `place ${place + 1}` }, String(place + 1)), wordsOf(one, limit), head) : null,
    score && !failed ? bars(one) : null,
    ...(score && score.warnings ? [].concat(score.warnings).filter(Boolean).map((text) => make("p", { class: "note" }, text)) : []),
    failed ? make("p", { class: "note" }, score.error) : null,
    make("div", { class: "row" }, text,
      make("label", {}, make("input", { type: "checkbox", checked: one.compare, onchange: (event) => compare(one, event.target.checked) }), " side by side"),
      make("button", { type: "button", class: "remove", "aria-label": `Remove caption ${place + 1}`, onclick: () => { state.cards = state.cards.filter((other) => other !== one); show(); later(); } }, "Remove")));
  return node;
}

function compare(one, on) {
  one.compare = on;
  const ticked = state.cards.filter((other) => other.compare);
  if (ticked.length > 2) ticked.find((other) => other !== one).compare = false;
  if (state.map === "picture") state.map = "penalty";
  maps();
  show();
}

function show() {
  const typing = document.activeElement && document.activeElement.tagName === "TEXTAREA" ? document.activeElement : null;
  const held = typing && { id: typing.closest("li").dataset.card, at: typing.selectionStart };
  const limit = gapLimit();
  $("captions").replaceChildren(...order().map((one, place) => cardNode(one, place, limit)));
  if (held) {
    const again = document.querySelector(`[data-card="${held.id}"] textarea`);
    if (again) { again.focus(); again.setSelectionRange(held.at, held.at); }
  }
  paint();
}

// ---- Start ----
async function sample(one) {
  const file = await (await fetch("samples/" + one.file)).blob();
  await take(new File([file], one.file, { type: "image/jpeg" }), one.captions);
}

async function start() {
  const look = await (await fetch("assets/look.json")).json();
  Draw.load(look);
  state.signature = look.signature;
  $("signature").textContent = look.signature;
  for (const role of ["support", "penalty"]) { $("key-" + role).style.background = Draw.colour(role, 0.7); $("key-" + role).style.color = Draw.ink(role, 0.7); }
  maps();
  const samples = await (await fetch("assets/samples.json")).json();
  $("samples").append(...samples.map((one) => make("button", { type: "button", title: one.credit, onclick: () => sample(one) }, make("img", { src: "samples/" + one.file, alt: `Sample: ${one.name}` }))));
  $("drop").addEventListener("click", () => { if (!state.file) $("file").click(); });
  $("drop").addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $("file").click(); } });
  $("drop").addEventListener("dblclick", () => $("file").click());
  $("file").addEventListener("change", (event) => take(event.target.files[0]));
  for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => { const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/")); if (file) take(file); });
  $("add").addEventListener("click", () => { const one = card(""); state.cards.push(one); show(); document.querySelector(`[data-card="${one.id}"] textarea`).focus(); });
  $("token").addEventListener("change", later);
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => Export[button.dataset.export](state, order(), shown()));
  Rows.start(take);
  await sample(samples[0]);
}
start().catch((error) => say(error.message, true));
