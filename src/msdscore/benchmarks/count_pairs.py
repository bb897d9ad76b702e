"""Figures of pairwise benchmarks: how often the right caption scores higher."""

from collections.abc import Callable

import numpy as np

from msdscore.benchmarks.base import Pair
from msdscore.benchmarks.figure import Figure, Figures, Floats, Sheet
from msdscore.stats.pairs import TieRule, credits_of


def strict(sheet: Sheet[Pair]) -> Figures:
    """Accuracy of each subset, their mean and the accuracy over all pairs; a tie is wrong."""
    return _accuracies(sheet, "wrong")


def pascal(sheet: Sheet[Pair]) -> Figures:
    """The same with a tie worth half: what breaking it at random gives on average, as CLIPScore does.

    The authors' scripts count a tie as wrong everywhere, and so do FLEUR and EXPERT.
    """
    return _accuracies(sheet, "half" if sheet.protocol == "official" else "wrong")


def _accuracies(sheet: Sheet[Pair], rule: TieRule) -> Figures:
    labels = np.array([item.subset for item in sheet.items], dtype=np.str_)
    whole = _accuracy(sheet, "accuracy/all", rule)
    names = list(dict.fromkeys(labels.tolist()))
    if len(names) < 2:
        return (whole,)
    parts = tuple(_accuracy(sheet.take(labels == name), f"accuracy/{name}", rule) for name in names)
    return (_mean_of_subsets(sheet, labels, rule), *parts, whole)


def _accuracy(sheet: Sheet[Pair], name: str, rule: TieRule) -> Figure:
    credit = credits_of(sheet.scores[:, 0], sheet.scores[:, 1], ties=rule)
    kept = sheet.take(credit.kept)
    return kept.mean_figure(name, credit.values, ties=credit.ties, missing=credit.missing)


def _mean_of_subsets(sheet: Sheet[Pair], labels: np.ndarray, rule: TieRule) -> Figure:
    credit = credits_of(sheet.scores[:, 0], sheet.scores[:, 1], ties=rule)
    statistic = _macro(credit.values, labels[credit.kept])
    kept, counts = sheet.take(credit.kept), {"ties": credit.ties, "missing": credit.missing}
    return kept.figure("accuracy/mean", statistic, len(credit.values), **counts)


def _macro(values: Floats, labels: np.ndarray) -> Callable[[Floats], float]:
    codes = np.unique(labels, return_inverse=True)[1]

    def statistic(weights: Floats) -> float:
        totals = np.bincount(codes, weights=weights)
        sums = np.bincount(codes, weights=weights * values)
        return float((sums[totals > 0] / totals[totals > 0]).mean())

    return statistic
