"""P-values of the changed words of wrong captions, and of the words that they replace."""

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from msdscore.core.evidence import ZERO
from msdscore.forms.base import rank_key
from msdscore.intervals import bootstrap_mean
from msdscore.text.words import segment, stem
from msdscore_lab.benchmarks.base import Pair, clusters
from msdscore_lab.stats.ranks import auc, prepare
from msdscore_lab.stats.resample import bootstrap
from msdscore_lab.studies.context import Study, measure_readable
from msdscore_lab.studies.table import Column, Row, Table, per_cent

BENCHMARK = "sugarcrepe"
SUBSETS = ("replace_obj", "replace_att")


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
