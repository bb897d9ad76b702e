"""A benchmark figure with what it rests on, and the sheet of scores it is counted from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from msdscore.benchmarks.base import ItemT, clusters
from msdscore.stats.resample import Interval, Resampling, bootstrap, bootstrap_share

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a benchmark: a share between −1 and 1, or points as a leaderboard has them.

    `n` counts the judgements behind it, `ties` the equal scores among them, `missing` those without a score,
    and `skipped` those that the protocol leaves out.
    """

    name: str
    value: float
    interval: Interval | None
    n: int
    ties: int = 0
    missing: int = 0
    skipped: int = 0
    scale: int = 100  # what the value is printed times: percent, or 1 for points
    spread: float | None = None  # standard deviation over several draws of the benchmark


@dataclass(frozen=True, slots=True)
class Measured:
    """A statistic of one score column: its value as a function of item weights, and what it rests on."""

    value: Callable[[Floats], float]
    n: int
    missing: int = 0
    ties: int = 0


@dataclass(frozen=True, slots=True)
class Statistic:
    """A figure that is no mean over items, made for some items: `of` measures a column of their scores (NaN: none).

    `compared` ones are tested when two metrics are compared.
    """

    name: str
    of: Callable[[Floats], Measured]
    compared: bool = True
    scale: int = 100

    def figure(self, sheet: "Sheet[ItemT]") -> Figure:
        """The figure of a sheet's first score column, with its interval."""
        scores = sheet.scores[:, 0]
        measured, known = self.of(scores), scores[~np.isnan(scores)]
        ties = measured.ties or len(known) - len(np.unique(known))
        found = sheet.figure(self.name, measured.value, measured.n, ties=ties, missing=measured.missing)
        return replace(found, scale=self.scale)


@dataclass(frozen=True, slots=True)
class Sheet(Generic[ItemT]):
    """Items with one score per candidate caption (NaN: none), and how to count them.

    With `judged`, scores are verdicts of a judge that calls ties itself: no tie threshold is put on them.
    """

    items: tuple[ItemT, ...]
    scores: Floats
    protocol: str
    how: Resampling
    judged: bool = False

    def take(self, keep: Flags) -> "Sheet[ItemT]":
        """The rows where `keep` is true."""
        items = tuple(item for item, kept in zip(self.items, keep, strict=True) if kept)
        return replace(self, items=items, scores=self.scores[keep])

    def mean_figure(self, name: str, values: Floats, **counts: int) -> Figure:
        """The mean of one value per item, resampled by picture."""
        if not len(values):
            return Figure(name, float("nan"), None, 0, **counts)
        interval = bootstrap_share(values, clusters=clusters(self.items), how=self.how)
        return Figure(name, interval.value, interval, len(values), **counts)

    def figure(self, name: str, statistic: Callable[[Floats], float], n: int, **counts: int) -> Figure:
        """A statistic of item weights, resampled by picture."""
        if not self.items:
            return Figure(name, float("nan"), None, 0, **counts)
        interval = bootstrap(statistic, len(self.items), clusters=clusters(self.items), how=self.how)
        return Figure(name, interval.value, interval, n, **counts)


@dataclass(frozen=True, slots=True)
class Credit(Generic[ItemT]):
    """What each judged item earns a metric (1 right, 0 wrong, a tie by the rule); the mean is the figure."""

    name: str
    sheet: Sheet[ItemT]
    values: Floats
    ties: int = 0
    missing: int = 0
    skipped: int = 0

    def figure(self) -> Figure:
        """The mean with its interval."""
        counts = {"ties": self.ties, "missing": self.missing, "skipped": self.skipped}
        return self.sheet.mean_figure(self.name, self.values, **counts)


Figures = tuple[Figure, ...]
