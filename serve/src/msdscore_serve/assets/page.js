// The page: rendered from the state after each change; keyed nodes are reused.
import { html, render, useEffect, useRef } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";
import * as draw from "./draw.js";
import { Cards, NO_ADDRESS, addCard } from "./cards.js";
import { ImageView } from "./image.js";
import { isTable } from "./table.js";
import { FileView } from "./many.js";
import { isLost, openFiles, rememberRows, restoreRows } from "./rows.js";
import { MOST_DRAWN, exported } from "./export.js";
import { About, Footer } from "./about.js";
import { Share } from "./share.js";
import { Story } from "./story.js";

const { state, changed, say } = store;
const EXPORTS = { png: "PNG", svg: "SVG", pdf: "PDF", html: "HTML", json: "JSON", python: "Python", page: "This page" };

function App() {
  const { view } = state;
  return html`<a id="skip" href="#say" onClick=${skip}>Skip to the captions</a>
    <header>
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
          ${state.image && !state.image.sample && state.captions.length < 2 && html`<p class="small tip">${TIP}</p>`}
          <${Story} />
          <details id="references" open=${Boolean(state.references)}>
            <summary>References</summary>
            <label for="reference-lines">Human captions of this image, one per line; they add Ref-MSD.</label>
            ${state.references.trim() && html`<p class="small" id="judged-with">${JUDGED_WITH}</p>`}
            <textarea
              id="reference-lines"
              rows="4"
              value=${state.references}
              onInput=${(event) => store.refer(event.target.value)}
            ></textarea>
          </details>
        </section>
      </div>
      <${FileView} hidden=${view !== "file"} />
    </main>
    <${Footer}><${Token} /></${Footer}>
    <${About} />
    <${Share} />
    <${Message} />`;
}

function skip(event) {
  event.preventDefault(); // the address contains the state of the page
  const main = state.view === "image" ? "#captions textarea" : "#scored :is(button, input)";
  document.querySelector(main)?.focus();
}

const TIP = "Enter adds another caption; pasted lines become one caption each. The best comes first.";
const JUDGED_WITH =
  "Words are now judged by the image and by these references together: a false reference can hide a wrong word.";
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
  const chip = ([name, back, text, darkBack, darkText]) => {
    const style = { "--back": back, "--text": text, "--dark-back": darkBack, "--dark-text": darkText };
    const kind = back === state.look.ramps.support[0] ? "chip plain tinted" : "chip tinted";
    return html`<span class=${kind} key=${name} style=${style}>${name}</span>`;
  };
  return html`<p id="key">${state.look.key.map(chip)} <span class="none">grey: not judged</span></p>`;
}

function Exports() {
  const button = ([kind, title]) =>
    html`<button type="button" class="small" key=${kind} data-export=${kind} onClick=${() => exported(kind)}>
      ${title}
    </button>`;
  const count = state.captions.length;
  const most = state.look.limits.max_captions;
  const text = `PNG, SVG and PDF show the first ${MOST_DRAWN} captions, or the two compared`;
  const limit = count > most ? `${text}; HTML and JSON the first ${most}.` : `${text}.`;
  return html`<details id="exports">
    <summary>Export</summary>
    ${Object.entries(EXPORTS).map(button)}
    ${count > MOST_DRAWN && html`<p class="small">${limit}</p>`}
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

// Open chosen or dropped files: an image, or images with their captions, or a file of rows.
function openAny(files) {
  const isOne = files.length === 1 && !isTable(files[0]);
  if (isOne) return store.open(files[0]);
  store.viewFile();
  openFiles(files);
}

function listen() {
  document.getElementById("file").addEventListener("change", (event) => {
    openAny([...event.target.files]);
    event.target.value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"])
    document.addEventListener(name, (event) => {
      const { types = [], files = [] } = event.dataTransfer ?? {};
      const isLink = types.includes("text/uri-list") && !types.includes("Files");
      if (!types.includes("Files") && !isLink) return; // text may be dragged into a caption
      event.preventDefault();
      document.body.classList.toggle("over", name === "dragover");
      if (name === "drop" && isLink) say(NO_ADDRESS, true);
      if (name === "drop" && files.length) openAny([...files]);
    });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) store.open(file);
  });
  addEventListener("popstate", () => store.restore());
  addEventListener("pagehide", () => {
    store.rememberNow();
    rememberRows();
  });
  addEventListener("beforeunload", (event) => isLost() && event.preventDefault());
  addEventListener("online", store.tryAgain);
  store.watchPointer();
}

// Render, and restore the focus: an element that is moved when cards are reordered loses it.
function drawOn(root) {
  const { activeElement } = document;
  render(html`<${App} />`, root);
  if (activeElement?.isConnected && document.activeElement === document.body)
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
  restoreRows();
  await store.restore();
  state.version = await service.version().catch(() => null);
}

start().catch((error) => say(error.message, true));
