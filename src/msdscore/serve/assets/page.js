// The page: everything is drawn again from the state after each change; keyed nodes stay where they are.
import { html, render } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";
import * as draw from "./draw.js";
import { Cards, addCard } from "./cards.js";
import { ImageView } from "./image.js";
import { ScoredFile, openRows } from "./rows.js";
import { exported } from "./export.js";

const { state, changed, say } = store;
const EXPORTS = { png: "PNG", svg: "SVG", pdf: "PDF", html: "HTML", json: "JSON", python: "Python", page: "This page" };

function App() {
  const { message, view } = state;
  return html`<header>
      <h1><span class="name">msdscore</span> How well does a caption fit the image?</h1>
      <nav aria-label="Views">
        <button type="button" id="to-image" aria-current=${view === "image" ? "page" : "false"} onClick=${viewImage}>
          An image
        </button>
        <button type="button" id="to-file" aria-current=${view === "file" ? "page" : "false"} onClick=${store.viewFile}>
          A scored file
        </button>
      </nav>
      <p id="what" hidden=${view !== "image"}>
        Write what you see. The score needs no reference captions; colours show which words the image supports.
      </p>
      ${state.look.signature.includes("enc:toy") && html`<b id="toy">${TOY}</b>`}
    </header>
    <main hidden=${view !== "image"}>
      <${ImageView} />
      <section id="say" aria-label="Captions">
        <${Key} />
        <p id="spoken" class="unseen" aria-live="polite">${state.spoken}</p>
        <${Cards} />
        <div class="tools">
          <button id="add" type="button" onClick=${addCard}>Add a caption</button>
          <${Exports} />
        </div>
        <${How} />
      </section>
    </main>
    <${ScoredFile} hidden=${view !== "file"} />
    <footer><code id="signature">${state.look.signature}</code> <a href="docs">API</a> <${Token} /></footer>
    <p id="status" role="status" class=${message?.wrong ? "error" : ""}>${message?.text ?? ""}</p>`;
}

const TOY = "This is the toy encoder: it knows colours and places alone.";

function viewImage() {
  if (state.view === "file") history.back();
}

function Key() {
  const style = {
    "--back": draw.gradient("penalty", "support"),
    "--dark-back": draw.gradient("penalty", "support", "dark_ramps"),
  };
  return html`<p id="key">
    supported <i class="tinted" style=${style} aria-hidden="true"></i> not supported
    <span class="none">grey: not judged</span>
  </p>`;
}

function Exports() {
  const button = ([kind, title]) =>
    html`<button type="button" class="small" key=${kind} data-export=${kind} onClick=${() => exported(kind)}>
      ${title}
    </button>`;
  return html`<details id="exports">
    <summary>Export</summary>
    ${Object.entries(EXPORTS).map(button)}
  </details>`;
}

const MEANINGS = {
  match: "The probability that the caption belongs to this image rather than to another one of its kind.",
  "the bar":
    "The score MSD from zero: the similarity of image and caption as a whole, and what words and regions add or take.",
  colours: "Orange words are in doubt, blue ones are supported, plain ones neither. Grey words are not judged.",
};

function How() {
  return html`<details id="how">
    <summary>What the numbers mean</summary>
    <dl>
      ${Object.entries(MEANINGS).map(([name, text]) => html`<dt key=${name}>${name}</dt><dd>${text}</dd>`)}
    </dl>
  </details>`;
}

function Token() {
  if (!state.token.wanted) return null;
  const take = async (event) => {
    state.token.value = event.target.value;
    state.version = await service.version().catch(() => null);
    store.score();
  };
  const focus = (node) => node && !state.token.value && node.focus();
  return html`<label id="token-label"
    >Token <input id="token" type="password" autocomplete="off" ref=${focus} onChange=${take}
  /></label>`;
}

const ROWS = /\.(parquet|jsonl|ndjson|json|csv|tsv)$/i;

// A file that was dropped or pasted: an image, or a scored file.
function openAny(file) {
  if (!file) return;
  if (!ROWS.test(file.name)) return store.open(file);
  store.viewFile();
  openRows(file);
}

function listen() {
  document.getElementById("file").addEventListener("change", (event) => {
    store.open(event.target.files[0]);
    event.target.value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"])
    document.addEventListener(name, (event) => {
      event.preventDefault();
      document.getElementById("drop").classList.toggle("over", name === "dragover");
      if (name === "drop") openAny(event.dataTransfer.files[0]);
    });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) store.open(file);
  });
  addEventListener("popstate", () => store.restore());
  store.watchPointer();
}

// Cards that change places keep the focus: a node that is moved would lose it.
function drawOn(root) {
  const { activeElement } = document;
  render(html`<${App} />`, root);
  if (activeElement?.isConnected && document.activeElement !== activeElement)
    activeElement.focus({ preventScroll: true });
}

async function start() {
  state.look = await (await fetch("assets/look.json")).json();
  state.samples = await (await fetch("samples/samples.json")).json();
  draw.load(state.look);
  const root = document.getElementById("page");
  root.replaceChildren();
  store.onChange(() => drawOn(root));
  listen();
  changed();
  if (location.hash === "#file") history.replaceState(null, "", "#"); // its file is gone with the reload
  await store.restore();
  state.version = await service.version();
}

start().catch((error) => say(error.message, true));
