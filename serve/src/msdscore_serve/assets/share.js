// Sharing one caption: a picture for a post, a link that may contain a small copy of the image, and a snippet to embed.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as store from "./store.js";
import { save } from "./export.js";

const { state, changed, say } = store;
const WIDE = 1200; // pixels of the picture
const TALL = 720; // of the photograph in it
const EDGE = 56;
const LINE = 68;
const THUMB = 256; // longest side of the copy in a link

const font = (size, weight = 400) => `${weight} ${size}px system-ui, sans-serif`;

// Pieces of a caption with their colours, cut at spaces, where a line may break.
function piecesOf({ text, result }) {
  const pieces = [];
  let end = 0;
  const plain = (part) => part.split(/(?<=\s)/).forEach((piece) => piece && pieces.push({ piece, look: null }));
  result.words.forEach((word, number) => {
    plain(text.slice(end, word.start));
    pieces.push({ piece: text.slice(word.start, word.end), look: result.look.words[number] });
    end = word.end;
  });
  plain(text.slice(end));
  return pieces;
}

function linesOf(pen, pieces, wide) {
  const lines = [[]];
  let at = 0;
  for (const { piece, look } of pieces) {
    const size = pen.measureText(piece).width;
    if (at + pen.measureText(piece.trimEnd()).width > wide && at > 0) {
      lines.push([]);
      at = 0;
    }
    if (at === 0 && !piece.trim()) continue;
    lines.at(-1).push({ piece, look, at, size });
    at += size;
  }
  return lines;
}

// A colour of the palette for light pages, whichever the page has: the picture is always light.
function lightColour(name) {
  const probe = document.createElement("span");
  Object.assign(probe.style, { colorScheme: "light", color: `var(--${name})` });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The picture: photograph, coloured caption, verdict and the name of the metric.
export function drawCard(canvas, image, caption) {
  const pen = canvas.getContext("2d");
  pen.font = font(44);
  const lines = linesOf(pen, piecesOf(caption), WIDE - 2 * EDGE);
  const [ink, soft] = [lightColour("ink"), lightColour("soft")];
  canvas.width = WIDE;
  canvas.height = TALL + EDGE + lines.length * LINE + 190;
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const { width, height } = image.bitmap;
  pen.fillStyle = ink;
  pen.fillRect(0, 0, WIDE, TALL);
  // A photograph fills the frame unless that would cut away a third of it.
  const [cover, fit] = [Math.max(WIDE / width, TALL / height), Math.min(WIDE / width, TALL / height)];
  const scale = fit / cover > 2 / 3 ? cover : fit;
  const [w, h] = [width * scale, height * scale];
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, WIDE, TALL);
  pen.clip();
  pen.drawImage(image.bitmap, (WIDE - w) / 2, (TALL - h) / 2, w, h);
  pen.restore();
  pen.textBaseline = "middle";
  pen.font = font(44);
  lines.forEach((line, number) => {
    const y = TALL + EDGE + (number + 0.5) * LINE;
    for (const { piece, look, at, size } of line) {
      if (look?.back) {
        pen.fillStyle = look.back;
        pen.beginPath();
        pen.roundRect(EDGE + at - 6, y - 29, size + 12, 58, 10);
        pen.fill();
      }
      pen.fillStyle = look?.back ? look.ink : look && !look.judged ? soft : ink;
      pen.fillText(piece, EDGE + at, y);
    }
  });
  const foot = canvas.height - 100;
  const { number, verdict, kind } = store.headline(caption);
  pen.fillStyle = lightColour(kind === "none" ? "ink" : kind);
  pen.font = font(72, 700);
  pen.fillText(number, EDGE, foot);
  const from = EDGE + pen.measureText(number).width + 24;
  pen.font = font(34);
  pen.fillText(verdict, from, foot + 8);
  pen.fillStyle = soft;
  pen.font = font(26);
  pen.textAlign = "right";
  pen.fillText(`msdscore, ${state.look.signature.split("|")[0].toUpperCase()}`, WIDE - EDGE, foot - 16);
  pen.fillText("blue: supported · orange: likely wrong", WIDE - EDGE, foot + 22);
  pen.textAlign = "left";
}

// A small copy of the image as text for a link.
async function thumbnailOf({ bitmap }) {
  const share = Math.min(1, THUMB / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.max(1, bitmap.width * share), Math.max(1, bitmap.height * share));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await canvas.convertToBlob({ type: "image/webp", quality: 0.6 });
  const bytes = new Uint8Array(await blob.arrayBuffer());
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");
}

const page = () => location.href.split("#")[0];

async function linkOf(withImage) {
  const fields = new URLSearchParams();
  if (state.image.sample) fields.set("sample", state.image.sample);
  else if (withImage) fields.set("thumb", await thumbnailOf(state.image));
  for (const caption of store.inOrder()) if (caption.text.trim()) fields.append("c", caption.text);
  for (const line of store.referenceLines()) fields.append("r", line);
  return `${page()}#${fields}`;
}

export function openShare(caption) {
  state.shared = caption.id;
  changed();
}

export function Share() {
  const caption = store.captionOf(state.shared);
  return caption?.result && state.image?.bitmap ? html`<${Dialog} key=${caption.id} caption=${caption} />` : null;
}

function Dialog({ caption }) {
  const dialog = useRef(null);
  const canvas = useRef(null);
  const own = !state.image.sample;
  const [withImage, setWithImage] = useState(false);
  const [link, setLink] = useState("");
  useEffect(() => {
    dialog.current.showModal();
    drawCard(canvas.current, state.image, caption);
  }, []);
  useEffect(() => void linkOf(withImage).then(setLink), [withImage]);
  const close = () => {
    state.shared = null;
    changed();
  };
  const blob = () => new Promise((done) => canvas.current.toBlob(done, "image/png"));
  const name = `${state.image.file.name.replace(/\.[^.]*$/, "") || "image"}.card.png`;
  const told = async (work, text) => {
    try {
      await work();
      say(text);
      setTimeout(() => state.message?.text === text && say(""), 2000);
    } catch {
      say("This browser does not allow copying here.", true);
    }
    close();
  };
  const copyImage = () => navigator.clipboard.write([new ClipboardItem({ "image/png": blob() })]);
  const frame = `<iframe src="${link}" width="100%" height="700" title="msdscore"></iframe>`;
  return html`<dialog id="share" aria-label="Share this caption" ref=${dialog} onClose=${close}>
    <div>
      <h2>Share</h2>
      <canvas ref=${canvas} role="img" aria-label="Photograph with the coloured caption and its verdict"></canvas>
      <p class="tools">
        <button
          type="button"
          class="primary"
          id="save-card"
          onClick=${async () => (save(name, await blob()), close())}
        >Save picture</button>
        <button type="button" onClick=${() => told(copyImage, "Image copied.")}>Copy image</button>
        <button
          type="button"
          id="copy-link"
          onClick=${() => told(() => navigator.clipboard.writeText(link), "Link copied.")}
        >Copy link</button>
        <button type="button" onClick=${close}>Close</button>
      </p>
      ${
        own &&
        html`<label>
          <input
            id="with-image"
            type="checkbox"
            checked=${withImage}
            onChange=${(event) => setWithImage(event.target.checked)}
          />
          Put a small copy of the image into the link (${Math.max(1, Math.round(link.length / 1000))} kB)
        </label>`
      }
      <p class="small">
        ${own && !withImage ? "Without it, the link has the captions only: others choose the image themselves. " : ""}
        The link opens on this service: ${page()}
      </p>
      <details>
        <summary>Embed</summary>
        <pre tabindex="0">${frame.length > 400 ? `${frame.slice(0, 300)}…${frame.slice(-60)}` : frame}</pre>
        <p class="small">Start the service with <code>--embed</code> and the origin of your page.</p>
        <button
          type="button"
          class="small"
          onClick=${() => told(() => navigator.clipboard.writeText(frame), "Snippet copied.")}
        >Copy snippet</button>
      </details>
    </div>
  </dialog>`;
}
