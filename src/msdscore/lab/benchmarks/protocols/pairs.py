"""Figures of pairwise benchmarks: how often the right caption scores higher."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from msdscore.lab.benchmarks.base import Pair
from msdscore.lab.benchmarks.protocols.counting import Credit, Figures, Floats, Sheet
from msdscore.lab.stats.pairs import TieRule, credits_of


def strict(sheet: Sheet[Pair]) -> Figures:
    """Return the accuracy of each subset, their mean and the accuracy over all pairs; a tie is wrong."""
    return _figures(strict_credits(sheet))


def pascal(sheet: Sheet[Pair]) -> Figures:
    """Return the same figures with half a credit for a tie, the mean of breaking it at random, like CLIPScore.

    The authors' scripts, FLEUR and EXPERT count a tie as wrong.
    """
    return _figures(pascal_credits(sheet))


def strict_credits(sheet: Sheet[Pair], ties: TieRule = "wrong") -> list[Credit[Pair]]:
    """Return the credits of each subset, then of all pairs."""
    labels = np.array([item.subset for item in sheet.items], dtype=np.str_)
    names = list(dict.fromkeys(labels.tolist()))
    parts = [(f"accuracy/{name}", sheet.take(labels == name)) for name in names] if len(names) > 1 else []
    credits_by_part = []
    for name, part in [*parts, ("accuracy/all", sheet)]:
        credit = credits_of(part.scores[:, 0], part.scores[:, 1], ties=ties)
        credits_by_part.append(Credit(name, part.take(credit.kept), credit.values, credit.ties, credit.missing))
    return credits_by_part


def pascal_credits(sheet: Sheet[Pair]) -> list[Credit[Pair]]:
    """Return the credits with the tie rule of Pascal-50S."""
    return strict_credits(sheet, "half" if sheet.protocol == "official" else "wrong")


def macro(values: Floats, labels: Sequence[str] | np.ndarray) -> Callable[[Floats], float]:
    """Return the mean of the subsets' means, as a statistic of item weights."""
    codes = np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)[1]

    def statistic(weights: Floats) -> float:
        totals = np.bincount(codes, weights=weights)
        sums = np.bincount(codes, weights=weights * values)
        return float((sums[totals > 0] / totals[totals > 0]).mean())

    return statistic


def _figures(parts: list[Credit[Pair]]) -> Figures:
    figures, whole = tuple(part.figure() for part in parts), parts[-1]
    if len(parts) == 1:
        return figures
    if (whole.values == whole.values[:1]).all():  # resamples would all be equal
        return replace(whole, name="accuracy/mean").figure(), *figures
    statistic = macro(whole.values, [item.subset for item in whole.sheet.items])
    counts = {"ties": whole.ties, "missing": whole.missing}
    return whole.sheet.figure("accuracy/mean", statistic, len(whole.values), **counts), *figures
