// “Break this caption”: changes that make it false, and which of them the metric notices.
import { html } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";

const { state, changed, headline } = store;
const FALLS = 0.1; // fall of the match, or of MSD, from which a change is noticed
const COLOURS = [
  "red",
  "blue",
  "green",
  "yellow",
  "orange",
  "purple",
  "pink",
  "black",
  "white",
  "brown",
  "grey",
  "gray",
];
const OBJECTS = ["giraffe", "pizza", "bicycle", "umbrella", "train", "elephant", "guitar", "boat"];
const NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
const PLACES = {
  "in front of": "behind",
  "on top of": "under",
  "next to": "far from",
  on: "under",
  under: "on",
  above: "below",
  below: "above",
  behind: "in front of",
  left: "right",
  right: "left",
  inside: "outside",
  in: "outside",
};
const COMMON = /^(a|an|the|of|and|or|with|in|on|at|to|is|are|by|for|from|next|front|top|its|his|her|their|it)$/i;

const article = (before, word) =>
  /\ban? $/i.test(before) ? before.replace(/\ban? $/i, /^[aeiou]/.test(word) ? "an " : "a ") : before;

// Replace a part of a text; the article before it follows the new word.
function put(text, start, end, word) {
  const before = article(text.slice(0, start), word);
  return { text: before + word + text.slice(end), start: before.length, end: before.length + word.trimEnd().length };
}

const find = (text, words) => {
  const found = new RegExp(`\\b(${words.join("|")})\\b`, "i").exec(text);
  return found && { word: found[0].toLowerCase(), start: found.index, end: found.index + found[0].length };
};

// Words that name things: judged, no colour or number, followed by no other judged word. In “a cup of coffee” it is
// the cup, since “a coffee of cup” is no caption.
function things({ text, result }) {
  return result.words.filter((word, number) => {
    const next = result.words[number + 1];
    const isJudged = (at) => Boolean(result.look.words[at]?.judged);
    const last =
      !next || COMMON.test(next.text) || /[,.;]/.test(text.slice(word.end, next.start)) || !isJudged(number + 1);
    const plain = word.text.toLowerCase();
    const named = !COLOURS.includes(plain) && !NUMBERS.includes(plain) && !COMMON.test(plain);
    return isJudged(number) && last && named && !/\bof $/i.test(text.slice(0, word.start));
  });
}

export function changesOf(caption) {
  const { text } = caption;
  const named = things(caption);
  const fresh = OBJECTS.filter((word) => !text.toLowerCase().includes(word));
  const alone = named.filter((word) => !text.slice(word.end).startsWith(" of "));
  const best = (alone.length ? alone : named).toSorted((a, b) => (b.p_value ?? 0) - (a.p_value ?? 0))[0];
  const changes = [];
  if (best)
    changes.push({ kind: "another object", ...put(text, best.start, best.end, fresh[text.length % fresh.length]) });
  const colour = find(text, COLOURS);
  if (colour) {
    const others = ["blue", "green", "red", "pink"].filter((word) => word !== colour.word && !text.includes(word));
    changes.push({ kind: "another colour", ...put(text, colour.start, colour.end, others[0] ?? "purple") });
  } else if (best) changes.push({ kind: "a wrong colour", ...put(text, best.start, best.start, "purple ") });
  const end = text.replace(/[\s.]+$/, "");
  const added = ` and ${/^[aeiou]/.test(fresh.at(-1)) ? "an" : "a"} ${fresh.at(-1)}`;
  changes.push({ kind: "something added", text: end + added, start: end.length + 1, end: end.length + added.length });
  const number = find(text, NUMBERS);
  const single = /\b(an?) (?=\w+$|\w+ (?:of|and|with|in|on|at|is|next|under)\b)/i.exec(text);
  if (number)
    changes.push({
      kind: "another count",
      ...put(text, number.start, number.end, number.word === "seven" ? "two" : "seven"),
    });
  else if (single) {
    const noun = /^\w+/.exec(text.slice(single.index + single[0].length))[0];
    const many = `seven ${noun}${/(s|x|ch|sh)$/.test(noun) ? "es" : "s"}`;
    const stop = single.index + single[0].length + noun.length;
    changes.push({
      kind: "another count",
      text: text.slice(0, single.index) + many + text.slice(stop),
      start: single.index,
      end: single.index + many.length,
    });
  }
  const place = find(text, Object.keys(PLACES));
  if (place) changes.push({ kind: "another relation", ...put(text, place.start, place.end, PLACES[place.word]) });
  const pair = alone.length > 1 ? alone : named;
  const [one, two] = pair.filter((word, at) => pair.findIndex((other) => other.text === word.text) === at);
  if (two) {
    const swapped =
      text.slice(0, one.start) + two.text + text.slice(one.end, two.start) + one.text + text.slice(two.end);
    const [start, end] = [one.start, one.start + two.text.length];
    const also = { start: two.end - one.text.length, end: two.end }; // the other place: the text has the same length
    changes.push({ kind: "two words swapped", text: swapped, start, end, also });
  }
  return changes;
}

const placesOf = (change) => [change, change.also].filter(Boolean);

// A change is caught if the number falls clearly, or if a changed word is marked.
function isCaught(caption, change, result) {
  const value = ({ score }) => score.match ?? score.msd;
  const marked = result.doubtful.some(
    ({ finding, start, end }) =>
      finding === "likely wrong" && placesOf(change).some((place) => start < place.end && end > place.start),
  );
  return marked || value(caption.result) - value(result) >= FALLS;
}

export async function breakCaption(caption) {
  if (caption.broken) {
    caption.broken = null;
    return changed();
  }
  const changes = changesOf(caption);
  const { text } = caption;
  caption.broken = { text, changes: null };
  changed();
  try {
    const items = await service.explain(
      state.image,
      changes.map((change) => change.text),
      undefined,
      { fields: "words,look" },
    );
    if (caption.broken?.text !== text) return;
    caption.broken.changes = changes
      .map((change, number) => ({ ...change, result: items[number].explanations[0] }))
      .filter(({ result }) => result)
      .map((change) => ({ ...change, caught: isCaught(caption, change, change.result) }));
  } catch (error) {
    caption.broken = null;
    store.failed(error, () => breakCaption(caption));
  }
  changed();
}

export function Broken({ caption }) {
  const { text, changes } = caption.broken;
  if (text !== caption.text) return null;
  if (!changes) return html`<p class="broken small">Breaking it…</p>`;
  const caught = changes.filter((change) => change.caught).length;
  const line = (change) => {
    const { number, kind } = headline({ result: change.result });
    let at = 0;
    const marked = placesOf(change).map(({ start, end }) => {
      const before = change.text.slice(at, start);
      at = end;
      return html`${before}<mark>${change.text.slice(start, end)}</mark>`;
    });
    return html`<tr key=${change.kind} class=${change.caught ? "caught" : "missed"}>
      <th scope="row">${change.kind}</th>
      <td dir="auto">${marked}${change.text.slice(at)}</td>
      <td class=${`cell ${kind}`}>${number}</td>
      <td>${change.caught ? "✓ caught" : "✗ not caught"}</td>
      <td><button
        type="button"
        class="small"
        onClick=${() => store.add(change.text, { after: caption.id })}
      >Add</button></td>
    </tr>`;
  };
  return html`<div class="broken">
    <p>
      ${changes.length} changes that make it false: <b>${caught} caught</b>.
      <span class="small"> Counts, relations and word order hardly change the score.</span>
    </p>
    <div class="scroll">
      <table><tbody>${changes.map(line)}</tbody></table>
    </div>
  </div>`;
}
