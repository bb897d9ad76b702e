"""The caption-length control: what length alone reaches, and what a metric keeps among captions of like length."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msdscore.benchmarks.protocols.figure import Figure, Figures, Flags, Floats, Measured, Sheet, Statistic

SHARE = 0.1  # of the mean length: so far apart may two captions be that count as equally long, rounded up
_BINS = 5


@dataclass(frozen=True, slots=True)
class LengthAlone:
    """The figures of counting words, in the direction that does better on the headline."""

    longer_wins: bool
    figures: Figures


def words(caption: str) -> int:
    """The number of words of a caption."""
    return len(caption.split())


def matched(first: Floats | NDArray[np.int64], second: Floats | NDArray[np.int64]) -> Flags:
    """Which pairs of lengths differ by no more than a tenth of their mean, rounded up.

    >>> matched(np.array([9, 10, 47, 9]), np.array([10, 12, 52, 11])).tolist()
    [True, True, True, False]
    """
    near: Flags = np.abs(first - second) <= np.ceil(SHARE * (first + second) / 2 - 1e-9)
    return near


def length_alone(sheet: Sheet[Any], count: Callable[[Sheet[Any]], Figures]) -> LengthAlone:
    """What the number of words reaches as a score, counted like any metric."""
    lengths = np.array([[words(text) for text in item.captions] for item in sheet.items], dtype=np.float64)
    both = [LengthAlone(sign > 0, count(replace(sheet, scores=sign * lengths, judged=False))) for sign in (1.0, -1.0)]
    return max(both, key=lambda one: -math.inf if math.isnan(one.figures[0].value) else one.figures[0].value)


def matched_pairs(sheet: Sheet[Any], count: Callable[[Sheet[Any]], Figures]) -> Figure | None:
    """The headline over the items whose two captions are about equally long; None where there is no such item."""
    lengths = np.array([[words(text) for text in item.captions] for item in sheet.items], dtype=np.float64)
    alike = matched(lengths[:, 0], lengths[:, 1])
    return count(sheet.take(alike))[0] if alike.any() else None


def matched_ratings(sheet: Sheet[Any], statistics: Callable[[Sequence[Any]], list[Statistic]]) -> Figure:
    """The headline within bins of like length, averaged over the bins by their number of judgements."""
    bins = _bins([words(item.captions[0]) for item in sheet.items])
    parts = [(np.flatnonzero(bins == code), _headline(sheet, bins == code, statistics)) for code in np.unique(bins)]
    known = [(at, measured) for at, measured in parts if not math.isnan(measured.value(np.ones(len(at))))]
    total = sum(measured.n for _, measured in known)

    def statistic(weights: Floats) -> float:
        found = [(measured.n, measured.value(weights[at])) for at, measured in known]
        usable = [(n, value) for n, value in found if not math.isnan(value)]
        return sum(n * value for n, value in usable) / sum(n for n, _ in usable) if usable else math.nan

    return sheet.figure(statistics(sheet.items)[0].name, statistic, total)


def _headline(sheet: Sheet[Any], at: Flags, statistics: Callable[[Sequence[Any]], list[Statistic]]) -> Measured:
    part = sheet.take(at)
    return statistics(part.items)[0].of(part.scores[:, 0])


def _bins(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Five bins of about as many captions each; captions of one length share a bin."""
    edges = np.quantile(lengths, np.linspace(0, 1, _BINS + 1)[1:-1])
    found: NDArray[np.int64] = np.searchsorted(edges, lengths, side="left").astype(np.int64)
    return found
