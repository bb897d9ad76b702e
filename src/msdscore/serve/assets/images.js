// Images of the reader's own, kept in this browser for a reload and for Back; nothing is sent anywhere for it.
const DAY = 24 * 60 * 60 * 1000;
const opened = new Map(); // those of this visit, by key

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

export async function keep(key, file) {
  opened.set(key, file);
  try {
    const stored = await files("readwrite");
    for (const old of (await done(stored.getAllKeys())).filter(isOld)) stored.delete(old);
    await done(stored.put(file, key));
  } catch {
    // A private window: Back still finds the image, a reload asks for it.
  }
}

export async function kept(key) {
  if (opened.has(key)) return opened.get(key);
  try {
    return await done((await files("readonly")).get(key));
  } catch {
    return null;
  }
}
