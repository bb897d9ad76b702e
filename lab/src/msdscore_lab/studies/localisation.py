"""Accuracy of explanations at the level of words.

Three studies: p-values of changed words, suggestions for a word in doubt, and missing words.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import to_numpy
from msdscore.core.evidence import ZERO
from msdscore.errors import RowError
from msdscore.explain.explanation import explain
from msdscore.forms.base import rank_key
from msdscore.intervals import Floats, Interval, bootstrap_mean
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import segment, stem
from msdscore_lab.bank.calibrate import stems_of
from msdscore_lab.benchmarks.base import Pair, clusters, image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage
from msdscore_lab.stats.ranks import auc, prepare
from msdscore_lab.stats.resample import bootstrap
from msdscore_lab.studies.context import Study, every_nth, measure_readable, require_bank
from msdscore_lab.studies.table import Column, Row, Table, per_cent

BENCHMARK = "sugarcrepe"
SUBSETS = ("replace_obj", "replace_att")
_UNREADABLE = [float("nan")] * 4


def replacements(study: Study) -> tuple[list[Pair], dict[str, tuple[str, str]]]:
    """Return pairs that differ in one content word, and the original and replacing word by id."""
    pairs = [pair for pair in study.items(BENCHMARK) if isinstance(pair, Pair) and pair.subset in SUBSETS]
    words = {pair.id: replaced for pair in pairs if (replaced := replaced_word(pair.positive, pair.negative))}
    return study.sample([pair for pair in pairs if pair.id in words], " that differ in one word"), words


def changed(study: Study) -> list[Table]:
    """P-values of the changed words of wrong captions, and of the original words."""
    pipeline = study.pipeline()
    pairs, words = replacements(study)

    def measure(batch: Sequence[Pair]) -> list[list[float]]:
        """Return the doubt of the original and of the replacing word of every pair; NaN if it is not judged."""
        texts = [caption for pair in batch for caption in pair.captions]
        cells = [(index // 2, index) for index in range(len(texts))]
        readable, measured = measure_readable(pipeline, [pair.image for pair in batch], texts, cells)
        doubts = np.full((len(batch), 2), np.nan)
        for row, index in enumerate(readable):
            assert measured is not None, "some pairs are readable"
            pair, side = divmod(index, 2)
            word = stem(words[batch[pair].id][side].casefold())
            units = pipeline.form.units(measured, row)
            found = [rank_key(unit) for unit in units if stem(unit.text.casefold()) == word]
            doubts[pair, side] = next((value for value in reversed(found) if value is not None), np.nan)
        return [[float(value) for value in pair_doubts] for pair_doubts in doubts]

    values, names = np.array(study.rows("changed", pairs, measure, pipeline)), clusters(pairs)
    judged = ~np.isnan(values).any(axis=1)
    subsets = np.array([pair.subset for pair in pairs])
    rows: list[Row] = []
    for subset in (*SUBSETS, "both"):
        selected = judged & ((subsets == subset) | (subset == "both"))
        if not selected.any():
            continue
        true, false = values[selected, 0], values[selected, 1]
        ranked = prepare(np.concatenate([true, false]), np.repeat([0.0, 1.0], len(true)))
        shares = {"changed": -false < ZERO, "original": -true < ZERO, "lower": (false > true) + 0.5 * (false == true)}
        rows.append({
            "subset": subset, "n": int(selected.sum()),
            **{name: bootstrap_mean(flags.astype(float), clusters=names[selected]) for name, flags in shares.items()},
            "auc": bootstrap(
                lambda weights, ranked=ranked: auc(ranked, np.tile(weights, 2)),  # type: ignore[misc]
                len(true), clusters=names[selected],
            ),
        })  # fmt: skip
    columns = [Column("subset"), Column("n", "pairs"), per_cent("changed", f"changed word below {ZERO:g}"),
               per_cent("original", "original below it"), per_cent("lower", "changed below original"),
               per_cent("auc", "AUC")]  # fmt: skip
    return [Table(
        name="changed", title="P-values of changed words of SugarCrepe and of the words they replace, per cent",
        columns=columns, rows=rows, signature=pipeline.signature,
        notes=[f"{int((~judged).sum())} of {len(pairs)} pairs are left out: one of the words is not judged"],
    )]  # fmt: skip


def suggestions(study: Study) -> list[Table]:
    """Measure how often the original word is among the suggestions for its replacement in a wrong caption."""
    pipeline = study.pipeline()
    require_bank(pipeline, "vocabulary")
    chosen, words = replacements(study)
    values = np.array(study.rows(
        "suggestions", chosen, lambda batch: [_suggested(pipeline, item, *words[item.id]) for item in batch], pipeline
    ))  # fmt: skip
    names, subsets = clusters(chosen), np.array([pair.subset for pair in chosen])
    rows: list[Row] = []
    for subset in SUBSETS:
        readable = (subsets == subset) & ~np.isnan(values[:, 0])
        suggested = readable & (values[:, 1] > 0)
        shares = {"doubtful": (readable, 0), "named": (readable, 1), "right": (suggested, 2), "true": (suggested, 3)}
        means = {name: _mean(values[mask, column], names[mask]) for name, (mask, column) in shares.items()}
        if readable.any():
            rows.append({"subset": subset, "n": int(readable.sum()), **means})
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
    """Return the content word that was replaced, and its replacement; None unless exactly one word changed.

    >>> replaced_word("a red car on a road", "a blue car on a road")
    ('red', 'blue')
    """
    words = [_changed_words(wrong, right), _changed_words(right, wrong)]
    return (words[0][0], words[1][0]) if list(map(len, words)) == [1, 1] else None


def _changed_words(before: str, after: str) -> list[str]:
    """Return the content words of `after` that differ from `before`."""
    old, new = ([piece for piece in segment(text) if piece.kind == "word"] for text in (before, after))
    old_texts, new_texts = ([piece.text.casefold() for piece in pieces] for pieces in (old, new))
    changes = SequenceMatcher(None, old_texts, new_texts, autojunk=False).get_opcodes()
    return [word.text for tag, _, _, low, high in changes if tag != "equal" for word in new[low:high] if word.content]


def _suggested(pipeline: Pipeline, pair: Pair, original: str, replacement: str) -> list[float]:
    """Return whether the replacement is in doubt and has suggestions, with the original or another true word."""
    try:
        item = explain(pipeline, image_source(pair.image), [pair.negative])[0]
    except RowError:
        return _UNREADABLE
    replaced_stem = stem(replacement.casefold())
    doubtful = any(stem(unit.text.casefold()) == replaced_stem for unit in item.doubtful)
    suggested = (suggestion for suggestion in item.suggestions if stem(suggestion.word.casefold()) == replaced_stem)
    instead = {stem(named.word) for suggestion in suggested for named in suggestion.instead}
    correct = stem(original.casefold()) in instead, bool(instead & stems_of([pair.positive]))
    return [float(value) for value in (doubtful, bool(instead), *correct)]


def missing(study: Study) -> list[Table]:
    """Measure how many words reported as missing from a caption are in another caption of the image."""
    pipeline = study.pipeline()
    vocabulary = require_bank(pipeline, "vocabulary")
    frequent = [
        vocabulary.stems[index] for index in np.argsort(-to_numpy(vocabulary.frequency), kind="stable").tolist()
    ]
    entries = every_nth(study.captioned(captions=2), study.limit)
    values = np.array(
        study.rows(
            "missing", entries, lambda batch: [_confirmed(pipeline, entry, frequent) for entry in batch], pipeline
        )
    )
    values = values[~np.isnan(values[:, 0])]
    with_missing = values[values[:, 0] > 0]
    row: Row = {
        "n": len(values),
        "words": float(values[:, 0].mean()),
        "right": _mean(with_missing[:, 1] / with_missing[:, 0]),
        "first": _mean(with_missing[:, 2]),
        "frequent": _mean(with_missing[:, 3] / with_missing[:, 0]),
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
    """Return the numbers of missing and of confirmed words, whether the first is confirmed, and of frequent words."""
    first, *others = entry.captions
    try:
        item = explain(pipeline, image_source(entry.image), [first])[0]
    except RowError:
        return _UNREADABLE
    other_stems, own_stems = stems_of(others), stems_of([first])
    confirmed = [stem(word.word) in other_stems for word in item.missing]
    baseline = [word for word in frequent if word not in own_stems][: len(confirmed)]
    return [
        float(value)
        for value in (
            len(confirmed),
            sum(confirmed),
            confirmed[:1] == [True],
            sum(name in other_stems for name in baseline),
        )
    ]


def _mean(values: Floats, names: npt.NDArray[np.str_] | None = None) -> Interval | None:
    return bootstrap_mean(values, clusters=names) if len(values) else None
