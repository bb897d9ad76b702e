// Files with rows: CSV, TSV, JSON, JSON lines, Parquet and text, read in the browser.
const ZSTD = 1 << 28; // bytes of the largest column that is unpacked

export const isTable = ({ name }) => /\.(csv|tsv|jsonl|ndjson|json|parquet|txt)$/i.test(name);
const ending = (name) => name.split(".").at(-1).toLowerCase();

// The records of a file as { columns, records }, where records are objects by column name.
export async function readTable(file, known) {
  const kind = ending(file.name);
  if (kind === "parquet") return fromParquet(file);
  const text = (await file.text()).replace(/^\uFEFF/, "");
  if (kind === "txt") return fromLines(file.name, text);
  if (kind === "csv" || kind === "tsv") return fromCells(cellsOf(text, kind === "tsv" ? "\t" : ","), known);
  return fromObjects(kind === "json" ? fromJson(text) : fromJsonLines(text));
}

// Lines of a text file are captions of the image with the same name.
function fromLines(name, text) {
  const image = name.replace(/\.[^.]*$/, "");
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  return { columns: ["image", "caption"], records: lines.map((caption) => ({ image, caption })), byStem: true };
}

// The cells of CSV as lists (RFC 4180): quoted cells may contain separators, doubled quotes and line breaks.
export function cellsOf(text, separator = ",") {
  const rows = [];
  let [row, cell, at, quoted] = [[], "", 0, false];
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0].trim()) rows.push(row);
    [row, cell] = [[], ""];
  };
  while (at < text.length) {
    const char = text[at++];
    if (quoted) {
      if (char !== '"') cell += char;
      else if (text[at] === '"') cell += text[at++];
      else quoted = false;
    } else if (char === '"' && cell === "") quoted = true;
    else if (char === separator) {
      row.push(cell);
      cell = "";
    } else if (char === "\n" || char === "\r") {
      if (char === "\r" && text[at] === "\n") at++;
      endRow();
    } else cell += char;
  }
  if (quoted) throw new Error("a quoted cell has no end");
  if (cell || row.length) endRow();
  return rows;
}

// The first row has the names of the columns, unless no name is known and it begins with an image.
function fromCells(rows, known) {
  if (!rows.length) return { columns: [], records: [] };
  const names = rows[0].map((cell) => cell.trim());
  const headed = names.some((name) => known.has(name.toLowerCase()));
  if (!headed && !(rows[0].length === 2 && /\.\w{2,5}$/.test(names[0])))
    throw new Error(`expected a first row with “image” and “caption”, got ${names.join(", ")}`);
  const columns = headed ? names : ["image", "caption"];
  const twice = columns.find((name, number) => columns.indexOf(name) !== number);
  if (twice !== undefined) throw new Error(`the column “${twice}” is repeated`);
  const records = rows.slice(headed ? 1 : 0).map((cells) => {
    if (cells.length > columns.length)
      throw new Error(
        `expected ${columns.length} cells per row, got ${cells.length} in “${cells.join(",").slice(0, 60)}”`,
      );
    return Object.fromEntries(columns.map((name, number) => [name, cells[number] ?? ""]));
  });
  return { columns, records };
}

function fromJson(text) {
  const found = JSON.parse(text);
  const list = Array.isArray(found) ? found : (found.rows ?? found.annotations ?? [found]);
  const records = list.filter((record) => record && typeof record === "object");
  if (!Array.isArray(found.images)) return records;
  // Annotations of COCO name their image by a number.
  const files = new Map(found.images.map(({ id, file_name }) => [id, file_name]));
  return records.map(({ id: _id, image_id, ...rest }) => ({ image: files.get(image_id) ?? image_id, ...rest }));
}

function fromJsonLines(text) {
  return text
    .split(/\r?\n/)
    .map((line, number) => {
      try {
        return line.trim() ? JSON.parse(line) : null;
      } catch {
        return { caption: "", error: `line ${number + 1} is not JSON` };
      }
    })
    .filter((record) => record && typeof record === "object");
}

function fromObjects(records) {
  const columns = [...new Set(records.flatMap((record) => Object.keys(record)))];
  return { columns, records };
}

async function fromParquet(file) {
  const { parquetReadObjects, parquetMetadataAsync, decompress } = await import("./parquet.js");
  const buffer = await file.arrayBuffer();
  const metadata = await parquetMetadataAsync(buffer);
  const unpack = (input, length) => {
    if (length > ZSTD) throw new Error("a column is too large for this page");
    return decompress(input, new Uint8Array(length));
  };
  const records = await parquetReadObjects({ file: buffer, metadata, compressors: { ZSTD: unpack } });
  return fromObjects(records);
}
