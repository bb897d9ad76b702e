// What a visitor sees first: three sentences about the example, and what to do next.
import { html } from "./preact.js";
import * as store from "./store.js";
import { breakCaption } from "./break.js";

const { state } = store;
const POINT = "Point at a word to see its region.";

export function Story() {
  if (!state.image?.sample) return null;
  const scored = store.inOrder().filter(store.isCurrent);
  const wrong = ({ result }) => (result.doubtful ?? []).filter(({ finding }) => finding === "likely wrong");
  const marked = [...new Set(scored.flatMap(wrong).map((word) => word.text))];
  const sample = state.samples.find(({ file }) => file === state.image.sample);
  const isAsShipped = state.captions.map(({ text }) => text).join("\n") === sample?.captions.join("\n");
  const best = scored[0];
  const choose = () => document.getElementById("file").click();
  return html`<section id="story" aria-label="How to read this">
    <div>
      <h2>One image, any captions</h2>
      <p>
        Best first. The percentage is the probability that a caption belongs to this image; nobody wrote a reference.
      </p>
    </div>
    <div>
      <h2>Which words are wrong?</h2>
      <p>
        ${
          isAsShipped && sample.line
            ? html`<span id="sample-line">${sample.line}</span> ${POINT}`
            : marked.length
              ? html`The image does not support <b>${marked.slice(0, 4).join(", ")}</b>. ${POINT}`
              : `Orange words have no support in the image. ${POINT}`
        }
      </p>
    </div>
    <div>
      <h2>Your turn</h2>
      <p class="turn">
        <button type="button" class="primary" onClick=${choose}>Use your own image</button>
        ${
          best &&
          html`<button type="button" id="break-best" onClick=${() => breakCaption(best)}>
            Break the best caption
          </button>`
        }
        <button type="button" onClick=${store.viewFile}>Score many</button>
      </p>
    </div>
  </section>`;
}
