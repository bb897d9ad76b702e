// Calls of the service that the page came from.
import { $, state } from "./state.js";

const BUSY_TRIES = 4;
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function call(path, body, signal) {
  const headers = $("token").value ? { Authorization: "Bearer " + $("token").value } : {};
  for (let tries = 1; ; tries++) {
    let answer;
    try {
      answer = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The service cannot be reached. Is it still running?");
    }
    if (answer.ok) return answer;
    if (answer.status === 503 && tries < BUSY_TRIES) { await pause(Number(answer.headers.get("Retry-After")) || 1); continue; }
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401) { $("token-label").hidden = false; $("token").focus(); throw new Error("This service wants its token: type it below."); }
    throw new Error(said.error || `The service answered ${answer.status}.`);
  }
}

function picture(captions) {
  const form = new FormData();
  form.append("image", state.file, state.file.name);
  for (const caption of captions) form.append("caption", caption);
  return form;
}

export const rank = async (captions, signal) => (await (await call("v1/rank", picture(captions), signal)).json()).items[0];
export const explain = async (captions, signal) => (await (await call("v1/explain", picture(captions), signal)).json()).items[0];
export const figure = async (kind, captions) => (await call(`v1/figure?kind=${kind}`, picture(captions))).blob();
export const version = async () => (await call("version")).json();

export async function worstRows(file, by) {
  const form = new FormData();
  form.append("file", file, file.name);
  if (by) form.append("by", by);
  return (await call("v1/rows", form)).json();
}
