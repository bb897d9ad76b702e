"""Are the words right that an explanation names: those missing from a caption, and those instead of a word in doubt?"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.base import Pair, clusters, image_source
from msdscore.benchmarks.readers.captioned import CaptionedImage
from msdscore.benchmarks.readers.rows import captioned_images
from msdscore.core.evidence import Vocabulary
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.explain.explanation import explain
from msdscore.scoring.calibrate import stems_of
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.context import Study, drawn_pairs, every_nth, split
from msdscore.studies.localisation import BENCHMARK, SUBSETS, changed_words
from msdscore.studies.table import Column, Row, Table, per_cent
from msdscore.text.words import segment, stem

_ITEMS = 16  # of a batch
_UNREADABLE = [float("nan")] * 4


def suggestions(study: Study) -> list[Table]:
    """How often the original word is among the suggestions for the word that replaced it, in wrong captions."""
    pipeline = study.pipeline()
    _vocabulary(pipeline)
    pairs = [pair for pair in study.items(BENCHMARK) if isinstance(pair, Pair) and pair.subset in SUBSETS]
    words = {pair.id: both for pair in pairs if (both := replaced_word(pair.positive, pair.negative))}
    if not words:
        raise InputError("expected wrong captions in which one word is replaced by another, got none")
    chosen = drawn_pairs([pair for pair in pairs if pair.id in words], study.limit, study.seed)

    def measure(_: int, batch: Sequence[Pair]) -> list[list[float]]:
        return [_suggested(pipeline, pair, *words[pair.id]) for pair in batch]

    answers = study.run("suggestions", split(chosen, _ITEMS), measure, pipeline)
    values = np.array([row for answer in answers for row in answer])
    names, subsets = clusters(chosen), np.array([pair.subset for pair in chosen])
    rows: list[Row] = []
    for subset in SUBSETS:
        here = (subsets == subset) & ~np.isnan(values[:, 0])
        named = here & (values[:, 1] > 0)
        shares = {"doubtful": (here, 0), "named": (here, 1), "right": (named, 2), "true": (named, 3)}
        means = {name: _mean(values[mask, column], names[mask]) for name, (mask, column) in shares.items()}
        if here.any():
            rows.append({"subset": subset, "n": int(here.sum()), **means})
    columns = [
        Column("subset"),
        Column("n", "captions"),
        per_cent("doubtful", "replaced word in doubt"),
        per_cent("named", "and has suggestions"),
        per_cent("right", "of these: the original among them"),
        per_cent("true", "a word of the true caption among them"),
    ]
    title = "Suggestions for the replaced word of wrong SugarCrepe captions, per cent"
    return [Table(name="rows", title=title, columns=columns, rows=rows, signature=pipeline.signature)]


def replaced_word(right: str, wrong: str) -> tuple[str, str] | None:
    """The one content word that was replaced, and the one that replaced it; None where more has changed.

    >>> replaced_word("a red car on a road", "a blue car on a road")
    ('red', 'blue')
    """
    changed = []
    for before, after in ((wrong, right), (right, wrong)):
        words = [word for word in segment(after) if word.content]
        numbers = changed_words(before, after)
        if len(numbers) != 1:
            return None
        changed.append(words[next(iter(numbers))].text)
    return changed[0], changed[1]


def _suggested(pipeline: Pipeline, pair: Pair, original: str, replacement: str) -> list[float]:
    """Whether the replacement is in doubt, has suggestions, has the original among them, or another true word."""
    try:
        item = explain(pipeline, image_source(pair.image), [pair.negative])[0]
    except RowError:
        return _UNREADABLE
    wrong = stem(replacement.casefold())
    doubtful = any(stem(unit.text.casefold()) == wrong for unit in item.doubtful)
    suggested = (suggestion for suggestion in item.suggestions if stem(suggestion.word.casefold()) == wrong)
    instead = {stem(named.word) for suggestion in suggested for named in suggestion.instead}
    right = stem(original.casefold()) in instead, bool(instead & stems_of([pair.positive]))
    return [float(value) for value in (doubtful, bool(instead), *right)]


def missing(study: Study) -> list[Table]:
    """How many words that are called missing from a caption one of the image's other captions has."""
    pipeline = study.pipeline()
    vocabulary = _vocabulary(pipeline)
    frequent = [vocabulary.stems[number] for number in vocabulary.frequency.argsort(descending=True).tolist()]
    entries = [entry for entry in captioned_images(study.root) if len(entry.captions) > 1]
    if not entries:
        raise InputError("expected images with at least two captions each, got none")
    chosen = [entries[number] for number in every_nth(range(len(entries)), study.limit)]

    def measure(_: int, batch: Sequence[CaptionedImage]) -> list[list[float]]:
        return [_confirmed(pipeline, entry, frequent) for entry in batch]

    answers = study.run("missing", split(chosen, _ITEMS), measure, pipeline)
    values = np.array([row for answer in answers for row in answer])
    values = values[~np.isnan(values[:, 0])]
    named = values[values[:, 0] > 0]
    row: Row = {
        "n": len(values),
        "words": float(values[:, 0].mean()),
        "right": _mean(named[:, 1] / named[:, 0]),
        "first": _mean(named[:, 2]),
        "frequent": _mean(named[:, 3] / named[:, 0]),
    }
    columns = [
        Column("n", "images"),
        Column("words", "words named per caption", ".1f"),
        per_cent("right", "confirmed by another caption"),
        per_cent("first", "the first of them"),
        per_cent("frequent", "as many of the most frequent words"),
    ]
    title = "Words called missing from one caption of an image that its other captions have, per cent"
    return [Table(name="rows", title=title, columns=columns, rows=[row], signature=pipeline.signature)]


def _confirmed(pipeline: Pipeline, entry: CaptionedImage, frequent: Sequence[str]) -> list[float]:
    """Words named, how many others confirm, whether they confirm the first, and the same of frequent words."""
    first, *others = entry.captions
    try:
        item = explain(pipeline, image_source(entry.image), [first])[0]
    except RowError:
        return _UNREADABLE
    true, said = stems_of(others), stems_of([first])
    right = [stem(word.word) in true for word in item.missing]
    plain = [word for word in frequent if word not in said][: len(right)]
    return [float(value) for value in (len(right), sum(right), right[:1] == [True], sum(w in true for w in plain))]


def _vocabulary(pipeline: Pipeline) -> Vocabulary:
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None:
        raise ConfigError("expected a bank with a vocabulary; build one with: msdscore bank IMAGES --pairs ROWS.jsonl")
    return vocabulary


def _mean(values: npt.NDArray[np.float64], names: npt.NDArray[np.str_] | None = None) -> Interval | None:
    return bootstrap_mean(values, clusters=names) if len(values) else None
