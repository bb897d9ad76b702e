// Image files: decoded in the browser, reduced to the limits of the service, stored for reloads and Back.
const DAY = 24 * 60 * 60 * 1000;
const KNOWN = /^image\/(jpeg|png|webp|gif|bmp|tiff|x-ms-bmp)$/; // formats that the service reads
const QUALITY = 0.92;
const ROWS = "rows"; // key of the rows of many images
const opened = new Map(); // files since the page was loaded, by key

export const isImage = ({ type, name }) => type.startsWith("image/") || /\.(hei[cf]|avif|tiff?)$/i.test(name);

// The decoded image (null if this browser does not support its format), and the file to send: a JPEG if the image
// exceeds a limit of the service or has a format that only browsers read, such as HEIC.
export async function prepare(file, { max_pixels, max_body }) {
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return { bitmap, sent: file, note: null }; // the service may still read it
  }
  const pixels = bitmap.width * bitmap.height;
  const most = file.size > 0.9 * max_body ? Math.min(max_pixels, 0.8 * pixels) : max_pixels;
  const share = Math.min(1, Math.sqrt(most / pixels));
  if (share === 1 && (KNOWN.test(file.type) || !file.type)) return { bitmap, sent: file, note: null };
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.floor(side * share)));
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
  const sent = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
  const note = share < 1 ? `Shrunk from ${(pixels / 1e6).toFixed(0)} to ${(most / 1e6).toFixed(0)} megapixels.` : null;
  return { bitmap, sent, note };
}

// The image in a link, as base64 for addresses; null if it is broken.
export async function fromLink(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
    return new File([bytes], "shared.webp", { type: "image/webp" });
  } catch {
    return null;
  }
}

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function files(mode) {
  const request = indexedDB.open("msdscore", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("images");
  const base = await done(request);
  return base.transaction("images", mode).objectStore("images");
}

// Keys end in the time at which an image was opened; after a day it is deleted.
const isOld = (key) => Date.now() - Number(String(key).split("-").at(-1)) > DAY;

export async function save(key, file) {
  opened.set(key, file);
  try {
    const stored = await files("readwrite");
    for (const old of (await done(stored.getAllKeys())).filter(isOld)) stored.delete(old);
    await done(stored.put(file, key));
  } catch {
    // Without storage, Back still works, but after a reload the image must be chosen again.
  }
}

// The rows of many images, stored under one key; null removes them. Returns whether they are stored.
export async function saveRows(rows) {
  try {
    const stored = await files("readwrite");
    await done(rows ? stored.put({ ...rows, time: Date.now() }, ROWS) : stored.delete(ROWS));
    return Boolean(rows);
  } catch {
    return false;
  }
}

export async function loadRows() {
  try {
    const stored = await done((await files("readonly")).get(ROWS));
    return stored && Date.now() - stored.time < DAY ? stored : null;
  } catch {
    return null;
  }
}

export async function load(key) {
  if (opened.has(key)) return opened.get(key);
  try {
    return await done((await files("readonly")).get(key));
  } catch {
    return null;
  }
}
