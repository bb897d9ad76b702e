"""Compute official figures from scores, and the caption-length control."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msdscore.errors import InputError, unknown_name
from msdscore.intervals import DEFAULT, Floats, Interval, Resampling
from msdscore.registry import resolve
from msdscore_lab.benchmarks.base import Benchmark, Item, ItemT, clusters
from msdscore_lab.stats.resample import bootstrap, bootstrap_share

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Figure:
    """One result of a benchmark: a share or correlation between −1 and 1, or leaderboard points.

    `n` is the number of judgements, `ties` the number of equal scores among them, `missing` the number without a score,
    and `skipped` the number excluded by the protocol.
    """

    name: str
    value: float
    interval: Interval | None
    n: int
    ties: int = 0
    missing: int = 0
    skipped: int = 0
    scale: int = 100  # factor for printing: per cent, or 1 for points
    spread: float | None = None  # standard deviation over several draws of the benchmark
    direction: int = 1  # 1: higher values are better, -1: lower ones, 0: neither


@dataclass(frozen=True, slots=True)
class Measured:
    """A statistic of one score column: its value as a function of item weights, and its counts."""

    value: Callable[[Floats], float]
    n: int
    missing: int = 0
    ties: int = 0


@dataclass(frozen=True, slots=True)
class Statistic:
    """A figure that is not a mean over items: `measure` computes it from a column of scores (NaN: no score).

    With `compared`, it is tested when two metrics are compared.
    """

    name: str
    measure: Callable[[Floats], Measured]
    compared: bool = True
    scale: int = 100
    direction: int = 1  # 1: higher values are better, -1: lower ones, 0: neither

    def figure(self, sheet: "Sheet[ItemT]") -> Figure:
        """Return the figure of a sheet's first score column, with its interval."""
        scores = sheet.scores[:, 0]
        measured, known = self.measure(scores), scores[~np.isnan(scores)]
        ties = measured.ties or len(known) - len(np.unique(known))
        counted = sheet.figure(self.name, measured.value, measured.n, ties=ties, missing=measured.missing)
        return replace(counted, scale=self.scale, direction=self.direction)


@dataclass(frozen=True, slots=True)
class Sheet(Generic[ItemT]):
    """Items with one score per candidate caption (NaN: no score), and the protocol of the evaluation.

    With `judged`, scores are verdicts of a judge that decides ties itself: no tie threshold is applied.
    """

    items: tuple[ItemT, ...]
    scores: Floats
    protocol: str
    how: Resampling
    judged: bool = False

    def take(self, mask: Flags) -> "Sheet[ItemT]":
        """Return the rows where `mask` is True."""
        items = tuple(item for item, selected in zip(self.items, mask, strict=True) if selected)
        return replace(self, items=items, scores=self.scores[mask])

    def figure(self, name: str, statistic: Callable[[Floats], float], n: int, **counts: int) -> Figure:
        """Return a statistic of item weights, resampled by image."""
        if not self.items:
            return Figure(name, float("nan"), None, 0, **counts)
        interval = bootstrap(statistic, len(self.items), clusters=clusters(self.items), how=self.how)
        return Figure(name, interval.value, interval, n, **counts)


@dataclass(frozen=True, slots=True)
class Credit(Generic[ItemT]):
    """Credit of a metric for each judged item (1 right, 0 wrong, ties by the tie rule); the figure is their mean."""

    name: str
    sheet: Sheet[ItemT]
    values: Floats
    ties: int = 0
    missing: int = 0
    skipped: int = 0

    def figure(self) -> Figure:
        """Return the mean with its interval, resampled by image."""
        counts = {"ties": self.ties, "missing": self.missing, "skipped": self.skipped}
        if not len(self.values):
            return Figure(self.name, float("nan"), None, 0, **counts)
        interval = bootstrap_share(self.values, clusters=clusters(self.sheet.items), how=self.sheet.how)
        return Figure(self.name, interval.value, interval, len(self.values), **counts)


Figures = tuple[Figure, ...]


SHARE = 0.1  # largest difference of matched lengths, as a share of their mean, rounded up
_BINS = 5


def matched(first: Floats | NDArray[np.int64], second: Floats | NDArray[np.int64]) -> Flags:
    """Return a mask of pairs of lengths that differ by at most a tenth of their mean, rounded up.

    >>> matched(np.array([9, 10, 47, 9]), np.array([10, 12, 52, 11])).tolist()
    [True, True, True, False]
    """
    close: Flags = np.abs(first - second) <= np.ceil(SHARE * (first + second) / 2 - 1e-9)
    return close


def length_baseline(benchmark: Benchmark, sheet: Sheet[Any]) -> tuple[str, Figures]:
    """Evaluate a sheet of lengths; return the direction with the better headline, and its figures."""
    candidates = [
        (direction, figures(benchmark, replace(sheet, scores=sign * sheet.scores)))
        for direction, sign in (("longer", 1.0), ("shorter", -1.0))
    ]
    return max(
        candidates, key=lambda candidate: -math.inf if math.isnan(candidate[1][0].value) else candidate[1][0].value
    )


def matched_length(benchmark: Benchmark, sheet: Sheet[Any]) -> Figure | None:
    """Return the headline among captions of about equal length.

    It is computed on the items whose two captions have about the same length (None if there is none), or, for single
    captions, within bins of similar length, averaged with the number of judgements of each bin.
    """
    words = lengths(sheet.items)
    if not benchmark.statistics:
        similar = matched(*words.T)
        return figures(benchmark, sheet.take(similar))[0] if similar.any() else None
    # Five bins of about equal size; captions of the same length share a bin.
    edges = np.quantile(words[:, 0], np.linspace(0, 1, _BINS + 1)[1:-1])
    bins = np.searchsorted(edges, words[:, 0], side="left")
    statistics = _resolve(benchmark, "statistics")
    measured_bins: list[tuple[NDArray[np.int64], Measured]] = []
    for bin_index in np.unique(bins):
        bin_sheet = sheet.take(bins == bin_index)
        measured = statistics(bin_sheet.items)[0].measure(bin_sheet.scores[:, 0])
        if not math.isnan(measured.value(np.ones(len(bin_sheet.items)))):
            measured_bins.append((np.flatnonzero(bins == bin_index), measured))

    def statistic(weights: Floats) -> float:
        values = [(measured.n, measured.value(weights[rows])) for rows, measured in measured_bins]
        usable = [(n, value) for n, value in values if not math.isnan(value)]
        return sum(n * value for n, value in usable) / sum(n for n, _ in usable) if usable else math.nan

    return sheet.figure(statistics(sheet.items)[0].name, statistic, sum(measured.n for _, measured in measured_bins))


def lengths(items: Sequence[Item]) -> Floats:
    """Return the number of words of every candidate caption."""
    return np.array([[len(text.split()) for text in item.captions] for item in items], dtype=np.float64)


def evaluate(
    benchmark: Benchmark,
    items: Sequence[Item],
    scores: ArrayLike,
    *,
    protocol: str = "official",
    how: Resampling = DEFAULT,
    judged: bool = False,
) -> Figures:
    """Return the benchmark's figures, the headline first, from one row of scores per item, one score per caption.

    NaN scores are dropped and counted as missing. Higher scores mean better captions. With `judged`, scores are
    verdicts (1 and 0, or 0.5 for a tie), to which no tie threshold is applied.
    """
    return figures(benchmark, make_sheet(benchmark, items, scores, protocol=protocol, how=how, judged=judged))


def figures(benchmark: Benchmark, sheet: Sheet[Any]) -> Figures:
    """Return the benchmark's figures of a sheet, the headline first."""
    if benchmark.figures:
        computed: Figures = _resolve(benchmark, "figures")(sheet)
        return computed
    if benchmark.statistics:
        return tuple(statistic.figure(sheet) for statistic in _resolve(benchmark, "statistics")(sheet.items))
    credit_list: list[Credit[Any]] = _resolve(benchmark, "credits")(sheet)
    credit_figures, overall = tuple(credit.figure() for credit in credit_list), credit_list[-1]
    if len(credit_figures) == 1 or benchmark.kind != "pairs":
        return credit_figures
    if (overall.values == overall.values[:1]).all():  # all resamples would be equal
        return replace(overall, name=MEAN).figure(), *credit_figures
    counts = {"ties": overall.ties, "missing": overall.missing}
    return overall.sheet.figure(MEAN, subset_mean(overall), len(overall.values), **counts), *credit_figures


MEAN = "accuracy/mean"


def subset_mean(credit: Credit[Any]) -> Callable[[Floats], float]:
    """Return the mean of the subsets' means, as a statistic of item weights."""
    labels = np.array([item.subset for item in credit.sheet.items], dtype=np.str_)
    codes = np.unique(labels, return_inverse=True)[1]

    def statistic(weights: Floats) -> float:
        totals = np.bincount(codes, weights=weights)
        sums = np.bincount(codes, weights=weights * credit.values)
        return float((sums[totals > 0] / totals[totals > 0]).mean())

    return statistic


def _resolve(benchmark: Benchmark, name: str) -> Callable[..., Any]:
    return resolve(getattr(benchmark, name), f"benchmark {benchmark.name!r}")


def make_sheet(
    benchmark: Benchmark,
    items: Sequence[Item],
    scores: ArrayLike,
    *,
    protocol: str,
    how: Resampling,
    judged: bool,
) -> Sheet[Any]:
    """Check items, scores and protocol, and return them as a sheet."""
    if protocol not in benchmark.protocols:
        raise unknown_name(f"protocol of {benchmark.name}", protocol, benchmark.protocols)
    matrix = np.asarray(scores, dtype=np.float64)
    if not len(items):
        raise InputError(f"{benchmark.name}: expected at least one item, got none")
    width = len(items[0].captions)
    if matrix.ndim == 1 and width == 1:
        matrix = matrix[:, None]
    if matrix.shape != (len(items), width):
        expected = (len(items), width)
        raise InputError(f"{benchmark.name}: expected scores of shape {expected}, got {matrix.shape}")
    return Sheet(tuple(items), matrix, protocol, how, judged)
