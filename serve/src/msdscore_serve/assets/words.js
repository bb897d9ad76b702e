// Words of captions: their colours and what they mean, on cards, in lists and in comparisons.
import { html } from "./preact.js";
import { state } from "./store.js";

// Whether a word describes a patch: its attention is 1.5 times the uniform one.
export function describes(look, word, patch) {
  const spread = look.spreads?.[word];
  return spread != null && spread[patch] > 1.5 / spread.length;
}

// Words keep their colours while another part of the text changes: the unchanged start and end still match.
export function pieces(caption, shown) {
  const { text, result } = caption;
  if (!result) return text;
  const old = result.caption;
  let head = 0;
  while (head < Math.min(text.length, old.length) && text[head] === old[head]) head++;
  let tail = 0;
  while (tail < Math.min(text.length, old.length) - head && text.at(-1 - tail) === old.at(-1 - tail)) tail++;
  const shift = text.length - old.length;
  const nodes = [];
  let end = 0;
  result.words.forEach((word, number) => {
    const late = word.start >= old.length - tail;
    if (word.end > head && !late) return;
    const [start, stop] = late ? [word.start + shift, word.end + shift] : [word.start, word.end];
    const look = result.look.words[number];
    const patch = state.patch?.id === caption.id && describes(result.look, number, state.patch.number);
    const style = colours(look);
    const on = number === shown || patch;
    const kind = ["w", style && "tinted", !look.judged && "none", on && "on"].filter(Boolean).join(" ");
    const title = caption.id === null ? meaning(word, look) : undefined;
    nodes.push(
      text.slice(end, start),
      html`<span class=${kind} style=${style} data-word=${number} title=${title}>${text.slice(start, stop)}</span>`,
    );
    end = stop;
  });
  return [...nodes, text.slice(end)];
}

// The caption of a result with coloured words, read-only.
export const coloured = ({ caption: text, result }) => pieces({ id: null, text, result }, -1);

// The colours of a word on light and dark pages; none for a word that is neither supported nor in doubt.
export const colours = (look) =>
  look.back && {
    "--back": look.back,
    "--text": look.ink,
    "--dark-back": look.dark_back,
    "--dark-text": look.dark_ink,
  };

export function meaning(word, look) {
  const { reason = "" } = word;
  if (!look.judged) return !reason || reason.includes("not judged") ? reason || "not judged" : `not judged: ${reason}`;
  if (word.p_value != null) {
    const share = Math.round(100 * word.p_value);
    if (word.finding)
      return `${word.finding}: ${share < 1 ? "under 1" : share} % of true words have this little evidence`;
    const verdict = word.p_value < 0.5 ? "neither supported nor wrong" : "supported";
    return `${verdict}: more evidence than ${share} % of true words`;
  }
  const size = Math.abs(word.gap).toFixed(2);
  return word.gap > 0 ? `likely wrong, +${size} nats` : `supported, −${size} nats`;
}
