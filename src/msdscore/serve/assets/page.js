// The page: everything is drawn again from the state after each change; keyed nodes stay where they are.
import { html, render } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";
import * as draw from "./draw.js";
import { Cards, addCard } from "./cards.js";
import { ImageView } from "./image.js";
import { ScoredFile } from "./rows.js";
import { exported } from "./export.js";

const { state, changed, say } = store;
const EXPORTS = { png: "PNG", svg: "SVG", pdf: "PDF", html: "HTML", json: "JSON", python: "Python", page: "This page" };

function App() {
  const { message } = state;
  return html`<header>
      <h1><span class="name">msdscore</span> How well does a caption fit the image?</h1>
      <p id="key">
        <b>supported</b> <i style=${{ background: draw.gradient("penalty", "support") }} aria-hidden="true"></i> <b>not supported</b>
        <span class="none">grey: not judged</span>
      </p>
      <p id="what">
        Write what you see. The score needs no reference captions; colours show which words the image supports.
        ${state.look.signature.includes("enc:toy") && html` <b id="toy">This is the toy encoder: it knows colours and places alone.</b>`}
      </p>
    </header>
    <main>
      <${ImageView} />
      <section id="say" aria-label="Captions">
        <p id="status" role="status" class=${message?.wrong ? "error" : ""}>${message?.text ?? ""}</p>
        <p id="spoken" class="unseen" aria-live="polite">${state.spoken}</p>
        <${Cards} />
        <div class="tools">
          <button id="add" type="button" onClick=${addCard}>Add a caption</button>
          <span id="exports" role="group" aria-label="Export"
            >Export
            ${Object.entries(EXPORTS).map(
              ([kind, title]) => html`<button type="button" class="small" key=${kind} data-export=${kind} onClick=${() => exported(kind)}>${title}</button>`,
            )}
          </span>
        </div>
        <${How} />
        <${ScoredFile} />
      </section>
    </main>
    <footer><code id="signature">${state.look.signature}</code> <a href="docs">API</a> <${Token} /></footer>`;
}

function How() {
  return html`<details id="how">
    <summary>What the numbers mean</summary>
    <dl>
      <dt>match</dt><dd>The probability that the caption belongs to this image rather than to another one of its kind.</dd>
      <dt>the bar</dt><dd>The score MSD from zero: the similarity of image and caption as a whole, and what words and regions add or take.</dd>
      <dt>colours</dt><dd>Orange words are in doubt, blue ones are supported, white is neither. Grey words are not judged.</dd>
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
  return html`<label id="token-label">Token <input id="token" type="password" autocomplete="off" ref=${focus} onChange=${take} /></label>`;
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
      if (name === "drop" && event.dataTransfer.files[0]) store.open(event.dataTransfer.files[0]);
    });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file) store.open(file);
  });
  addEventListener("popstate", () => store.restore());
}

async function start() {
  state.look = await (await fetch("assets/look.json")).json();
  state.samples = await (await fetch("samples/samples.json")).json();
  draw.load(state.look);
  const root = document.getElementById("page");
  root.replaceChildren();
  store.onChange(() => render(html`<${App} />`, root));
  listen();
  changed();
  await store.restore();
  state.version = await service.version();
}

start().catch((error) => say(error.message, true));
