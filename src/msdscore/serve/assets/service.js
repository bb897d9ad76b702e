// Requests to the service that the page came from.
import { changed, state } from "./store.js";

const BUSY_TRIES = 4;
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function call(path, { body, json, signal } = {}) {
  const headers = state.token.value ? { Authorization: `Bearer ${state.token.value}` } : {};
  if (json) headers["Content-Type"] = "application/json";
  const options = { method: body || json ? "POST" : "GET", headers, body: json ? JSON.stringify(json) : body, signal };
  for (let tries = 1; ; tries++) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The service cannot be reached. Is it still running?", { cause: error });
    }
    if (answer.ok) return answer;
    if (answer.status === 503 && tries < BUSY_TRIES) {
      await pause(Number(answer.headers.get("Retry-After")) || 1);
      continue;
    }
    const refusal = await answer.json().catch(() => ({}));
    if (answer.status === 401) {
      state.token.wanted = true;
      changed();
      throw new Error("This service wants its token: type it below.");
    }
    throw new Error(refusal.error || `The service answered ${answer.status}.`);
  }
}

// The image is sent once; the service gives it a name by its content.
async function nameOf(image, signal) {
  if (!image.id) {
    const form = new FormData();
    form.append("image", image.file, image.file.name);
    image.id = (await (await call("v1/images", { body: form, signal })).json()).image;
  }
  return image.id;
}

// One answer per caption, each scored alone.
export async function explain(image, captions, signal, again = true) {
  const name = await nameOf(image, signal);
  const items = captions.map((caption) => ({ image: name, captions: [caption] }));
  const answer = await (await call("v1/explain", { json: { items }, signal })).json();
  if (again && answer.items.some((item) => item.error?.includes("unknown image"))) {
    image.id = null; // the service was started again, or has dropped it
    return explain(image, captions, signal, false);
  }
  return answer.items;
}

export async function figure(kind, captions) {
  const form = new FormData();
  form.append("image", state.image.file, state.image.file.name);
  for (const caption of captions) form.append("caption", caption);
  return (await call(`v1/figure?kind=${kind}`, { body: form })).blob();
}

export const version = async () => (await call("version")).json();

// The file of a view is sent where the service has not seen it, else its name.
export async function rows(view, fields, again = true) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value !== "") form.append(name, value);
  if (view.name) form.append("file", view.name);
  else form.append("file", view.file, view.file.name);
  try {
    return await (await call("v1/rows", { body: form })).json();
  } catch (error) {
    if (!again || !error.message.includes("unknown file")) throw error;
    return rows({ ...view, name: null }, fields, false); // the service was started again, or has dropped it
  }
}
