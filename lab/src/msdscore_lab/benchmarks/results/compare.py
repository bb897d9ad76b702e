"""Paired comparison of metrics: differences with simultaneous intervals and p-values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Floats, Interval, Resampling
from msdscore.registry import resolve
from msdscore_lab.benchmarks.base import Benchmark, Item, clusters
from msdscore_lab.benchmarks.protocols.counting import (
    MEAN,
    Credit,
    Flags,
    Sheet,
    Statistic,
    make_sheet,
    subset_mean,
)
from msdscore_lab.benchmarks.registry import benchmark
from msdscore_lab.benchmarks.results.result import (
    MetricResult,
    Result,
    items_of,
    read_result,
    read_scores,
    score_matrix,
)
from msdscore_lab.stats.differences import compare_means, default_draws, pseudo_values, weighted_mean

_ONE = Resampling(samples=1)  # of the figures themselves, whose intervals are not used


@dataclass(frozen=True, slots=True)
class Side:
    """One metric of a result, with the table of its scores."""

    result: Result
    metric: MetricResult
    table: pa.Table

    @property
    def name(self) -> str:
        """The metric, followed by its encoder if it uses one."""
        encoder = self.metric.encoder
        return f"{self.metric.title} ({encoder})" if encoder else self.metric.title


@dataclass(frozen=True, slots=True)
class Difference:
    """First minus second on one figure: p is below 0.05 exactly if the 95 % interval excludes 0."""

    name: str
    first: float
    second: float
    interval: Interval
    p_value: float
    n: int
    scale: int = 100


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """Comparison of two metrics on the `items` that both scored, with the numbers of excluded items.

    `samples` is the number of random draws behind intervals and p-values.
    """

    benchmark: str
    protocol: str
    first: str
    second: str
    items: int
    not_in_both: int
    missing: int
    samples: int
    differences: tuple[Difference, ...]


def open_side(name: str) -> Side:
    """Open one side of a comparison: `RESULT.json`, or `RESULT.json:METRIC` if the result has several metrics."""
    # A metric's label may contain colons and paths (`file:SCORES.jsonl`).
    ends = [index for index, letter in enumerate(name) if letter == ":"]
    splits = [(Path(name), ""), *((Path(name[:end]), name[end + 1 :]) for end in ends)]
    path, label = next(((path, label) for path, label in splits if path.is_file()), (None, ""))
    if path is None:
        raise InputError(f"{name}: no such file; expected a result of `msdscore bench`, or RESULT.json:METRIC")
    result = read_result(path)
    labels = [metric.label for metric in result.metrics]
    if not label and len(labels) > 1:
        raise ConfigError(f"{path} has several metrics; select one, as in {path}:{labels[0]} (of {', '.join(labels)})")
    return side_of(result, label or labels[0], path.parent)


def side_of(result: Result, label: str, folder: Path) -> Side:
    """Return the side of a metric whose scores are in `folder`."""
    metric = result.metric(label)
    return Side(result, metric, read_scores(folder / result.scores, [metric.label]))


def compare_sides(
    pairs: Sequence[tuple[Side, Side]], *, samples: int | None = None, seed: int = 0
) -> list[MetricComparison]:
    """Return paired differences of each pair of sides, on the items that all sides scored.

    All sides are of one benchmark and protocol. The headlines of all pairs are tested together, and the other figures
    of each pair.
    """
    sides = [side for pair in pairs for side in pair]
    for name in ("benchmark", "protocol"):
        values = list(dict.fromkeys(getattr(side.result, name) for side in sides))
        if len(values) > 1:
            raise InputError(f"expected results of one {name}, got {' and '.join(values)}")
    row, rows = benchmark(sides[0].result.benchmark), _common(sides)
    if not (row.credits or row.statistics):
        raise ConfigError(
            f"benchmark {row.name!r} has figures but neither credits nor statistics, which comparisons need; "
            "add them to its row, or remove figures"
        )
    items, scores = items_of(sides[0].table.take(pa.array(rows[0])), row.kind), []
    for side, side_rows in zip(sides, rows, strict=True):
        matrix = score_matrix(side.table, side.metric.label)
        assert matrix is not None, "the scores of a result contain all its metrics"
        scores.append(matrix[side_rows] if side.metric.higher_is_better else -matrix[side_rows])
    scored: Flags = np.asarray(~np.isnan(np.hstack(scores)).any(axis=1))
    if not scored.any():
        raise InputError("the results have no item that was scored in all of them")
    sheets = [
        make_sheet(row, items, matrix, protocol=side.result.protocol, how=_ONE, judged=side.metric.judged).take(scored)
        for side, matrix in zip(sides, scores, strict=True)
    ]
    figures_of = _by_credits if row.credits else _by_statistics
    figures = [figures_of(row, first, second) for first, second in zip(sheets[::2], sheets[1::2], strict=True)]
    how = Resampling(samples=samples or default_draws(len(set(clusters(items)))), seed=seed)
    headlines, *others = compare_means(_families(figures), how=how)
    found = []
    for at, ((first, second), pair_figures) in enumerate(zip(pairs, figures, strict=True)):
        intervals = (headlines.intervals[at], *others[at].intervals)
        p_values = (headlines.p_values[at], *others[at].p_values)
        differences = tuple(
            Difference(figure.name, figure.first, figure.second, interval, float(p), figure.n, figure.scale)
            for figure, interval, p in zip(pair_figures, intervals, p_values, strict=True)
        )
        in_one = len(first.table) + len(second.table) - 2 * len(items)
        counts = int(scored.sum()), in_one, int((~scored).sum()), how.samples
        found.append(MetricComparison(row.name, first.result.protocol, first.name, second.name, *counts, differences))
    return found


def compare_all(
    result: Result, folder: Path, against: str, *, samples: int | None = None, seed: int = 0
) -> dict[str, MetricComparison]:
    """Compare all metrics of a result with one of them."""
    base = side_of(result, against, folder)
    labels = [metric.label for metric in result.metrics if metric != base.metric and metric.figures]
    pairs = [(side_of(result, label, folder), base) for label in labels]
    return dict(zip(labels, compare_sides(pairs, samples=samples, seed=seed), strict=True)) if pairs else {}


def _common(sides: Sequence[Side]) -> list[list[int]]:
    """Return the rows of the common items, in the first's order; items of the same id must have the same captions."""
    row_of = [{key: row for row, key in enumerate(side.table.column("id").to_pylist())} for side in sides]
    ids = [key for key in row_of[0] if all(key in rows for rows in row_of[1:])]
    if not ids:
        raise InputError("the results have no common item")
    found = [[rows[key] for key in ids] for rows in row_of]
    for name in ("image", "captions"):
        columns = (side.table.column(name).take(pa.array(rows)) for side, rows in zip(sides, found, strict=True))
        first = next(columns)
        if any(first != column for column in columns):
            raise InputError(f"items of the same id differ in {name} between the results; they cannot be paired")
    return found


@dataclass(frozen=True, slots=True)
class _Figure:
    """Both values of a figure, and the pseudo-values of their difference by image."""

    name: str
    first: float
    second: float
    n: int
    scale: int
    values: Mapping[str, float]


def _families(figures: Sequence[Sequence[_Figure]]) -> list[Floats]:
    """Return the columns (images, figures) that are tested together: all headlines, then the others of each pair."""
    images = sorted({image for pair in figures for figure in pair for image in figure.values})
    families = [[pair[0] for pair in figures], *(pair[1:] for pair in figures)]
    return [
        np.array([[figure.values.get(image, np.nan) for figure in family] for image in images]) for family in families
    ]


def _by_credits(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[_Figure]:
    """Return the differences of means of one value per item; for pairs, the mean over subsets first."""
    credits_of: Callable[[Sheet[Item]], list[Credit[Item]]] = resolve(row.credits, row.name)
    first_mean: Callable[[Floats], float]
    second_mean: Callable[[Floats], float]
    found = []
    for credit, against in zip(credits_of(first), credits_of(second), strict=True):
        if len(credit.values):
            first_mean, second_mean = partial(weighted_mean, credit.values), partial(weighted_mean, against.values)
            found.append(_figure(credit.name, first_mean, second_mean, credit.sheet, len(credit.values)))
    if row.kind == "pairs" and len(found) > 1:  # of the last credits, those over all pairs
        first_mean, second_mean = subset_mean(credit), subset_mean(against)
        found.insert(0, _figure(MEAN, first_mean, second_mean, credit.sheet, len(credit.values)))
    return found


def _by_statistics(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[_Figure]:
    """Return the differences of correlations and other statistics."""
    statistics: list[Statistic] = resolve(row.statistics, row.name)(first.items)
    found = []
    for statistic in (statistic for statistic in statistics if statistic.compared):
        measured, against = (statistic.measure(sheet.scores[:, 0]) for sheet in (first, second))
        found.append(_figure(statistic.name, measured.value, against.value, first, measured.n, statistic.scale))
    return found


def _figure(
    name: str,
    first: Callable[[Floats], float],
    second: Callable[[Floats], float],
    sheet: Sheet[Item],
    n: int,
    scale: int = 100,
) -> _Figure:
    """Return the difference of two statistics of item weights by image."""
    ones, images = np.ones(len(sheet.items)), clusters(sheet.items)
    values = pseudo_values(lambda weights: first(weights) - second(weights), images)
    by_image = dict(zip(np.unique(images).tolist(), values.tolist(), strict=True))
    return _Figure(name, first(ones), second(ones), n, scale, by_image)
