// The dialog that explains the numbers and their limits.
import { html } from "./preact.js";
import { percent, state } from "./store.js";
import { cite } from "./export.js";

const PAPER = "https://arxiv.org/abs/2605.06080";
const meanings = ([[onTopic], [unsure]], rules) => ({
  Match: "The probability that the caption belongs to this image rather than to another one of its kind.",
  "On topic, unsure, off topic": `A match of at least ${percent(onTopic)}, of at least ${percent(unsure)}, and below.`,
  Colours: `Orange, pale orange, blue: ${rules.join("; ")}. Grey: not judged.`,
  Numbers: "The score MSD, which ranks captions, as a sum of its terms.",
  "Ref-MSD":
    "MSD with the references that you enter. Like MSD, it has no fixed scale and compares captions of one image.",
});
const GOOD_FOR = [
  "telling captions that belong to an image from captions that do not",
  "ranking captions of one image, and pointing at words to check",
  "comparing captioners over hundreds of images",
];
const NOT_FOR = [
  "counts, relations and word order: “a dog chases a cat” and “a cat chases a dog” score alike",
  "names, text inside the image, and who a person is",
  "choosing the more detailed of two true captions",
  "images unlike everyday photographs: medical, satellite, drawings",
];

const list = (lines) =>
  html`<ul>
    ${lines.map((line) => html`<li key=${line}>${line}</li>`)}
  </ul>`;

// What was measured about this encoder: a table of shares in percent.
const shown = (name, value) => (name === "n" ? value.toLocaleString("en") : value?.toFixed(1));
const shares = (title, rows) => {
  const columns = [...new Set(rows.flatMap(Object.keys))].filter((name) => name !== "name");
  return html`<div style="overflow-x:auto" tabindex="0" role="region" aria-label=${title}>
    <table class="numbers">
      <caption>
        ${title}
      </caption>
      <thead>
        <tr>
          <td></td>
          ${columns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) =>
            html`<tr key=${row.name}>
            <th scope="row">${row.name}</th>
            ${columns.map((name) => html`<td key=${name}>${shown(name, row[name])}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
};

export const openAbout = (part) => {
  document.getElementById("about").showModal();
  document.getElementById(part).scrollIntoView();
};

export function About() {
  const close = () => document.getElementById("about").close();
  const outside = (event) => event.target.id === "about" && close();
  return html`<dialog id="about" aria-label="About the numbers" onClick=${outside}>
    <div>
      <h2 id="meanings">What the numbers mean</h2>
      <dl>
        ${Object.entries(meanings(state.look.verdicts, state.look.rules)).map(
          ([name, text]) => html`<dt key=${name}>${name}</dt><dd>${text}</dd>`,
        )}
      </dl>
      <h2 id="limits">Limits</h2>
      <p>Trust it for</p>
      ${list(GOOD_FOR)}
      <p>Do not trust it for</p>
      ${list(NOT_FOR)}
      ${
        state.look.claims &&
        html`<p>Measured on ${state.look.claims.date} with this encoder and these settings, in percent:</p>
        ${shares("Captions", state.look.claims.captions)} ${shares("Words", state.look.claims.words)}
        ${shares("Words with a mark: how many of them were changed", state.look.claims.marks)}`
      }
      <h2>Signature</h2>
      <p class="small">Numbers are comparable only if their signatures are equal.</p>
      <code id="signature">${state.look.signature}</code>
      <p class="tools"><button type="button" class="primary" onClick=${close}>Close</button></p>
    </div>
  </dialog>`;
}

export function Footer({ children }) {
  const button = (id, text, act) => html`<button type="button" class="link" id=${id} onClick=${act}>${text}</button>`;
  const link = ([name, address]) => html`<a key=${name} href=${address} target="_blank" rel="noopener">${name}</a>`;
  return html`<footer>
    ${button("to-meanings", "What the numbers mean", () => openAbout("meanings"))}
    ${button("to-limits", "Limits", () => openAbout("limits"))}
    <a href="docs">API</a>
    ${[["Paper", PAPER], ...Object.entries(state.look.links)].map(link)} ${button("cite", "Cite", cite)}
    <span>msdscore ${state.look.version}</span>
    ${children}
  </footer>`;
}
