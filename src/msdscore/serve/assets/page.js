// The page: rendered from the state after each change; keyed nodes are reused.
import { html, render, useEffect, useRef } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";
import * as draw from "./draw.js";
import { Cards, addCard } from "./cards.js";
import { ImageView } from "./image.js";
import { isImage } from "./images.js";
import { FileView, openImages, openRows } from "./rows.js";
import { cite, exported } from "./export.js";

const { state, changed, say } = store;
const EXPORTS = { png: "PNG", svg: "SVG", pdf: "PDF", html: "HTML", json: "JSON", python: "Python", page: "This page" };

function App() {
  const { view } = state;
  return html`<header>
      <h1><span class="name">msdscore</span> How well does a caption fit the image?</h1>
      <nav aria-label="Views">
        <button type="button" id="to-image" aria-current=${view === "image" ? "page" : "false"} onClick=${viewImage}>
          One image
        </button>
        <button type="button" id="to-file" aria-current=${view === "file" ? "page" : "false"} onClick=${store.viewFile}>
          Many images
        </button>
        <${Theme} />
      </nav>
      <p id="what" hidden=${view !== "image"}>
        Write what you see. The score needs no reference captions; colours show which words the image supports.
      </p>
      ${state.look.signature.includes("enc:toy") && html`<b id="toy">${TOY}</b>`}
    </header>
    <${Progress} />
    <main>
      <div id="one" hidden=${view !== "image"}>
        <${ImageView} />
        <section id="say" aria-label="Captions">
          <${Key} />
          <p id="spoken" class="unseen" aria-live="polite">${state.spoken}</p>
          <${Cards} />
          <div class="tools">
            <button id="add" type="button" onClick=${addCard}>Add a caption</button>
            <${Exports} />
          </div>
          <details id="references">
            <summary>References</summary>
            <label for="reference-lines">Human captions of this image, one per line; they add Ref-MSD.</label>
            <textarea
              id="reference-lines"
              rows="4"
              value=${state.references}
              onInput=${(event) => store.refer(event.target.value)}
            ></textarea>
          </details>
          <${How} />
        </section>
      </div>
      <${FileView} hidden=${view !== "file"} />
    </main>
    <footer>
      <button type="button" class="small" id="cite" onClick=${cite}>Cite</button>
      <a href="docs">API</a> <code id="signature">${state.look.signature}</code> <${Token} />
    </footer>
    <${Message} />`;
}

const TOY = "This is the toy encoder: it knows only colours and positions.";

// A progress bar at the top while the service is working.
function Progress() {
  const { working, opening } = state;
  const many = working?.total > 1;
  const width = many ? { width: `${Math.max(4, (100 * working.done) / working.total)}%` } : {};
  return html`<div id="progress" class=${working || opening ? "on" : ""}>
    <i class=${many ? "" : "unknown"} style=${width} aria-hidden="true"></i>
    <span>${many ? `${working.done} of ${working.total} scored` : ""}</span>
  </div>`;
}

function Message() {
  const { message } = state;
  return html`<p id="status" role="status" class=${message?.wrong ? "error" : ""}>
    ${message?.text ?? ""}${
      message?.action &&
      html` <button type="button" class="small" onClick=${message.action.run}>${message.action.title}</button>`
    }
  </p>`;
}

function viewImage() {
  if (state.view === "file") history.back();
}

// The colour scheme of the system, unless one was chosen here.
const THEME = "msdscore-theme";
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const dark = matchMedia("(prefers-color-scheme: dark)");

function Theme() {
  const other = isDark() ? "light" : "dark";
  const pick = () => {
    document.documentElement.dataset.theme = other;
    try {
      localStorage.setItem(THEME, other);
    } catch {
      // Without storage, the choice lasts until a reload.
    }
    changed();
  };
  const title = `Switch to ${other} colours`;
  return html`<button type="button" id="theme" title=${title} aria-label=${title} onClick=${pick}>
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z" />
    </svg>
  </button>`;
}

function applyTheme() {
  try {
    const theme = localStorage.getItem(THEME);
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage, the setting of the system is used.
  }
  dark.addEventListener("change", changed);
}

function Key() {
  const style = {
    "--back": draw.gradient("penalty", "support"),
    "--dark-back": draw.gradient("penalty", "support", "dark_ramps"),
  };
  return html`<p id="key">
    supported <i class="tinted" style=${style} aria-hidden="true"></i> likely wrong
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
  "good, doubtful, poor": "A match of at least 70 %, of at least 30 %, and below 30 %.",
  colours: "Orange words are likely wrong, blue ones are supported, plain ones neither. Grey words are not judged.",
  Σ: "The score MSD, which ranks captions, as a sum of its terms.",
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
  const field = useRef(null);
  useEffect(() => {
    if (state.needsToken && !service.hasToken()) field.current.focus();
  }, [state.needsToken]);
  if (!state.needsToken) return null;
  const take = async (event) => {
    event.preventDefault();
    service.useToken(document.getElementById("token").value);
    state.version = await service.version().catch(() => null);
    store.tryAgain();
  };
  return html`<form id="token-form" onSubmit=${take}>
    <label>Token <input id="token" type="password" autocomplete="off" ref=${field} /></label>
    <button type="submit" class="small">Use it</button>
  </form>`;
}

const ROWS = /\.(parquet|jsonl|ndjson|json|csv|tsv)$/i;

// Open chosen or dropped files: an image, several images, or a scored file.
function openAny(files) {
  const rows = files.find(({ name }) => ROWS.test(name));
  const images = files.filter(isImage);
  if (images.length > 1) {
    store.viewFile();
    return openImages(files);
  }
  if (!rows) return store.open(files[0]);
  store.viewFile();
  openRows(rows);
}

function listen() {
  document.getElementById("file").addEventListener("change", (event) => {
    openAny([...event.target.files]);
    event.target.value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"])
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // text may be dragged into a caption
      event.preventDefault();
      document.body.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) openAny([...event.dataTransfer.files]);
    });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) store.open(file);
  });
  addEventListener("popstate", () => store.restore());
  addEventListener("pagehide", store.rememberNow);
  addEventListener("online", store.tryAgain);
  store.watchPointer();
}

// Render, and restore the focus: an element that is moved when cards are reordered loses it.
function drawOn(root) {
  const { activeElement } = document;
  render(html`<${App} />`, root);
  if (activeElement?.isConnected && document.activeElement !== activeElement)
    activeElement.focus({ preventScroll: true });
}

async function start() {
  applyTheme();
  state.look = await service.look();
  state.samples = await service.samples();
  draw.load(state.look);
  const root = document.getElementById("page");
  root.replaceChildren();
  store.onChange(() => drawOn(root));
  listen();
  changed();
  if (location.hash === "#file") history.replaceState(null, "", "#"); // after a reload the file must be chosen again
  await store.restore();
  state.version = await service.version().catch(() => null);
}

start().catch((error) => say(error.message, true));
