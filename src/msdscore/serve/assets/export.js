// What is on the page as files: figures drawn by the service, a script with the same numbers, and the page itself.
import * as store from "./store.js";
import { figure } from "./service.js";
import { colour } from "./draw.js";

const { state, say, signed } = store;

function save(name, content, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const base = () => state.image.file.name.replace(/\.[^.]*$/, "") || "image";
const good = () => store.inOrder().filter(store.isCurrent);

export async function exported(kind) {
  if (!state.image || !good().length)
    return say("There is nothing to export yet: choose an image and describe it.", true);
  if (kind === "python") return save(`${base()}.py`, script(), "text/x-python");
  if (kind === "page") return save(`${base()}.page.html`, await page(), "text/html");
  say(`Drawing the ${kind.toUpperCase()}…`);
  try {
    const compared = good().filter((caption) => state.compared.includes(caption.id));
    const captions = (compared.length === 2 ? compared : good()).map((caption) => caption.text);
    save(`${base()}.${kind}`, await figure(kind, captions));
    say("");
  } catch (error) {
    say(error.message, true);
  }
}

// JSON's quotes are Python's too.
const quoted = JSON.stringify;

function script() {
  const captions = good();
  const scorer = state.version?.scorer ?? "Scorer()";
  const names = scorer.includes("ScorerSpec") ? "Scorer, ScorerSpec" : "Scorer";
  const name = state.image.file.name.replace(/[\r\n]/g, " ");
  return `# Makes the numbers on the page again; ${name} must lie beside this file.
from msdscore import ${names}

scorer = ${scorer}
captions = [
${captions.map((caption) => `    ${quoted(caption.text)},`).join("\n")}
]
expected = [${captions.map((caption) => caption.result.score.msd).join(", ")}]
scores = [scorer.score(${quoted(state.image.file.name)}, caption) for caption in captions]
for caption, score in zip(captions, scores):
    print(caption, score, sep="\\n  ")
assert scores[0].signature == ${quoted(state.look.signature)}, "other settings, weights or version than the page"
assert max(abs(a.msd - b) for a, b in zip(scores, expected)) < 1e-3, "another image than on the page?"
`;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => String(text).replace(/[&<>"]/g, (char) => ENTITIES[char]);

const STYLE = `body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:1rem auto;padding:0 1rem;color:#16181d;
background:#fff}img{max-width:100%;max-height:60vh}.t{font-size:1.2rem}.t span{border-radius:4px}
section{border-top:1px solid #ddd}section b{font-weight:400;border-bottom:3px solid}
footer{color:#555;font-size:.8rem;overflow-wrap:anywhere}`;

// The whole state in one file that needs nothing else: the image, the captions with their colours, the numbers.
async function page() {
  const url = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(state.image.file);
  });
  return `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${escaped(state.image.file.name)}: captions scored by msdscore</title>
<style>${STYLE}</style>
<img src="${url}" alt="The image">
${good().map(card).join("\n")}
<footer>${escaped(state.look.signature)}</footer></html>
`;
}

function card(caption) {
  const { words, look, score, missing = [], suggestions = [] } = caption.result;
  let end = 0;
  const coloured = words.map((word, number) => {
    const { back, ink } = look.words[number];
    const before = escaped(caption.text.slice(end, word.start));
    end = word.end;
    const style = back ? ` style="background:${back};color:${ink}"` : "";
    return `${before}<span${style}>${escaped(caption.text.slice(word.start, word.end))}</span>`;
  });
  const parts = [{ name: "similarity", size: score.similarity }, ...look.sum].map(({ name, size, role }) => {
    const line = role ? colour(role, 0.85) : "#888";
    return `<b style="border-color:${line}">${escaped(name)} ${signed(size)}</b>`;
  });
  const list = (named) => named.map(({ word }) => word).join(", ");
  const hints = suggestions.map(({ word, instead }) => `“${word}” rather: ${list(instead)}`);
  if (missing.length) hints.push(`probably also there: ${list(missing)}`);
  const [number, reading] = store.headline(caption);
  return `<section><p class="t" dir="auto">${coloured.join("")}${escaped(caption.text.slice(end))}</p>
<p><strong>${number}</strong> ${reading} · ${parts.join(" ")} = ${signed(score.msd)}</p>
${hints.map((hint) => `<p>${escaped(hint)}</p>`).join("\n")}</section>`;
}
