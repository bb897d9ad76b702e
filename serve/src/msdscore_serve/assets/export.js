// Exports: figures drawn by the service, a Python script that reproduces the numbers, and the page as one file.
import * as store from "./store.js";
import { figure } from "./service.js";

const { state, say, signed } = store;

export function save(name, content, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const base = () => state.image.file.name.replace(/\.[^.]*$/, "") || "image";
const good = () => store.inOrder().filter(store.isCurrent);

export const MOST_DRAWN = 12; // captions of a figure: each takes up to a second, and a page has room for few

// The captions of an export: the two that are compared, else as many of the best ones as it can show.
function chosen(kind) {
  const compared = good().filter((caption) => state.compared.includes(caption.id));
  const most = ["html", "json"].includes(kind) ? state.look.limits.max_captions : MOST_DRAWN;
  return (compared.length === 2 ? compared : good()).slice(0, most).map((caption) => caption.text);
}

export async function exported(kind) {
  if (!state.image || !good().length)
    return say("There is nothing to export yet: choose an image and describe it.", true);
  if (kind === "python") return save(`${base()}.py`, script(), "text/x-python");
  if (kind === "page") return save(`${base()}.page.html`, await page(), "text/html");
  const captions = chosen(kind);
  const run = new AbortController();
  const started = performance.now();
  const progress = () => {
    const seconds = Math.round((performance.now() - started) / 1000);
    const count = captions.length > 1 ? `${captions.length} captions` : "one caption";
    const left = captions.length < good().length ? ` of ${good().length}` : "";
    const text = `Drawing the ${kind.toUpperCase()} of ${count}${left}… ${seconds ? `${seconds} s` : ""}`;
    say(text, false, { title: "Cancel", run: () => run.abort() });
  };
  progress();
  const clock = setInterval(progress, 1000);
  try {
    const drawn = kind === "png" && OTHER.test(captions.join()) ? rasterised : figure;
    save(`${base()}.${kind}`, await drawn(state.image, kind, captions, run.signal));
    say("");
  } catch (error) {
    say(error.name === "AbortError" ? "" : error.message, true);
  } finally {
    clearInterval(clock);
  }
}

// Characters other than Latin, Greek and Cyrillic, for which the server may lack a font; the browser draws them.
const OTHER = /[\u0530-\u1dff\u2070-\uffff]/;
const SHARPER = 3; // pixels per point

async function rasterised(image, kind, captions, signal) {
  const url = URL.createObjectURL(await figure(image, "svg", captions, signal));
  try {
    const drawing = new Image();
    drawing.src = url;
    await drawing.decode();
    const canvas = new OffscreenCanvas(SHARPER * drawing.naturalWidth, SHARPER * drawing.naturalHeight);
    canvas.getContext("2d").drawImage(drawing, 0, 0, canvas.width, canvas.height);
    return await canvas.convertToBlob({ type: "image/png" });
  } finally {
    URL.revokeObjectURL(url);
  }
}

// A citation of the software with its version and signature.
export async function cite() {
  const { version, signature } = state.look;
  const text = `@article{msdscore-paper,
  title  = {{MSD-Score}: Multi-Scale Distributional Scoring for Reference-Free Image Caption Evaluation},
  author = {Kan, Shichao and Zhang, Xuyang and Zhang, Haojie and Zhu, Zhe and Cen, Yigang and Liang, Yixiong and
            Shan, Lianlei and Zhang, Linna and Qu, Zhe and Xia, Jiazhi}
}
@software{msdscore,
  title   = {msdscore: judging image captions without references},
  author  = {{The msdscore developers}},
  version = {${version}},
  note    = {${signature}}
}`;
  try {
    await navigator.clipboard.writeText(text);
    say("Copied: a BibTeX entry with the version and the signature of these numbers.", false, close);
  } catch {
    say(text, false, close);
  }
}
const close = { title: "Close", run: () => say("") };

// Any text as a Python literal in ASCII: no name or caption can end it or change the encoding of the file.
export function quoted(text) {
  const escape = (char) => {
    const code = char.codePointAt(0);
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  };
  return JSON.stringify(text).replace(/[^\x20-\x7e]/gu, escape);
}

// User text appears only in literals, and not in the first two lines, where Python looks for an encoding.
function script() {
  const captions = good();
  const scorer = state.version?.scorer ?? "Scorer()";
  const names = scorer.includes("ScorerSpec") ? "Scorer, ScorerSpec" : "Scorer";
  const close = state.image.sent === state.image.file ? "1e-3" : "0.1"; // the service has scored a smaller copy
  return `# Recomputes the numbers of the page; the image must be next to this file.
from msdscore import ${names}

image = ${quoted(state.image.file.name)}
scorer = ${scorer}
captions = [
${captions.map((caption) => `    ${quoted(caption.text)},`).join("\n")}
]
expected = [${captions.map((caption) => caption.result.score.msd).join(", ")}]
scores = [scorer.score(image, caption) for caption in captions]
for caption, score in zip(captions, scores):
    print(caption, score, sep="\\n  ")
assert scores[0].signature == ${quoted(state.look.signature)}, "other settings, weights or version than the page"
assert max(abs(a.msd - b) for a, b in zip(scores, expected)) < ${close}, "another image than on the page?"
`;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => String(text).replace(/[&<>"]/g, (char) => ENTITIES[char]);

const STYLE = `:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:1rem auto;
padding:0 1rem}img{max-width:100%;max-height:60vh}.t{font-size:1.2rem}.t span{border-radius:4px}.t .none{opacity:.6}
h1{font-size:1.1rem}
section{border-top:1px solid #8888}td,th{text-align:left;padding-right:1rem;font-weight:400}strong{font-size:1.4rem}
footer{font-size:.8rem;overflow-wrap:anywhere}`;

// The page as one self-contained file: the image, the coloured captions and the numbers.
async function page() {
  const url = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(state.image.sent);
  });
  return `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${escaped(state.image.file.name)}: captions scored by msdscore</title>
<style>${STYLE}</style>
<main><h1>Captions of ${escaped(state.image.file.name)}</h1>
<img src="${url}" alt="The image">
${good().map(card).join("\n")}</main>
<footer>${escaped(state.look.signature)}</footer></html>
`;
}

function card(caption) {
  const { words, look, score, missing = [], suggestions = [], warnings = [] } = caption.result;
  let end = 0;
  const coloured = words.map((word, number) => {
    const { back, ink, dark_back, dark_ink, judged } = look.words[number];
    const before = escaped(caption.text.slice(end, word.start));
    end = word.end;
    const colours = `background:light-dark(${back},${dark_back});color:light-dark(${ink},${dark_ink})`;
    const style = back ? ` style="${colours}"` : judged ? "" : ' class="none"';
    return `${before}<span${style}>${escaped(caption.text.slice(word.start, word.end))}</span>`;
  });
  const parts = store.termsOf(caption.result).map(({ name, size }) => `${escaped(name)} ${signed(size)}`);
  const list = (named) => named.map(({ word }) => word).join(", ");
  const hints = [...warnings, ...suggestions.map(({ word, instead }) => `“${word}” try: ${list(instead)}`)];
  if (missing.length) hints.push(`probably missing from the caption: ${list(missing)}`);
  const { number, verdict } = store.headline(caption);
  const sum = parts.join(" + ").replaceAll("+ −", "− ");
  return `<section><p class="t" dir="auto">${coloured.join("")}${escaped(caption.text.slice(end))}</p>
<p><strong>${number}</strong> ${verdict} · MSD ${signed(score.msd)} = ${sum}</p>
${hints.map((hint) => `<p>${escaped(hint)}</p>`).join("\n")}</section>`;
}
