"""Quality of a set of counterfactuals: accuracy of text-only readers, and faults of the text.

Three readers without an image: the shorter caption; a bag of words that has learnt, from other images' pairs, which
words occur in wrong captions; a language model of captions of other images. A fourth can be passed: a causal language
model, whose log-likelihoods are stored until all are computed. All should be near one half.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.intervals import Interval, bootstrap_mean
from msdscore_lab.benchmarks.run.runner import keep_answers
from msdscore_lab.cococf.changes import Counterfactual
from msdscore_lab.cococf.knowledge import TextReader, caption_model
from msdscore_lab.cococf.sites import read_caption
from msdscore_lab.edits import ARTICLES, article
from msdscore_lab.metrics.text_only import FOLDS, fold_of, word_gaps

TITLES = {
    "shorter": "shorter wins", "words": "bag of words", "model": "language model", "reader": "causal language model",
}  # fmt: skip
_HOW = (
    "A tie is half; 95 % intervals over images. The bag of words learns from the pairs of other images, the "
    "language model from captions of other images."
)
PART_CAPTIONS = 256  # captions per stored part of a causal language model
_DECIMALS = 3  # of log-likelihoods; differences between machines and batches are smaller


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
    """Accuracies of the readers, numbers of pairs by source, and numbers of faults."""

    rows: tuple[QualityRow, ...]
    sources: Mapping[str, int]
    faults: Mapping[str, int]
    longer: float  # share of pairs whose wrong caption has more characters
    reader: str = ""  # name of the causal language model
    # Pairs before its refinement, and the accuracies of both language models on them.
    pool: Mapping[str, Any] | None = None
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
    return Quality(tuple(rows), dict(Counter(pair.source for pair in pairs)), find_faults(pairs), longer)


def find_faults(pairs: Sequence[Counterfactual]) -> dict[str, int]:
    """Count faulty pairs by fault; all counts of a valid set are zero."""
    faults = Counter[str](dict.fromkeys(_FAULTS, 0))
    for pair in pairs:
        faults.update(name for name, is_wrong in _FAULTS.items() if is_wrong(pair))
    return dict(faults)


def outside_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a caption without its changed characters.

    >>> outside_spans("a red car", [(2, 5)])
    'a \\x00 car'
    """
    parts, position = [], 0
    for start, end in spans:
        parts.append(text[position:start])
        position = end
    return "\0".join([*parts, text[position:]])


def section(quality: Quality) -> str:
    """Return the quality report in Markdown."""
    names = [name for name in TITLES if getattr(quality.rows[0], name) is not None]
    heads = " | ".join(TITLES[name] for name in names)
    lines = [f"| split | change | pairs | images | {heads} |", f"|---|---|---:|---:|{'---:|' * len(names)}"]
    for row in quality.rows:
        shares = " | ".join(_percent(getattr(row, name)) for name in names)
        lines.append(f"| {row.split} | {row.subset} | {row.pairs} | {row.images} | {shares} |")
    faults = ", ".join(f"{name}: {count}" for name, count in quality.faults.items())
    sources = ", ".join(f"{name or 'unnamed'} {count}" for name, count in sorted(quality.sources.items()))
    if quality.requested:
        built = sum(row.pairs for row in quality.rows if row.split == "all" and row.subset == "all")
        share = f"{100 * built / quality.requested:.1f} %"
        lines += ["", f"Requested: {quality.requested} pairs; built: {built} ({share}). Paper: 39,992 of 40,000."]
    if quality.pool:
        model, reader = _percent(quality.pool["model"]), _percent(quality.pool["reader"])
        before = f"{quality.pool['pairs']} pairs, language model {model}, {quality.reader} {reader}"
        lines += ["", f"Before refinement: {before}."]
    lines += ["", f"Share of pairs (%) whose true caption a reader without the image finds; chance is 50. {_HOW}"]
    if quality.leaning:
        lines += ["", "**The text alone reveals these parts; remove them, or build from more images:**", ""]
        lines += [f"- {line}" for line in quality.leaning]
    return "\n".join([*lines, "", f"Captions by: {sources}.", "", f"Faults: {faults}.", ""])


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def _fold_reader(pairs: Sequence[Counterfactual]) -> TextReader:
    captions = [{pair.positive for pair in pairs if fold_of(pair.image) != fold} for fold in range(FOLDS)]
    models = [caption_model({"": sorted(texts)}) for texts in captions]
    return lambda image, text: models[fold_of(image)](image, text)


def _has_wrong_article(pair: Counterfactual) -> bool:
    words = read_caption(pair.negative).words
    return any(first in ARTICLES and first != article(second) for first, second in pairwise(words))


def _has_other_changes(pair: Counterfactual) -> bool:
    """Return whether the captions differ outside of their spans."""
    true, false = outside_spans(pair.positive, pair.positive_spans), outside_spans(pair.negative, pair.negative_spans)
    return bool(pair.negative_spans) and true != false


_FAULTS: dict[str, Callable[[Counterfactual], bool]] = {
    "same captions": lambda pair: pair.positive.casefold() == pair.negative.casefold(),
    "wrong article": _has_wrong_article,
    "word twice in a row": lambda pair: re.search(r"\b(\w+) \1\b", pair.negative, re.IGNORECASE) is not None,
    "changes outside of the recorded spans": _has_other_changes,
}


def read_likelihoods(
    texts: Collection[str],
    source: str,
    *,
    keep: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Return the log-likelihood in nats of each caption under a causal language model.

    `source` is a folder, a hub name, `package:NAME/`, or any of these followed by the name of a `.gguf` file. An
    interrupted computation resumes from the parts next to `keep`.
    """
    ordered = sorted(set(texts), key=lambda text: (len(text), text))
    parts = [ordered[start : start + PART_CAPTIONS] for start in range(0, len(ordered), PART_CAPTIONS)]
    load = cache(load_reader)  # loaded for the first caption: finished results need no weights
    manifest = {"reader": source, "texts": blake2b("\0".join(ordered).encode(), digest_size=16).hexdigest()}
    answers = keep_answers(
        keep,
        manifest,
        parts,
        lambda _, part: [round(value, _DECIMALS) for value in load(source)(part)],
        progress=lambda done, _: progress(min(done * PART_CAPTIONS, len(ordered)), len(ordered)),
    )
    return dict(zip(ordered, chain.from_iterable(answers), strict=True))


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
