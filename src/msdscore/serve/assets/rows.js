// A scored file, worst rows first, ten at a time; a row whose picture is at hand opens in the page.
import { $, make, say, signed } from "./state.js";
import { worstRows } from "./service.js";

const PAGE = 10;
let file = null, found = null, pictures = new Map(), at = 0, open = null;
const fileOf = (row) => pictures.get(String(row.image ?? "").split(/[\\/]/).pop());

async function read(by) {
  if (!file) return;
  say(`Reading ${file.name}…`);
  try {
    found = await worstRows(file, by);
  } catch (error) {
    return say(`${file.name}: ${error.message}`, true);
  }
  say("");
  at = 0;
  $("rows-by").replaceChildren(...found.columns.map((name) => make("option", { selected: name === found.by }, name)));
  $("rows-by").disabled = false;
  show();
}

function show() {
  if (!found) return;
  const some = found.rows.slice(at, at + PAGE);
  $("rows").replaceChildren(...some.map(rowNode));
  $("rows-place").textContent = `${at + 1} to ${at + some.length} of ${found.total}${found.failed ? `, ${found.failed} without a score` : ""}`;
  $("rows-back").disabled = at === 0;
  $("rows-on").disabled = at + PAGE >= found.rows.length;
}

function rowNode(row) {
  const picture = fileOf(row), value = row[found.by];
  const text = make("div", {}, make("b", {}, value === undefined ? "no score" : `${found.by} ${signed(value)}`), make("small", {}, ` row ${row.row + 1}${row.image ? ` · ${row.image}` : ""}`), make("p", { dir: "auto" }, row.caption ?? ""));
  for (const note of [row.error, row.warnings]) if (note) text.append(make("p", { class: "note" }, note));
  if (picture) text.append(make("button", { type: "button", class: "small", "aria-label": `Look at row ${row.row + 1}`, onclick: () => { open(picture, [row.caption ?? ""]); scrollTo(0, 0); } }, "Look at it"));
  return make("li", { class: "card" }, picture ? make("img", { src: URL.createObjectURL(picture), alt: "" }) : null, text);
}

export function start(take) {
  open = take;
  $("rows-file").addEventListener("change", (event) => { file = event.target.files[0]; read(); });
  $("rows-pictures").addEventListener("change", (event) => { pictures = new Map([...event.target.files].map((one) => [one.name, one])); show(); });
  $("rows-by").addEventListener("change", (event) => read(event.target.value));
  $("rows-back").addEventListener("click", () => { at = Math.max(0, at - PAGE); show(); });
  $("rows-on").addEventListener("click", () => { at += PAGE; show(); });
}
