"""Figures of pairwise benchmarks: how often the right caption scores higher."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from msdscore.benchmarks.base import Pair
from msdscore.benchmarks.protocols.counting import Credit, Figure, Figures, Floats, Sheet
from msdscore.stats.pairs import TieRule, credits_of


def strict(sheet: Sheet[Pair]) -> Figures:
    """Accuracy of each subset, their mean and the accuracy over all pairs; a tie is wrong."""
    return _figures(strict_credits(sheet))


def pascal(sheet: Sheet[Pair]) -> Figures:
    """The same with a tie worth half: what breaking it at random gives on average, as CLIPScore does.

    The authors' scripts count a tie as wrong everywhere, and so do FLEUR and EXPERT.
    """
    return _figures(pascal_credits(sheet))


def strict_credits(sheet: Sheet[Pair]) -> list[Credit[Pair]]:
    """Credits of each subset, then of all pairs."""
    return _credits(sheet, "wrong")


def pascal_credits(sheet: Sheet[Pair]) -> list[Credit[Pair]]:
    """The same under Pascal-50S's rule of ties."""
    return _credits(sheet, "half" if sheet.protocol == "official" else "wrong")


def macro(values: Floats, labels: Sequence[str] | np.ndarray) -> Callable[[Floats], float]:
    """The mean of the subsets' means, as a statistic of item weights."""
    codes = np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)[1]

    def statistic(weights: Floats) -> float:
        totals = np.bincount(codes, weights=weights)
        sums = np.bincount(codes, weights=weights * values)
        return float((sums[totals > 0] / totals[totals > 0]).mean())

    return statistic


def _credits(sheet: Sheet[Pair], rule: TieRule) -> list[Credit[Pair]]:
    labels = np.array([item.subset for item in sheet.items], dtype=np.str_)
    names = list(dict.fromkeys(labels.tolist()))
    parts = [_credit(sheet.take(labels == name), f"accuracy/{name}", rule) for name in names] if len(names) > 1 else []
    return [*parts, _credit(sheet, "accuracy/all", rule)]


def _credit(sheet: Sheet[Pair], name: str, rule: TieRule) -> Credit[Pair]:
    credit = credits_of(sheet.scores[:, 0], sheet.scores[:, 1], ties=rule)
    return Credit(name, sheet.take(credit.kept), credit.values, credit.ties, credit.missing)


def _figures(credits: list[Credit[Pair]]) -> Figures:  # noqa: A002, the word of this floor
    figures = tuple(credit.figure() for credit in credits)
    return (_mean_of_subsets(credits[-1]), *figures) if len(credits) > 1 else figures


def _mean_of_subsets(whole: Credit[Pair]) -> Figure:
    if (whole.values == whole.values[:1]).all():  # resamples would agree too, and show no interval
        return replace(whole, name="accuracy/mean").figure()
    statistic = macro(whole.values, [item.subset for item in whole.sheet.items])
    counts = {"ties": whole.ties, "missing": whole.missing}
    return whole.sheet.figure("accuracy/mean", statistic, len(whole.values), **counts)
