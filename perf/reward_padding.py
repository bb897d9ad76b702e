"""Effect of padding on the reward: filler, repetition and generic sentences added to real captions.

    python perf/reward_padding.py DATA/dev_thumb.jsonl [--limit 200] [--encoder mini]

Rows have `image` (a name in the `.images*.parquet` next to the file) and `caption` or `captions`; the second of several
captions is added as a control: true detail, which should raise the reward. Prints, for the reward and for the cosine,
the mean change in standard deviations of the original values, with a 95 % interval over images, and the fraction of
captions with a higher value.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from msdscore import ScorerSpec
from msdscore.intervals import bootstrap_mean
from msdscore.rows.images import StoredImages
from msdscore_lab.stats.ranks import kendall_b, prepare
from msdscore_torch.integrations.shared import shared_scorer
from msdscore_torch.integrations.trl import length_neutral

FILLER = (
    "The image captures a moment in time.",
    "The scene is rich in detail and atmosphere.",
    "Overall, the picture conveys a natural and calm mood.",
    "The composition draws the viewer's attention to the main subject.",
    "The lighting and colors add depth to the photograph.",
)
GENERIC = (
    "There are several objects visible in the background.",
    "The scene takes place during the day.",
    "People and things are arranged across the frame.",
)
Padding = Callable[[str, Random], str]
PADDINGS: dict[str, Padding] = {
    "one sentence of filler": lambda text, chance: f"{text} {chance.choice(FILLER)}",
    "three sentences of filler": lambda text, chance: " ".join([text, *chance.sample(FILLER, 3)]),
    "five sentences of filler": lambda text, chance: " ".join([text, *FILLER]),
    "one generic sentence": lambda text, chance: f"{text} {chance.choice(GENERIC)}",
    "three generic sentences": lambda text, chance: " ".join([text, *GENERIC]),
    "said twice": lambda text, chance: f"{text} {text}",
    "In this image, we can see …": lambda text, chance: f"In this image, we can see {text[0].lower()}{text[1:]}",
    "A beautiful, detailed photograph of …": lambda text, chance: (
        f"A beautiful and detailed photograph of {text[0].lower()}{text[1:]}"
    ),
}


def sentence(text: str) -> str:
    return text.strip().rstrip(" .") + "."


def variants(captions: list[str]) -> dict[str, str]:
    plain = sentence(captions[0])
    texts = {"plain": plain} | {name: pad(plain, Random(plain)) for name, pad in PADDINGS.items()}
    if len(captions) > 1:
        texts["control: another person's caption added"] = f"{plain} {sentence(captions[1])}"
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--encoder", default="mini")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines()]
    Random(0).shuffle(rows)
    rows = rows[: args.limit]
    stored = StoredImages(sorted(args.rows.parent.glob(f"{args.rows.stem}.images*.parquet")), "file_name")
    texts = [variants(row["captions"] if "captions" in row else [row["caption"]]) for row in rows]
    names = list(texts[0])
    scorer = shared_scorer(length_neutral(ScorerSpec(encoder=args.encoder)))
    scores = scorer.score_batch(
        [stored.find(row["image"]).read() for row in rows],
        [variant[name] for variant in texts for name in names],
        owner=[number for number, variant in enumerate(texts) for _ in variant],
    )
    print(f"{args.rows.stem}, {len(rows)} captions, {scorer.signature}")
    lengths = [len(variant["plain"].split()) for variant in texts]
    for column in ("msd", "similarity"):
        values = scores.columns[column].reshape(len(rows), len(names))
        spread = values[:, 0].std()
        print(f"\n{column}: standard deviation {spread:.3f}, tau-b with the number of words", end=" ")
        print(f"{kendall_b(prepare(values[:, 0], lengths)):+.3f}")
        for index, name in enumerate(names[1:], start=1):
            change = (values[:, index] - values[:, 0]) / spread
            mean = bootstrap_mean(change, clusters=[row["image"] for row in rows])
            raised = float((change > 1e-9).mean())
            print(f"  {name:42} {mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}]  raised {raised:4.0%}")


if __name__ == "__main__":
    main()
