"""Rates of caption warnings for other languages (hits) and English captions (false alarms), and their cost.

    python perf/caption_warnings.py FOLDER

FOLDER contains files of rows (`*.jsonl`) with English captions. The captions in other languages are in
`foreign_captions.json`; the word lists and thresholds in the code were tuned on `chosen_on` and `shared_words`, and
`written_after` is a test set.
"""

import json
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random

from msdscore.text.captions import FORM_WARNINGS, form_warnings, tokens
from msdscore.text.warnings import guarded_warnings, text_warnings
from msdscore.text.words import content_words, each_word


def english_captions(folder: Path) -> dict[str, list[str]]:
    """Return all captions and references of every file of rows."""
    captions_by_file = {}
    for path in sorted(folder.glob("*.jsonl")):
        captions: list[str] = []
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            for name in ("caption", "captions", "machine", "references"):
                value = row.get(name) or []
                captions += [value] if isinstance(value, str) else value
        if captions:
            captions_by_file[path.stem] = captions
    return captions_by_file


def without_form(rows: Path) -> dict[str, list[str]]:
    """Return texts that are not captions, such as lists of the words of several captions of an image."""
    texts_by_kind: dict[str, list[str]] = {}
    random = Random(0)
    for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
        vocabulary = sorted({word for caption in row["captions"] for word in content_words(caption)})
        words = random.sample(vocabulary, min(10, len(vocabulary)))
        bare = row["captions"][0].rstrip(" .")
        texts = {f"list of {count} words": " ".join(words[:count]) for count in (5, 10)}
        texts |= {f"caption and {count} words": " ".join([bare, *words[:count]]) for count in (3, 5)}
        texts["list with commas"] = ", ".join(words)
        texts["a photo of a X and a Y"] = "a photo of " + " and ".join(f"a {word}" for word in words[:6])
        for caption in row["captions"]:
            spoken = list(each_word(caption))
            texts |= {"sorted": " ".join(sorted(spoken)), "shuffled": " ".join(random.sample(spoken, len(spoken)))}
            texts |= {"twice": " ".join([caption] * 2), "three times": " ".join([caption] * 3)}
        for name, text in texts.items():
            texts_by_kind.setdefault(name, []).append(text)
    return texts_by_kind


def main() -> None:
    """Print both rates and the time per caption."""
    halves = json.loads((Path(__file__).parent / "foreign_captions.json").read_text(encoding="utf-8"))
    for name, languages in halves.items():
        captions = list(chain.from_iterable(languages.values()))
        missed = [caption for caption in captions if "not English" not in text_warnings(caption, english=True)]
        hits = len(captions) - len(missed)
        print(
            f"{name}: {hits} of {len(captions)} captions in {len(languages)} languages are detected; missed: {missed}"
        )
    for name, texts in without_form(Path(sys.argv[1]) / "val_flickr8k.jsonl").items():
        detected = [form_warnings(tokens(text.lower()), english=True) for text in texts]
        share, guarded = (sum(map(bool, warned)) / len(texts) for warned in (detected, map(guarded_warnings, texts)))
        print(f"{name}: {100 * share:.1f} % of {len(texts)} texts are detected, {100 * guarded:.1f} % guarded")
    count, total, seconds = 0, Counter[str](), 0.0
    for name, captions in english_captions(Path(sys.argv[1])).items():
        begin = time.process_time()
        warnings = [text_warnings(caption, english=True) for caption in captions]
        seconds += time.process_time() - begin
        kinds = Counter(kind for row in warnings for kind in row)
        kinds["guarded"] = sum(bool(guarded_warnings(caption)) for caption in captions)
        kinds["form, any"] = sum(not FORM_WARNINGS.isdisjoint(row) for row in warnings)
        print(f"{name}: {len(captions)} captions; " + ", ".join(f"{kind} {n}" for kind, n in kinds.items()))
        count, total = count + len(captions), total + kinds
    shares = ", ".join(f"{kind} {100 * n / count:.3f} %" for kind, n in total.items())
    print(f"all {count} English captions: {shares}; {seconds / count * 1e6:.0f} µs of one core per caption")


if __name__ == "__main__":
    main()
