// What is on the page as files: figures by the service's own hand, and a script that makes the same numbers.
import { $, inOrder, say, shown, state } from "./state.js";
import { figure } from "./service.js";

function save(name, content, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const base = () => state.file.name.replace(/\.[^.]*$/, "") || "picture";
const good = () => inOrder().filter((card) => card.score && !card.score.error && !card.stale);

export async function exported(kind) {
  if (!state.file || !good().length) return say("There is nothing to export yet: choose a picture and type a caption.", true);
  if (kind === "python") return save(base() + ".py", script(), "text/x-python");
  const pair = shown().length === 2 ? shown() : good();
  say(`Drawing the ${kind.toUpperCase()}…`);
  $("exports").setAttribute("aria-busy", "true");
  try {
    save(`${base()}.${kind}`, await figure(kind, pair.map((card) => card.text)));
    say("");
  } catch (error) {
    say(error.message, true);
  } finally {
    $("exports").removeAttribute("aria-busy");
  }
}

// JSON's quotes are Python's too.
const quoted = JSON.stringify;

function script() {
  const cards = good(), scorer = state.version.scorer ?? "Scorer()";
  const names = scorer.includes("ScorerSpec") ? "Scorer, ScorerSpec" : "Scorer";
  return `# Makes the numbers on the page again; ${state.file.name.replace(/[\r\n]/g, " ")} must lie beside this file.
from msdscore import ${names}

scorer = ${scorer}
captions = [
${cards.map((card) => `    ${quoted(card.text)},`).join("\n")}
]
expected = [${cards.map((card) => card.score.soft_msd).join(", ")}]
scores = scorer.rank(${quoted(state.file.name)}, captions)
print(scores)
assert scores.signature == ${quoted(state.version.signature)}, "other settings, weights or version than the page"
assert max(abs(a - b) for a, b in zip(scores.soft_msd, expected)) < 1e-3, "another picture than on the page?"
`;
}
