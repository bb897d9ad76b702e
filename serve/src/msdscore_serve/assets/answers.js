// “Was this wrong?”: which words are true of the image, as answered by a user; stored in this browser.
import { html } from "./preact.js";
import * as store from "./store.js";
import { save } from "./export.js";
import { meaning } from "./words.js";

const { state, changed } = store;
const STORED = "msdscore-answers"; // key in the storage of the browser
const MOST = 2000; // answers; the oldest are dropped first

let answers = [];
try {
  answers = JSON.parse(localStorage.getItem(STORED)) ?? [];
} catch {
  // Without storage, answers last until a reload.
}

function update(changedAnswers) {
  answers = changedAnswers.slice(-MOST);
  try {
    localStorage.setItem(STORED, JSON.stringify(answers));
  } catch {
    // As above.
  }
  changed();
}

const isAbout = (caption, word) => (answer) =>
  answer.image === state.image.file.name && answer.caption === caption.text && answer.start === word.start;

// Store whether a word is true of the image; the same answer again removes it.
function answer(caption, word, isTrue) {
  const [given] = answers.filter(isAbout(caption, word));
  const others = answers.filter((one) => one !== given);
  if (given?.answer === isTrue) return update(others);
  const { score } = caption.result;
  const line = {
    image: state.image.file.name,
    caption: caption.text,
    word: word.text,
    start: word.start,
    answer: isTrue,
    finding: word.finding ?? null,
    p_value: word.p_value ?? null,
    match: score.match ?? null,
    verdict: score.verdict ?? null,
    references: store.referenceLines(),
    signature: state.look.signature,
    time: new Date().toISOString(),
  };
  update([...others, line]);
}

export function Answers({ caption }) {
  if (!store.isCurrent(caption)) return null;
  const { words, look } = caption.result;
  const judged = words.filter((_, number) => look.words[number].judged);
  const row = (word) => {
    const given = answers.find(isAbout(caption, word))?.answer;
    const button = (text, isTrue) =>
      html`<button
        type="button"
        class="small"
        aria-pressed=${String(given === isTrue)}
        aria-label=${`${word.text}: ${text}`}
        onClick=${() => answer(caption, word, isTrue)}
      >
        ${text}
      </button>`;
    return html`<tr key=${word.start}>
      <th scope="row" dir="auto">${word.text}</th>
      <td class="small">${meaning(word, look.words[words.indexOf(word)]).split(":")[0]}</td>
      <td>${button("true", true)} ${button("false", false)}</td>
    </tr>`;
  };
  const download = () =>
    save("answers.jsonl", answers.map((line) => `${JSON.stringify(line)}\n`).join(""), "application/jsonl");
  const count = `${answers.length} ${answers.length === 1 ? "answer" : "answers"}`;
  return html`<div class="answers">
    <p class="small">Which words are true of this image? Answers stay in this browser until you save them.</p>
    ${
      judged.length
        ? html`<table>
            <tbody>
              ${judged.map(row)}
            </tbody>
          </table>`
        : html`<p class="small">No word of this caption is judged.</p>`
    }
    ${
      answers.length > 0 &&
      html`<p class="tools">
        <button type="button" class="small save-answers" onClick=${download}>Save ${count} as JSON lines</button>
        <button type="button" class="small" onClick=${() => update([])}>Delete them</button>
      </p>`
    }
  </div>`;
}
