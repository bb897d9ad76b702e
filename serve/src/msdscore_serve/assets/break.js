// “Break this caption”: changes that make it false, and which of them the verdict or a word notices.
import { html } from "./preact.js";
import * as store from "./store.js";
import * as service from "./service.js";

const { state, changed, headline } = store;
const words = (text) => text.split(" ");
const COLOURS = words("red blue green yellow orange purple pink black white brown grey gray");
const NUMBERS = words("two three four five six seven eight nine ten");
// Things that can be replaced, counted and coloured so that the changed caption still makes sense.
const NOUNS = new Set(
  words(
    "person man woman boy girl child baby player skier surfer dog cat horse cow sheep bird elephant zebra giraffe " +
      "bear duck puppy kitten car bus truck train boat bicycle bike motorcycle airplane plane skateboard surfboard " +
      "table chair bench bed sofa couch desk shelf cup mug bottle glass plate bowl spoon fork knife pizza cake " +
      "sandwich apple banana donut laptop computer keyboard phone camera tripod book clock lamp umbrella bag " +
      "backpack hat helmet jacket shirt ball kite flag sign flower tree building house tower church bridge roof " +
      "window door fence guitar toy vase",
  ),
);
const PLURALS = {
  person: "people",
  man: "men",
  woman: "women",
  child: "children",
  knife: "knives",
  shelf: "shelves",
  sheep: "sheep",
};
const pluralOf = (noun) =>
  PLURALS[noun] ?? (/(s|x|ch|sh)$/.test(noun) ? `${noun}es` : noun.replace(/([^aeiou])y$/, "$1ie") + "s");
const SINGULARS = Object.fromEntries([...NOUNS].map((noun) => [pluralOf(noun), noun]));
const OTHERS = words("giraffe pizza bicycle umbrella train elephant guitar boat");
const SUPPORTS = "table|chair|bed|bench|sofa|couch|desk|shelf|bridge|roof|tree|umbrella|car|bus|truck|boat|tripod";
const ARTICLE = "(?:a|an|the)";
// Relations whose opposite makes sense: a cup is on or under a table, but a person in uniform is not outside it.
const RELATIONS = [
  [`in front of(?= ${ARTICLE} )`, "behind"],
  [`next to(?= ${ARTICLE} )`, "far from"],
  [`behind(?= ${ARTICLE} )`, "in front of"],
  [`above(?= ${ARTICLE} )`, "below"],
  [`below(?= ${ARTICLE} )`, "above"],
  [`inside(?= ${ARTICLE} )`, "outside"],
  [`on(?: top of)?(?= ${ARTICLE} (?:\\w+ )?(?:${SUPPORTS})\\b)`, "under"],
  [`under(?= ${ARTICLE} (?:\\w+ )?(?:${SUPPORTS})\\b)`, "on"],
  ["left(?= of| side|[.,]|$)", "right"],
  ["right(?= of| side|[.,]|$)", "left"],
];
// Between two things that cannot be swapped without changing the meaning.
const ONE_SIDED = new RegExp(
  "^ (\\w+ ){0,2}(on|on top of|under|above|below|behind|in front of|wearing|holding|riding|eating|chasing|watching|" +
    "carrying) an? (\\w+ )?$",
);

const withArticle = (before, word) =>
  before.replace(/\b(a)n?( )$/i, (_, a, space) => a + (/^[aeiou]/.test(word) ? "n" : "") + space);

// Replace a part of a text; the article before it follows the new word.
function put(text, start, end, word) {
  const before = withArticle(text.slice(0, start), word);
  return { text: before + word + text.slice(end), start: before.length, end: before.length + word.trimEnd().length };
}

function find(text, pattern) {
  const found = new RegExp(`\\b(?:${pattern})\\b`, "i").exec(text);
  return found && { word: found[0].toLowerCase(), start: found.index, end: found.index + found[0].length };
}

// Judged words of a caption that name things; not those that name another word, as “cup” in “a cup of coffee”.
function things({ text, result }) {
  return result.words.flatMap((word, number) => {
    const plain = word.text.toLowerCase();
    const noun = NOUNS.has(plain) ? plain : SINGULARS[plain];
    if (!noun || !result.look.words[number]?.judged) return [];
    const several = plain !== noun;
    const contains = text.slice(word.end).startsWith(" of ");
    const single = !several && /\ban? (?:\w+ )?$/i.test(text.slice(0, word.start));
    return [{ ...word, plain, noun, several, contains, single }];
  });
}

export function changesOf(caption) {
  const { text } = caption;
  const named = things(caption);
  const alone = named.filter((thing) => !thing.contains);
  const [best] = (alone.length ? alone : named).toSorted((a, b) => (b.p_value ?? 0) - (a.p_value ?? 0));
  const fresh = OTHERS.filter((noun) => !text.toLowerCase().includes(noun));
  const changes = [];
  if (best) {
    const other = fresh[text.length % fresh.length];
    changes.push({
      kind: "another object",
      ...put(text, best.start, best.end, best.several ? pluralOf(other) : other),
    });
  }
  const colour = find(text, COLOURS.join("|"));
  if (colour) {
    const other = words("blue green red pink").find((word) => word !== colour.word && !text.includes(word));
    changes.push({ kind: "another colour", ...put(text, colour.start, colour.end, other ?? "purple") });
  } else if (best) {
    // Before another adjective: “a purple wooden table”.
    const adjective = new RegExp(`\\b${ARTICLE} (?!(?:${NUMBERS.join("|")}) )([\\w-]+ )$`, "i");
    const phrase = adjective.exec(text.slice(0, best.start));
    const start = best.start - (phrase?.[1].length ?? 0);
    changes.push({ kind: "a wrong colour", ...put(text, start, start, "purple ") });
  }
  const end = text.replace(/[\s.]+$/, "");
  const added = withArticle(" and a ", fresh.at(-1)) + fresh.at(-1);
  changes.push({ kind: "something added", text: end + added, start: end.length + 1, end: end.length + added.length });
  const number = find(text, NUMBERS.join("|"));
  const single = named.find((thing) => thing.single && /\ban? $/i.test(text.slice(0, thing.start)));
  if (number) {
    const other = number.word === "seven" ? "two" : "seven";
    changes.push({ kind: "another count", ...put(text, number.start, number.end, other) });
  } else if (single) {
    const before = text.slice(0, single.start).replace(/\ban? $/i, "");
    const many = `seven ${pluralOf(single.noun)}`;
    const [start, stop] = [before.length, before.length + many.length];
    changes.push({ kind: "another count", text: before + many + text.slice(single.end), start, end: stop });
  }
  const relation = RELATIONS.map(([pattern, other]) => [find(text, pattern), other]).find(([found]) => found);
  if (relation) {
    const [{ start, end: stop }, other] = relation;
    changes.push({ kind: "another relation", ...put(text, start, stop, other) });
  }
  const pair = alone.flatMap((one, at) => alone.slice(at + 1).map((two) => [one, two]));
  const swapped = pair.find(
    ([one, two]) => one.single && two.single && one.noun !== two.noun && ONE_SIDED.test(text.slice(one.end, two.start)),
  );
  if (swapped) {
    const [one, two] = swapped;
    const first = put(text, one.start, one.end, two.text);
    const shift = first.text.length - text.length;
    const second = put(first.text, two.start + shift, two.end + shift, one.text);
    changes.push({ kind: "two words swapped", ...first, text: second.text, also: second });
  }
  return changes;
}

const placesOf = (change) => [change, change.also].filter(Boolean);

// What notices a change: a changed word in doubt, or a verdict below that of the caption; null if nothing does.
function noticeOf(caption, change, result) {
  const marked = result.words.find(
    ({ finding, gap, p_value, start, end }) =>
      (finding || (p_value == null && gap > 0)) &&
      placesOf(change).some((place) => start < place.end && end > place.start),
  );
  if (marked) return `${marked.finding ?? "likely wrong"}: ${marked.text}`;
  const rank = ({ score }) => state.look.verdicts.findIndex(([, name]) => name === score.verdict);
  return rank(caption.result) >= 0 && rank(result) > rank(caption.result) ? result.score.verdict : null;
}

export async function breakCaption(caption) {
  if (caption.broken) {
    caption.broken = null;
    return changed();
  }
  await breakNow(caption);
}

async function breakNow(caption) {
  const changes = changesOf(caption);
  const { text } = caption;
  const { image } = state;
  const name = `break ${caption.id}`;
  caption.broken = { text, changes: null };
  changed();
  try {
    const texts = changes.map((change) => change.text);
    const options = { fields: "words,look", references: store.referenceLines() };
    const items = await service.explain(image, texts, undefined, options);
    store.reached(name);
    if (caption.broken?.text !== text) return;
    caption.broken.changes = changes
      .map((change, number) => ({ ...change, result: items[number].explanations[0] }))
      .filter(({ result }) => result)
      .map((change) => ({ ...change, notice: noticeOf(caption, change, change.result) }));
  } catch (error) {
    caption.broken = null;
    store.failed(error, name, () => state.image === image && caption.text === text && breakNow(caption));
  }
  changed();
}

const verdictOf = ({ result }) => result.score.verdict ?? "no word is marked";

export function Broken({ caption }) {
  const { text, changes } = caption.broken;
  if (text !== caption.text) return null;
  if (!changes) return html`<p class="broken small">Breaking it…</p>`;
  const missed = changes.filter((change) => !change.notice).map(({ kind }) => kind);
  const line = (change) => {
    const { number, kind } = headline({ result: change.result });
    let at = 0;
    const marked = placesOf(change).map(({ start, end }) => {
      const before = change.text.slice(at, start);
      at = end;
      return html`${before}<mark>${change.text.slice(start, end)}</mark>`;
    });
    return html`<tr key=${change.kind} class=${change.notice ? "caught" : "missed"}>
      <th scope="row">${change.kind}</th>
      <td dir="auto">${marked}${change.text.slice(at)}</td>
      <td class=${`cell ${kind}`}>${number}</td>
      <td>${change.notice ? `✓ ${change.notice}` : `✗ missed: ${verdictOf(change)}`}</td>
      <td>
        <button type="button" class="small" onClick=${() => store.add(change.text, { after: caption.id })}>Add</button>
      </td>
    </tr>`;
  };
  return html`<div class="broken">
    <p>
      ${changes.length} ${changes.length === 1 ? "change that makes" : "changes that make"} it false:${" "}
      <b>${changes.length - missed.length} caught</b>${
        missed.length > 0 && html`, <b>${missed.length} missed</b> (${missed.join(", ")})`
      }.
      <span class="small"> Caught: the verdict falls, or a changed word is in doubt.</span>
    </p>
    <div class="scroll">
      <table>
        <tbody>
          ${changes.map(line)}
        </tbody>
      </table>
    </div>
  </div>`;
}
