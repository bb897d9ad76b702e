"""Paired comparison of two metrics: differences with intervals, tests, Holm's correction over subsets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import DEFAULT, Floats, Interval, Resampling
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
from msdscore_lab.stats.pairs import mcnemar, mcnemar_exact
from msdscore_lab.stats.resample import Test, bootstrap_both, holm, paired_difference, permutation_test, swap_test

_EXACT_BELOW = 25  # discordant pairs; the usual limit for the exact form of McNemar's test
_WHOLE = ("", "all", "mean")  # suffixes of figures over all items; figures of subsets are one family of tests
_PERMUTATIONS = 10_000


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
    """First minus second on one figure; `adjusted` is the first test's p-value after Holm's correction."""

    name: str
    first: float
    second: float
    interval: Interval
    tests: tuple[Test, ...]
    adjusted: float
    n: int
    scale: int = 100


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """Comparison of two metrics on the `items` that both scored, with the numbers of excluded items."""

    benchmark: str
    protocol: str
    first: str
    second: str
    items: int
    not_in_both: int
    missing: int
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


def compare_sides(first: Side, second: Side, *, how: Resampling = DEFAULT) -> MetricComparison:
    """Return paired differences of two sides of one benchmark and protocol."""
    for name in ("benchmark", "protocol"):
        first_value, second_value = getattr(first.result, name), getattr(second.result, name)
        if first_value != second_value:
            raise InputError(f"expected two results of one {name}, got {first_value} and {second_value}")
    row, rows = benchmark(first.result.benchmark), _common(first, second)
    items = items_of(first.table.take(pa.array(rows[0])), row.kind)
    scores = []
    for side, side_rows in zip((first, second), rows, strict=True):
        matrix = score_matrix(side.table, side.metric.label)
        assert matrix is not None, "the scores of a result contain all its metrics"
        scores.append(matrix[side_rows] if side.metric.higher_is_better else -matrix[side_rows])
    scored: Flags = np.asarray(~np.isnan(np.hstack(scores)).any(axis=1))
    if not scored.any():
        raise InputError("the two results have no item that was scored in both")
    sheets = [
        make_sheet(row, items, matrix, protocol=side.result.protocol, how=how, judged=side.metric.judged).take(scored)
        for side, matrix in zip((first, second), scores, strict=True)
    ]
    if not (row.credits or row.statistics):
        raise ConfigError(
            f"benchmark {row.name!r} has figures but neither credits nor statistics, which comparisons need; "
            "add them to its row, or remove figures"
        )
    differences = _by_credits(row, *sheets) if row.credits else _by_statistics(row, *sheets)
    # Holm's correction over the subsets; p-values of figures over all items are unchanged.
    family = [index for index, difference in enumerate(differences) if difference.name.partition("/")[2] not in _WHOLE]
    adjusted = holm([differences[index].tests[0].p_value for index in family]).tolist()
    for index, p_value in zip(family, adjusted, strict=True):
        differences[index] = replace(differences[index], adjusted=p_value)
    not_in_both = len(first.table) + len(second.table) - 2 * len(items)
    return MetricComparison(
        row.name, first.result.protocol, first.name, second.name, int(scored.sum()), not_in_both, int((~scored).sum()),
        tuple(differences),
    )  # fmt: skip


def compare_all(
    result: Result, folder: Path, against: str, *, how: Resampling = DEFAULT
) -> dict[str, tuple[MetricComparison, float]]:
    """Compare all metrics of a result with one of them; p-values of headlines have Holm's correction over metrics."""
    base = side_of(result, against, folder)
    labels = [metric.label for metric in result.metrics if metric != base.metric and metric.figures]
    comparisons = {label: compare_sides(side_of(result, label, folder), base, how=how) for label in labels}
    adjusted = holm([comparison.differences[0].tests[0].p_value for comparison in comparisons.values()]).tolist()
    return {label: (comparison, p) for (label, comparison), p in zip(comparisons.items(), adjusted, strict=True)}


def _common(first: Side, second: Side) -> tuple[list[int], list[int]]:
    """Return the rows of the common items, in the first's order; items of the same id must have the same captions."""
    row_of = {key: row for row, key in enumerate(second.table.column("id").to_pylist())}
    ids = first.table.column("id").to_pylist()
    first_rows = [row for row, key in enumerate(ids) if key in row_of]
    if not first_rows:
        raise InputError("the two results have no common item")
    second_rows = [row_of[ids[row]] for row in first_rows]
    for name in ("image", "captions"):
        if first.table.column(name).take(pa.array(first_rows)) != second.table.column(name).take(pa.array(second_rows)):
            raise InputError(f"items of the same id differ in {name} between the two results; they cannot be paired")
    return first_rows, second_rows


def _by_credits(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[Difference]:
    """Compare means of one value per item, with an interval and two tests; for pairs, the mean over subsets first."""
    credits_of: Callable[[Sheet[Item]], list[Credit[Item]]] = resolve(row.credits, row.name)
    credit_pairs = list(zip(credits_of(first), credits_of(second), strict=True))
    differences = []
    if row.kind == "pairs" and len(credit_pairs) > 1:
        overall, other = credit_pairs[-1]
        differences.append(
            _difference(MEAN, subset_mean(overall), subset_mean(other), overall.sheet, len(overall.values))
        )
    for credit, against in credit_pairs:
        first_values, second_values, cluster_names = credit.values, against.values, clusters(credit.sheet.items)
        if not len(first_values):
            continue
        # Permutations are cheap, and Holm's correction needs precise small p-values.
        permutations = replace(first.how, samples=max(first.how.samples, _PERMUTATIONS))
        permuted = permutation_test(first_values, second_values, clusters=cluster_names, how=permutations)
        correct, other_correct = first_values == 1, second_values == 1
        if len(np.unique(cluster_names)) < len(cluster_names):
            discordance = mcnemar(correct, other_correct, cluster_names)
        else:
            exact = int((correct != other_correct).sum()) < _EXACT_BELOW
            discordance = (mcnemar_exact if exact else mcnemar)(correct, other_correct)
        interval = paired_difference(first_values, second_values, clusters=cluster_names, how=first.how)
        means = float(first_values.mean()), float(second_values.mean())
        tests = (permuted, discordance)
        differences.append(Difference(credit.name, *means, interval, tests, permuted.p_value, len(first_values)))
    return differences


def _by_statistics(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[Difference]:
    """Compare correlations and other statistics; the first, the headline, also by a permutation test."""
    statistics: list[Statistic] = [
        statistic for statistic in resolve(row.statistics, row.name)(first.items) if statistic.compared
    ]
    differences = []
    for statistic in statistics:
        first_measured, second_measured = (statistic.measure(sheet.scores[:, 0]) for sheet in (first, second))
        difference = _difference(statistic.name, first_measured.value, second_measured.value, first, first_measured.n)
        differences.append(replace(difference, scale=statistic.scale))
    headline, ones = statistics[0], np.ones(len(first.items))
    swapped = swap_test(
        lambda scores: headline.measure(scores).value(ones), first.scores[:, 0], second.scores[:, 0],
        clusters=clusters(first.items), how=first.how,
    )  # fmt: skip
    return [replace(differences[0], tests=(*differences[0].tests, swapped)), *differences[1:]]


def _difference(
    name: str, first: Callable[[Floats], float], second: Callable[[Floats], float], sheet: Sheet[Item], n: int
) -> Difference:
    """Return the difference of two statistics of item weights, resampled by image."""
    ones = np.ones(len(sheet.items))
    interval, test = bootstrap_both(
        lambda weights: first(weights) - second(weights), len(ones), clusters=clusters(sheet.items), how=sheet.how
    )
    return Difference(name, first(ones), second(ones), interval, (test,), test.p_value, n)
