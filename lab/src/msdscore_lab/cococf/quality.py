"""Quality of a set of counterfactuals: the accuracy of text-only readers.

Three readers without an image: the shorter caption; a bag of words that has learnt, from other images' pairs, which
words occur in wrong captions; a language model of captions of other images. A fourth can be passed: a causal language
model. All should be near one half.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from msdscore.intervals import Interval, bootstrap_mean
from msdscore_lab.benchmarks.results.grids import Grid, markdown
from msdscore_lab.cococf.changes import Counterfactual
from msdscore_lab.cococf.knowledge import TextReader, caption_model
from msdscore_lab.metrics.text_only import FOLDS, fold_of, word_gaps

TITLES = {
    "shorter": "shorter wins", "words": "bag of words", "model": "language model", "reader": "causal language model",
}  # fmt: skip
_HOW = (
    "a tie is half; 95 % intervals over images; the bag of words learns from the pairs of other images, the "
    "language model from captions of other images"
)
_CAPTIONS = 256  # that a causal language model reads between two reports of its progress


@dataclass(frozen=True, slots=True)
class QualityRow:
    """One part of the set: how often each reader without the image finds the true caption (a tie is half)."""

    split: str
    subset: str
    pairs: int
    images: int
    shorter: Interval
    words: Interval
    model: Interval
    reader: Interval | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """Accuracies of the readers, and numbers of pairs by source."""

    rows: tuple[QualityRow, ...]
    sources: Mapping[str, int]
    longer: float  # share of pairs whose wrong caption has more characters
    requested: int = 0  # pairs of both splits that the settings ask for; 0: not built here

    @property
    def leaning(self) -> tuple[str, ...]:
        """Parts of the set that can be solved from the text only: a reader's 95 % interval excludes one half.

        A bag of words below one half does not count: over all pairs, words are inserted and removed equally often, so
        words that are inserted in the training folds are removed in the test fold.
        """
        return tuple(
            f"{row.split} {row.subset}: {title} {_percent(share)}"
            for row in self.rows
            if row.subset != "all"
            for name, title in TITLES.items()
            if (share := getattr(row, name)) is not None and (share.low > 0.5 or (share.high < 0.5 and name != "words"))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self) | {"leaning": list(self.leaning)}


def judge_quality(
    pairs: Sequence[Counterfactual], reader: TextReader | None = None, *, known: Mapping[str, float] | None = None
) -> Quality:
    """Measure the quality of a set; without a reader, a model of the true captions is cross-validated in five folds.

    `known` are the log-likelihoods of all captions under a causal language model, whose accuracy is then included.
    """
    if reader is None:
        reader = _fold_reader(pairs)
    gaps = {
        "shorter": [len(pair.negative) - len(pair.positive) for pair in pairs],
        "words": word_gaps([(pair.positive, pair.negative) for pair in pairs], [fold_of(pair.image) for pair in pairs]),
        "model": [reader(pair.image, pair.positive) - reader(pair.image, pair.negative) for pair in pairs],
    }
    if known is not None:
        gaps["reader"] = [known[pair.positive] - known[pair.negative] for pair in pairs]
    guesses = {name: 0.5 + 0.5 * np.sign(np.asarray(values)) for name, values in gaps.items()}
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, pair in enumerate(pairs):
        for key in {("all", "all"), (pair.split, "all"), (pair.split, pair.subset)}:
            groups[key].append(index)
    order = sorted(groups, key=lambda key: (key[0] != "all", key[0], key[1] != "all", key[1]))
    rows = []
    for split, subset in order:
        indices = groups[split, subset]
        images = [pairs[index].image for index in indices]
        shares = {name: bootstrap_mean(values[indices], clusters=images) for name, values in guesses.items()}
        rows.append(QualityRow(split, subset, len(indices), len(set(images)), **shares))
    longer = float(np.mean([len(pair.negative) > len(pair.positive) for pair in pairs]))
    return Quality(tuple(rows), dict(Counter(pair.source for pair in pairs)), longer)


def section(quality: Quality) -> str:
    """Return the quality report in Markdown."""
    names = [name for name in TITLES if getattr(quality.rows[0], name) is not None]
    rows = [
        (row.split, row.subset, str(row.pairs), str(row.images), *(_percent(getattr(row, name)) for name in names))
        for row in quality.rows
    ]
    sources = ", ".join(f"{name or 'unnamed'} {count}" for name, count in sorted(quality.sources.items()))
    notes = [_HOW, f"captions by {sources}"]
    if quality.requested:
        built = next(row.pairs for row in quality.rows if (row.split, row.subset) == ("all", "all"))
        share = f"{100 * built / quality.requested:.1f} %"
        notes.append(f"requested: {quality.requested} pairs, built: {built} ({share}); the paper: 39,992 of 40,000")
    if quality.leaning:
        notes += ["**the text alone reveals these parts; remove them, or build from more images:**", *quality.leaning]
    columns = ("split", "change", "pairs", "images", *(TITLES[name] for name in names))
    title = "Pairs whose true caption a reader without the image finds, %; chance is 50"
    return markdown(Grid(title, columns, tuple(rows), tuple(notes)))


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def _fold_reader(pairs: Sequence[Counterfactual]) -> TextReader:
    captions = [{pair.positive for pair in pairs if fold_of(pair.image) != fold} for fold in range(FOLDS)]
    models = [caption_model({"": sorted(texts)}) for texts in captions]
    return lambda image, text: models[fold_of(image)](image, text)


def read_likelihoods(
    texts: Collection[str], source: str, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, float]:
    """Return the log-likelihood in nats of each caption under a causal language model.

    `source` is a folder, a hub name, `package:NAME/`, or any of these followed by the name of a `.gguf` file.
    """
    ordered, read, values = sorted(set(texts), key=lambda text: (len(text), text)), load_reader(source), list[float]()
    for start in range(0, len(ordered), _CAPTIONS):
        values += read(ordered[start : start + _CAPTIONS])
        progress(len(values), len(ordered))
    return dict(zip(ordered, values, strict=True))


def load_reader(source: str) -> Callable[[list[str]], list[float]]:
    """Return a function that computes log-likelihoods of captions under a causal language model."""
    import torch

    from msdscore_lab.align.language import load_language_model
    from msdscore_lab.align.recipe import LanguageSpec

    folder, _, name = source.rpartition("/")
    is_gguf = name.endswith(".gguf")
    spec = LanguageSpec(source=f"{folder or '.'}/", gguf=name) if is_gguf else LanguageSpec(source=source)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return load_language_model(spec, device=device).log_likelihoods
