"""Figures of DocENT: agreement and correlation with people on mistakes, omissions and overall quality."""

from collections.abc import Callable

import numpy as np

from msdscore.benchmarks.base import Battle
from msdscore.benchmarks.protocols.figure import Credit, Figure, Figures, Floats, Sheet
from msdscore.benchmarks.readers.docent import ASPECTS
from msdscore.stats.pairs import agreement, decide_beyond, decide_matched
from msdscore.stats.ranks import MEASURES, prepare

_OFFICIAL = (("spearman", "spearman"), ("kendall", "kendall_b"))
_AUTHORS = (*_OFFICIAL, ("pearson", "pearson"))


def docent(sheet: Sheet[Battle]) -> Figures:
    """DocENT: each aspect, overall quality first, against one score; give coverage for omissions, and so on.

    official: three-way accuracy with as many ties as people gave, and correlation of score differences with
    the preference −2 … 2. authors: overall quality alone, two-way accuracy without the pairs that people
    tied, in which equal scores count for the second caption.
    """
    if sheet.protocol == "authors":
        return _authors(sheet)
    return tuple(figure for aspect in reversed(ASPECTS) for figure in _aspect(sheet, aspect))


def docent_credits(sheet: Sheet[Battle]) -> list[Credit[Battle]]:
    """Agreement with people on each aspect that the protocol counts, overall quality first."""
    if sheet.protocol == "authors":
        return [_binary(sheet)]
    return [_three_way(sheet, aspect) for aspect in reversed(ASPECTS)]


def _aspect(sheet: Sheet[Battle], aspect: str) -> Figures:
    kept, difference, preference, missing = _scored(sheet, aspect)
    accuracy = _three_way(sheet, aspect).figure()
    return (accuracy, *_correlations(kept, aspect, difference, preference, missing, _OFFICIAL))


def _three_way(sheet: Sheet[Battle], aspect: str) -> Credit[Battle]:
    kept, difference, preference, missing = _scored(sheet, aspect)
    human = np.sign(preference).astype(np.int64)
    ties = int((human == 0).sum())
    decided = decide_beyond(difference, 0.0) if sheet.judged else decide_matched(difference, ties)
    return Credit(f"{aspect}/accuracy", kept, agreement(human, decided), int((decided == 0).sum()), missing)


def _authors(sheet: Sheet[Battle]) -> Figures:
    aspect = ASPECTS[-1]
    kept, difference, preference, missing = _scored(sheet, aspect)
    accuracy = _binary(sheet).figure()
    return (accuracy, *_correlations(kept, aspect, difference, preference, missing, _AUTHORS))


def _binary(sheet: Sheet[Battle]) -> Credit[Battle]:
    aspect = ASPECTS[-1]
    kept, difference, preference, missing = _scored(sheet, aspect)
    split = preference != 0
    right = ((preference[split] > 0) == (difference[split] > 0)).astype(np.float64)
    equal, skipped = int((difference[split] == 0).sum()), int((~split).sum())
    return Credit(f"{aspect}/binary accuracy", kept.take(split), right, equal, missing, skipped)


def _scored(sheet: Sheet[Battle], aspect: str) -> tuple[Sheet[Battle], Floats, Floats, int]:
    """The battles with both scores, score differences, people's preferences, and how many lack a score."""
    difference = sheet.scores[:, 0] - sheet.scores[:, 1]
    kept = ~np.isnan(difference)
    battles = sheet.take(kept).items
    answers = [{found.name: found.preference for found in battle.aspects} for battle in battles]
    preference = np.array([answer[aspect] for answer in answers], dtype=np.float64)
    return sheet.take(kept), difference[kept], preference, int((~kept).sum())


def _correlations(
    kept: Sheet[Battle],
    aspect: str,
    difference: Floats,
    preference: Floats,
    missing: int,
    methods: tuple[tuple[str, str], ...],
) -> list[Figure]:
    columns = prepare(difference, preference)

    def statistic(method: str) -> Callable[[Floats], float]:
        return lambda weights: MEASURES[method](columns, weights)

    return [
        kept.figure(f"{aspect}/{name}", statistic(method), len(columns), missing=missing) for name, method in methods
    ]
