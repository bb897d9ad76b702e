// Rows of many images: read from files, scored by the service, edited, stored in this browser, and saved as CSV.
import * as store from "./store.js";
import * as service from "./service.js";
import * as images from "./images.js";
import { isTable, readTable } from "./table.js";
import { save } from "./export.js";

const { changed, state } = store;
const AT_ONCE = 2; // requests in parallel
const BATCH = 16; // captions of an image per request
const MOST_STORED = 20_000; // rows that are stored for a reload
const STORED = 1000; // milliseconds between a change and its storage
const SYSTEMS = ["system", "captioner", "model"]; // columns with the name of a captioner, as in reports
export const PAGE = 20;

const EMPTY = {
  // { row, image, file, caption, original, system, numbers, verdict, warnings, error, result, at, busy, decision }
  rows: null,
  name: "",
  note: "",
  wrong: false,
  mode: "list", // or "review", "captioners"
};
export const ALL = { low: null, high: null, contains: "", verdict: null, start: 0 };
export const view = { ...EMPTY, ...ALL, by: "", reversed: false };

export function change(values) {
  Object.assign(view, values);
  changed();
}

// Paths -----------------------------------------------------------------------------------------------

const parts = (path) =>
  String(path ?? "")
    .split(/[\\/]/)
    .filter((part) => part && part !== ".");
const stem = (name) => name.replace(/\.[^.]*$/, "");

// Files by their base names, with and without ending, so that only a few are compared for each row.
export function indexed(files) {
  const index = new Map();
  for (const file of files) {
    const own = parts(file.webkitRelativePath || file.name);
    for (const key of new Set([own.at(-1), stem(own.at(-1))])) {
      if (!index.has(key)) index.set(key, []);
      index.get(key).push({ own: [...own.slice(0, -1), key], file });
    }
  }
  return index;
}

// The file of a row's image: the ends of both paths must match, including folders if there are any.
export function fileOf(image, index) {
  const wanted = parts(image);
  let best = { length: 0, files: [] };
  for (const { own, file } of index.get(wanted.at(-1)) ?? []) {
    let length = 0;
    while (length < Math.min(own.length, wanted.length) && own.at(-1 - length) === wanted.at(-1 - length)) length++;
    const enough = length === wanted.length || length === own.length || length > 1;
    if (!enough || (own.length === 1 && wanted.length > 1)) continue;
    if (length > best.length) best = { length, files: [file] };
    else if (length === best.length) best.files.push(file);
  }
  return best.files.length === 1 ? best.files[0] : null;
}

// Reading ---------------------------------------------------------------------------------------------

const lists = () => state.look.columns; // names of image and caption columns, as for files of `msdscore score`
const isNumber = (name) => state.look.numbers.includes(name);
const textOf = (value) => (value == null ? "" : String(value));

function numberOf(value) {
  const number = typeof value === "bigint" ? Number(value) : typeof value === "string" ? parseFloat(value) : value;
  return Number.isFinite(number) ? number : null;
}

const warningsOf = (value) =>
  (Array.isArray(value) ? value : textOf(value).split(/; |\n/)).map((text) => textOf(text).trim()).filter(Boolean);

// The image of a record: a name, or bytes as Hugging Face datasets have them.
function imageOfRecord(value) {
  if (value?.bytes instanceof Uint8Array) {
    const name = value.path || "image";
    return { image: name, file: new File([value.bytes], name, { type: "image/*" }) };
  }
  return { image: textOf(value?.path ?? value), file: null };
}

// The rows of a table. Several columns that begin with “caption” are the captions of several captioners.
function rowsOf(name, { columns, records }) {
  const find = (names) => names.map((name) => columns.find((own) => own.toLowerCase() === name)).find(Boolean);
  const [image, caption] = [find(lists().image) ?? find(["image_id", "key"]), find(lists().caption)];
  const several = columns.filter((own) => /^captions?[_ -]./i.test(own));
  const list = find(["captions"]);
  if (!caption && !several.length && !list)
    throw new Error(`expected a column “caption”, got ${columns.join(", ") || "nothing"}`);
  const system = find(SYSTEMS);
  const numbers = columns.filter(isNumber);
  const texts = (record) => {
    if (caption) return [[textOf(record[caption]), system ? textOf(record[system]) : null]];
    if (several.length) return several.map((own) => [textOf(record[own]), own]);
    return [].concat(record[list] ?? []).map((text) => [textOf(text), system ? textOf(record[system]) : null]);
  };
  const rows = records.flatMap((record) =>
    texts(record).map(([text, captioner]) => ({
      ...imageOfRecord(record[image]),
      caption: text.trim(),
      original: text.trim(),
      system: captioner,
      numbers: Object.fromEntries(
        numbers.map((own) => [own, numberOf(record[own])]).filter(([, value]) => value !== null),
      ),
      verdict: columns.includes("verdict") ? textOf(record.verdict) || null : undefined,
      warnings: warningsOf(record.warnings),
      error: textOf(record.error),
      read: numbers.length > 0, // scored elsewhere
    })),
  );
  const used = new Set([image, caption, list, system, ...several, ...numbers, "verdict", "warnings", "error"]);
  const ignored = numbers.length ? [] : columns.filter((own) => !used.has(own));
  const note = ignored.length ? `${name}: ignored ${ignored.map((own) => `“${own}”`).join(", ")}.` : "";
  return { rows, note, named: Boolean(image) };
}

// Open images, folders, and files with captions or scores.
export async function openFiles(files, { keep = null } = {}) {
  const pictures = files.filter(images.isImage);
  const tables = files.filter(isTable);
  const notes = [];
  let rows = keep ?? [];
  let wrong = false;
  change({ note: tables.length ? `Reading ${tables[0].name}…` : "", wrong: false });
  const known = new Set([...lists().image, ...lists().caption, "captions", ...SYSTEMS, ...state.look.numbers]);
  for (const file of tables) {
    try {
      const read = rowsOf(file.name, await readTable(file, known));
      if (read.note) notes.push(read.note);
      if (!read.named && pictures.length === 1) for (const row of read.rows) row.file ??= pictures[0];
      rows = rows.concat(read.rows);
    } catch (error) {
      notes.push(`${file.name}: ${error.message}.`);
      wrong = true;
    }
  }
  const index = indexed(pictures);
  for (const row of rows) {
    row.file ??= fileOf(row.image, index);
    if (row.file && row.image === stem(row.file.name)) row.image = row.file.name;
  }
  const used = new Set(rows.map((row) => row.file));
  const alone = pictures.filter((file) => !used.has(file));
  if (!keep) rows = rows.concat(alone.map((file) => newRow(file, "")));
  if (!files.some((file) => images.isImage(file) || isTable(file))) {
    notes.push(`Expected images, or a file with captions, got ${files.map(({ name }) => name).join(", ")}.`);
    wrong = true;
  }
  const lost = rows.filter((row) => !row.file && !row.read).length;
  if (lost && rows.length)
    notes.push(`${lost} of ${rows.length} captions have no image here: add the folder of the images.`);
  if (!rows.length) return change({ note: notes.join(" ") || "There are no rows in this file.", wrong: true });
  rows.forEach((row, number) => (row.row = number));
  const name = tables.length === 1 ? tables[0].name : `${pictures.length} images`;
  show(rows, { name: keep ? view.name : name, note: notes.join(" "), wrong });
}

const newRow = (file, caption) => ({
  file,
  image: file.webkitRelativePath || file.name,
  caption,
  original: caption,
  system: null,
  numbers: {},
  verdict: null,
  warnings: [],
  error: "",
  read: false,
});

function show(rows, values) {
  const by = ["match", "soft_msd", "msd"].find((name) => rows.some((row) => row.numbers[name] !== undefined));
  change({ ...EMPTY, ...ALL, by: by ?? "", reversed: false, rows, ...values });
  scoreAll();
  rememberRows();
}

export async function openExamples() {
  const loaded = await Promise.all(
    state.samples.map(async ({ file, captions }) => {
      const bytes = await service.sample(file);
      const opened = new File([bytes], file, { type: bytes.type });
      return captions.map((caption) => newRow(opened, caption));
    }),
  ).catch((error) => change({ note: error.message, wrong: true }));
  if (!loaded) return;
  const rows = loaded.flat();
  rows.forEach((row, number) => (row.row = number));
  show(rows, { name: "Examples" });
}

export function closeRows() {
  const closed = { ...view };
  change({ ...EMPTY, ...ALL });
  images.saveRows(null);
  const reopen = () => {
    store.say("");
    change(closed);
    remember();
  };
  store.say("Rows closed.", false, { title: "Undo", run: reopen });
}

// Scoring ---------------------------------------------------------------------------------------------

// Every image is prepared and uploaded once, however many captions it has.
const prepared = new WeakMap();
async function imageOf(file) {
  if (!prepared.has(file)) {
    const { sent } = await images.prepare(file, state.look.limits);
    prepared.set(file, { file, sent, id: null });
  }
  return prepared.get(file);
}

// Rows of a scored file are explained only while they are visible, to colour their words.
let visible = new Set();
export function showRows(rows) {
  const wanted = rows.filter(({ row }) => !visible.has(row));
  visible = new Set(rows.map(({ row }) => row));
  if (wanted.some(isDue)) scoreAll();
}
const isDue = (row) =>
  row.file &&
  row.caption &&
  row.at !== row.caption &&
  !row.busy &&
  (!row.read || isEdited(row) || visible.has(row.row));
export const isEdited = (row) => row.caption !== row.original;
export const isWaiting = (row) => Boolean(row.file && row.caption && !row.read && row.at !== row.caption);

let workers = 0;
export function scoreAll() {
  const { rows } = view;
  while (workers < AT_ONCE) {
    workers++;
    work(rows).finally(() => workers--);
  }
}

// A worker scores the captions of one image at a time; rows that changed meanwhile are scored again.
async function work(rows) {
  for (;;) {
    const first = view.rows === rows && rows?.find(isDue);
    if (!first) return;
    const batch = rows.filter((row) => row.file === first.file && isDue(row)).slice(0, BATCH);
    const captions = batch.map((row) => row.caption);
    for (const row of batch) row.busy = true;
    let items = [];
    let problem = null;
    try {
      items = await service.explain(await imageOf(first.file), captions, undefined, { fields: "words,look" });
      store.reached("rows");
    } catch (error) {
      if (error.isTemporary || error.status === 401) {
        for (const row of batch) row.busy = false;
        return store.failed(error, "rows", scoreAll);
      }
      problem = error.message;
    }
    batch.forEach((row, number) => accept(row, captions[number], items[number], problem));
    remember();
    changed();
  }
}

function accept(row, caption, item, problem) {
  row.busy = false;
  row.at = caption;
  row.result = item?.explanations[0] ?? null;
  const error = problem ?? item?.error ?? item?.errors[0] ?? "";
  if (row.read && !isEdited(row)) return void (row.problem = error);
  row.problem = "";
  row.error = error;
  row.warnings = row.result?.warnings ?? [];
  const score = row.result && row.result.readable !== false ? row.result.score : {};
  row.verdict = score.verdict ?? null;
  row.numbers = Object.fromEntries(Object.entries(score).filter(([name, value]) => isNumber(name) && value != null));
}

export function setCaption(row, text) {
  if (text.trim() === row.caption) return;
  row.caption = text.trim();
  row.result = null;
  row.numbers = {};
  row.verdict = null;
  row.error = row.file || !row.caption ? "" : "Add the folder of the images to score this caption again.";
  remember();
  changed();
  scoreAll();
}

// Selection -------------------------------------------------------------------------------------------

// The verdict of a row; null if it was withheld. A file without verdicts gets them from its matches.
export const verdictOf = (row) => {
  if (row.verdict !== undefined) return row.verdict;
  const { match } = row.numbers;
  return match === undefined ? null : state.look.verdicts.find(([least]) => match >= least)?.[1];
};
export const numberNames = () => {
  const names = new Set(view.rows.flatMap((row) => Object.keys(row.numbers)));
  return state.look.numbers.filter((name) => names.has(name));
};
export const isLowerBetter = (name) => state.look.lower_is_better.includes(name);
export const defaultBy = () => {
  const names = numberNames();
  return names.includes(view.by)
    ? view.by
    : ["match", "soft_msd", "msd", ...names].find((name) => names.includes(name));
};

export const shownNumber = (name, value) => (name === "match" ? store.percent(value) : store.signed(value));

// The number of a row as text, its verdict and kind; the match too if the rows are sorted by another number.
export function headlineOf(row, by) {
  const verdict = verdictOf(row);
  const value = row.numbers[by];
  const number = row.busy || isWaiting(row) ? "…" : value === undefined ? "–" : shownNumber(by, value);
  const { match } = row.numbers;
  const isMatch = by === "match" || !by;
  const doubts = store.withheldBy(row.warnings);
  const judged = verdict ? verdict : doubts.length ? `but: ${doubts.join(", ")}` : "match";
  const text = value === undefined ? (row.caption ? "no score" : "") : isMatch ? judged : by;
  return {
    number,
    text,
    kind: store.kindOf(verdict),
    other: !isMatch && match !== undefined ? `${store.percent(match)} match` : "",
  };
}

// Rows that pass the filters, worst first by a number, or in the order of the file; rows without it come last.
export function selected(by = view.by === "file" ? null : defaultBy()) {
  const { low, high, verdict } = view;
  const contains = view.contains.toLowerCase();
  const rows = view.rows.filter((row) => {
    const value = row.numbers[by];
    if (low !== null && !(value >= low && value <= high)) return false;
    if (verdict && verdictOf(row) !== verdict) return false;
    return !contains || `${row.caption}\n${row.image}\n${row.system ?? ""}`.toLowerCase().includes(contains);
  });
  const sign = (isLowerBetter(by) ? -1 : 1) * (view.reversed ? -1 : 1);
  if (!by) return rows;
  const value = (row) => (row.numbers[by] === undefined ? Infinity : sign * row.numbers[by]);
  return rows.sort((a, b) => (value(a) === value(b) ? a.row - b.row : value(a) - value(b)));
}

// Storage ---------------------------------------------------------------------------------------------

let remembering = null;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(rememberRows, STORED);
}

export async function rememberRows() {
  clearTimeout(remembering);
  if (!view.rows || view.rows.length > MOST_STORED) return;
  const rows = view.rows.map((row) => ({ ...row, busy: false }));
  view.stored = await images.saveRows({ rows, name: view.name });
}

// Edits and decisions of rows that could not be stored would be lost.
export const isLost = () =>
  Boolean(view.rows) &&
  (view.rows.length > MOST_STORED || view.stored === false) &&
  view.rows.some((row) => isEdited(row) || row.decision);

export async function restoreRows() {
  const stored = view.rows ? null : await images.loadRows();
  if (stored && !view.rows) show(stored.rows, { name: stored.name });
}

// Saving ----------------------------------------------------------------------------------------------

const FIRST = ["match", "verdict", "msd", "similarity"];

function tableOf() {
  const { rows } = view;
  const reviewed = rows.some((row) => row.decision || (isEdited(row) && row.original));
  const numbers = numberNames().filter((name) => !FIRST.includes(name));
  const columns = ["image", "caption", ...(reviewed ? ["original", "decision"] : [])];
  if (rows.some((row) => row.system)) columns.push("system");
  columns.push(...FIRST, ...numbers, "warnings", "error");
  const cell = (row) => {
    const texts = { image: row.image, caption: row.caption, original: row.original, decision: row.decision ?? "" };
    const others = { system: row.system ?? "", verdict: verdictOf(row) ?? "", warnings: row.warnings.join("; ") };
    const all = { ...row.numbers, ...texts, ...others, error: row.error };
    return columns.map((name) => all[name] ?? "");
  };
  return [columns, ...rows.map(cell)];
}

// Cells that a spreadsheet would evaluate as formulas are written as text.
const safe = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value));
const csvCell = (value) => (/[",\n\r]/.test(safe(value)) ? `"${safe(value).replaceAll('"', '""')}"` : safe(value));

export function saveCsv() {
  const lines = tableOf().map((line) => line.map(csvCell).join(","));
  save("scores.csv", `${lines.join("\r\n")}\r\n`, "text/csv");
}

export async function copyTable() {
  const lines = tableOf().map((line) => line.map((value) => safe(value).replace(/[\t\r\n]/g, " ")).join("\t"));
  try {
    await navigator.clipboard.writeText(lines.join("\n"));
    change({ note: "Copied: paste it into a spreadsheet.", wrong: false });
  } catch {
    change({ note: "This browser does not allow copying here; save the CSV instead.", wrong: true });
  }
}
