"""Figures of pairwise benchmarks: how often the right caption scores higher."""

import numpy as np

from msdscore_lab.benchmarks.base import Pair
from msdscore_lab.benchmarks.protocols.counting import Credit, Sheet
from msdscore_lab.stats.pairs import TieRule, credits_of


def strict(sheet: Sheet[Pair], ties: TieRule = "wrong") -> list[Credit[Pair]]:
    """Return the accuracy of each subset, then over all pairs; a tie is wrong."""
    labels = np.array([item.subset for item in sheet.items], dtype=np.str_)
    names = list(dict.fromkeys(labels.tolist()))
    parts = [(f"accuracy/{name}", sheet.take(labels == name)) for name in names] if len(names) > 1 else []
    credits_by_part = []
    for name, part in [*parts, ("accuracy/all", sheet)]:
        first, second = part.scores.T
        values = credits_of(first, second, ties=ties)
        valid = ~np.isnan(values)
        counts = int((first == second).sum()), int((~valid).sum())
        credits_by_part.append(Credit(name, part.take(valid), values[valid], *counts))
    return credits_by_part


def pascal(sheet: Sheet[Pair]) -> list[Credit[Pair]]:
    """Return the same with half a credit for a tie, the mean of breaking it at random, like CLIPScore.

    The authors' scripts, FLEUR and EXPERT count a tie as wrong.
    """
    return strict(sheet, "half" if sheet.protocol == "official" else "wrong")
