"""Build `msdscore/text/captions.gz`, the model of English captions behind `msdscore.text.warnings`.

    python tools/caption_model.py train_flickr8k.jsonl train_coco2017.jsonl train_coco2017_texts.jsonl

Rows have `captions`, and optionally `machine` (captions by a model). Words that occur at least `LEAST` times are
grouped into classes by their neighbours; the file contains the classes and their smoothed trigram probabilities.
"""

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from msdscore.text.captions import BOUNDARY, CAPTION_MODEL, ENDINGS, MOST_SURPRISE, SURPRISE_UNIT, symbols_of, tokens
from msdscore.text.words import STOP_WORDS

LEAST = 8  # occurrences of a word in the list
CLASSES = 18
CONTEXTS = 400  # most frequent words that describe the neighbours of a word
PRIOR = 8.0  # pseudo-counts of a word's neighbours, drawn from all words
DISCOUNT = 0.75

# Words that each have a separate symbol.
_NAMED_LIST = """
a an the of in on and with is to at are his her their its it that down up some while near by through other has over for
there from out around as into who which one
"""
NAMED = _NAMED_LIST.split()
Floats = npt.NDArray[np.float64]


def captions_of(paths: Sequence[Path]) -> Iterator[str]:
    """Return all captions of the files."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            machine = row.get("machine") or []
            yield from [*row["captions"], *([machine] if isinstance(machine, str) else machine)]


def word_classes(texts: Sequence[Sequence[str]], counts: Counter[str]) -> dict[str, int]:
    """Return the class of each frequent word without a separate symbol, by the distribution of its neighbours."""
    words = [word for word, count in counts.items() if count >= LEAST and word not in NAMED]
    index = {word: number for number, word in enumerate(words)}
    frequent = {word: number for number, (word, _) in enumerate(counts.most_common(CONTEXTS), start=2)}
    sides = np.zeros((2, len(words), CONTEXTS + 3))
    for text in texts:
        padded = ["", *text, ""]
        near = [frequent.get(word, 1) if word[:1].isalnum() else 0 for word in padded]
        for number, word in enumerate(text, start=1):
            if word in index:
                sides[0, index[word], near[number - 1]] += 1
                sides[1, index[word], near[number + 1]] += 1
    total = sides.sum(axis=1, keepdims=True) / sides.sum(axis=(1, 2), keepdims=True)
    shares = (sides + PRIOR * total) / (sides.sum(axis=2, keepdims=True) + PRIOR)
    weights = np.minimum([counts[word] for word in words], 300) ** 0.5
    means = KMeans(CLASSES, n_init=3, random_state=0).fit(np.hstack(np.sqrt(shares)), sample_weight=weights)
    return dict(zip(words, means.labels_.tolist(), strict=True))


def trigram_counts(texts: Sequence[Sequence[str]], symbols: dict[str, int], size: int) -> Floats:
    """Count symbol trigrams; every sentence begins with two boundary symbols."""
    counts = np.zeros((size, size, size))
    for text in texts:
        before, last = BOUNDARY, BOUNDARY
        for symbol in symbols_of(text, symbols, size):
            counts[before, last, symbol] += 1
            before, last = (BOUNDARY, BOUNDARY) if symbol == BOUNDARY else (last, symbol)
    return counts


def smoothed(counts: Floats) -> tuple[Floats, Floats]:
    """Return trigram probabilities, by absolute discounting with interpolation, and unigram probabilities."""
    single = counts.sum(axis=(0, 1)) + 0.5
    single /= single.sum()

    def level(own: Floats, shorter: Floats) -> Floats:
        total, kinds = own.sum(axis=-1, keepdims=True), (own > 0).sum(axis=-1, keepdims=True)
        rest = (np.maximum(own - DISCOUNT, 0) + DISCOUNT * kinds * shorter) / np.maximum(total, 1)
        return np.where(total > 0, rest, shorter)

    return level(counts, level(counts.sum(axis=0), single)[None]), single


def bits(probabilities: Floats) -> npt.NDArray[np.uint8]:
    """Return the surprisal in the units of the file."""
    return np.clip(np.round(-np.log2(probabilities) / SURPRISE_UNIT), 0, MOST_SURPRISE / SURPRISE_UNIT).astype(np.uint8)


def main() -> None:
    """Build the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=CAPTION_MODEL)
    given = parser.parse_args()
    texts = [tokens(caption.lower()) for caption in captions_of(given.rows)]
    counts = Counter(word for text in texts for word in text if word[0].isalnum())
    classes = word_classes(texts, counts)
    groups = [[word for word, own in classes.items() if own == number] for number in range(CLASSES)]
    groups = [sorted(group, key=lambda word: (-counts[word], word)) for group in groups]
    lists = [["."], [","], *[[word] for word in NAMED], *groups]
    symbols = {word: number for number, group in enumerate(lists) for word in group}
    trigrams, single = smoothed(trigram_counts(texts, symbols, len(lists) + len(ENDINGS)))
    silent = [sum(counts[w] for w in g if w in STOP_WORDS) > sum(counts[w] for w in g) / 2 for g in lists[2:]]
    content = [False, False, *(not flag for flag in silent), *[True] * len(ENDINGS)]
    model = {
        "words": [" ".join(group) for group in lists],
        "content": [int(flag) for flag in content],
        "single": bits(single).tolist(),
    }
    given.output.write_bytes(gzip.compress(json.dumps(model).encode() + b"\n" + bits(trigrams).tobytes(), mtime=0))


if __name__ == "__main__":
    main()
