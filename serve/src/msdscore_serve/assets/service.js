// Requests to the service that served the page; the token is the only state.
const BUSY_TRIES = 4;
const TOKEN = "msdscore-token"; // its key in this tab's storage
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

// Error of a failed request; `status` is 0 if the service could not be reached.
export class RequestError extends Error {
  constructor(message, status, options) {
    super(message, options);
    this.status = status;
  }
  get isTemporary() {
    return [0, 502, 503, 504].includes(this.status);
  }
}

let token = "";
try {
  token = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // Without storage, the token must be entered again after a reload.
}
export const hasToken = () => Boolean(token);
export function useToken(text) {
  token = text.trim();
  try {
    sessionStorage.setItem(TOKEN, token);
  } catch {
    // Without storage, the token is used until a reload.
  }
}

async function call(path, { body, json, signal } = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (json) headers["Content-Type"] = "application/json";
  const options = { method: body || json ? "POST" : "GET", headers, body: json ? JSON.stringify(json) : body, signal };
  for (let tries = 1; ; tries++) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The service cannot be reached.", 0, { cause: error });
    }
    if (answer.ok) return answer;
    if (answer.status === 503 && tries < BUSY_TRIES) {
      await pause(Number(answer.headers.get("Retry-After")) || 1);
      continue;
    }
    if (answer.status === 401) {
      const wrong = "The service does not accept this token: check it below.";
      throw new RequestError(token ? wrong : "This service needs a token: enter it below.", 401);
    }
    const problem = await answer.json().catch(() => ({}));
    throw new RequestError(problem.error || `The service answered ${answer.status}.`, answer.status);
  }
}

const read = async (path, options) => (await call(path, options)).json();

// The image is uploaded once; its name is the hash of its content.
async function nameOf(image, signal) {
  if (!image.id) {
    const form = new FormData();
    form.append("image", image.sent, image.file.name);
    image.id = (await read("v1/images", { body: form, signal })).image;
  }
  return image.id;
}

function formOf(image, captions, references = []) {
  const form = new FormData();
  form.append("image", image.sent, image.file.name);
  for (const caption of captions) form.append("caption", caption);
  for (const reference of references) form.append("reference", reference);
  return form;
}

// One result per caption, each scored separately; at most `max_items` captions. `references` are human captions.
export async function explain(image, captions, signal, { references = [], fields = "all" } = {}) {
  const name = await nameOf(image, signal);
  const path = `v1/explain?fields=${fields}`;
  const json = { items: captions.map((caption) => ({ image: name, captions: [caption], references })) };
  const { items } = await read(path, { json, signal });
  if (!items.some((item) => item.error?.includes("unknown image"))) return items;
  // The service was restarted, has dropped the image, or is one of several processes: this request contains the image.
  image.id = null;
  const [all] = (await read(path, { body: formOf(image, captions, references), signal })).items;
  return captions.map((_, number) => ({
    error: all.error,
    explanations: [all.explanations[number]],
    errors: [all.errors[number]],
  }));
}

export const figure = async (image, kind, captions, signal) =>
  (await call(`v1/figure?kind=${kind}`, { body: formOf(image, captions), signal })).blob();

export const version = () => read("version");
export const look = () => read(new URL("look.json", import.meta.url)); // its address contains a hash
export const samples = () => read("samples/samples.json");
export const sample = async (name) => (await call(`samples/${name}`)).blob();
