"""Two metrics on the same items: differences with intervals, paired tests, Holm's correction over subsets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from msdscore.benchmarks.base import Benchmark, Item, clusters
from msdscore.benchmarks.protocols.counting import Credit, Flags, Floats, Sheet, Statistic, make_sheet
from msdscore.benchmarks.protocols.pairs import macro
from msdscore.benchmarks.registry import benchmark
from msdscore.benchmarks.results.result import MetricResult, Result, items_of, read_result, score_matrix
from msdscore.errors import ConfigError, InputError
from msdscore.registry import resolve
from msdscore.stats.pairs import mcnemar, mcnemar_clustered, mcnemar_exact
from msdscore.stats.resample import (
    DEFAULT,
    Interval,
    Resampling,
    Test,
    bootstrap_both,
    holm,
    paired_difference,
    permutation_test,
    swap_test,
)

_EXACT_BELOW = 25  # split pairs: the usual bound under which the chi-square form of McNemar's test is not used
_WHOLE = ("all", "mean")  # figures over all items stand for themselves; the subsets are one family of tests
_PERMUTATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Side:
    """One metric of a result, with the table of its scores."""

    result: Result
    metric: MetricResult
    table: pa.Table

    @property
    def name(self) -> str:
        """The metric, and the encoder where there is one."""
        encoder = self.result.encoder.split(",")[0]
        return f"{self.metric.label} ({encoder})" if encoder else self.metric.label


@dataclass(frozen=True, slots=True)
class Difference:
    """First less second on one figure; `adjusted` is the first test's p-value after Holm's correction."""

    name: str
    first: float
    second: float
    interval: Interval
    tests: tuple[Test, ...]
    adjusted: float
    n: int
    scale: int = 100


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two metrics compared on the `items` that both scored; the other counts say what fell out."""

    benchmark: str
    protocol: str
    first: str
    second: str
    items: int
    not_in_both: int
    missing: int
    differences: tuple[Difference, ...]


def open_side(name: str) -> Side:
    """A side from `RESULT.json`, or from `RESULT.json:METRIC` where the result has several metrics."""
    path, label = _split_side(name)
    result = read_result(Path(path))
    labels = [metric.label for metric in result.metrics]
    if not label and len(labels) > 1:
        raise ConfigError(f"{path} has several metrics; name one, as in {path}:{labels[0]} (of {', '.join(labels)})")
    return side_of(result, label or labels[0], Path(path).parent)


def _split_side(name: str) -> tuple[str, str]:
    """File and metric of a side; a metric's label may hold colons and paths itself (`file:SCORES.jsonl`)."""
    ends = [at for at, letter in enumerate(name) if letter == ":"]
    for path, label in [(name, ""), *((name[:end], name[end + 1 :]) for end in ends)]:
        if Path(path).is_file():
            return path, label
    raise InputError(f"there is no file {name}; expected a result of `msdscore bench`, or RESULT.json:METRIC")


def side_of(result: Result, label: str, folder: Path) -> Side:
    """The side of a metric whose scores lie in `folder`."""
    scores = folder / result.scores
    if not scores.is_file():
        raise InputError(f"the scores {scores} of this result are missing; expected them beside it")
    return Side(result, result.metric(label), pq.read_table(scores))


def compare_sides(first: Side, second: Side, *, how: Resampling = DEFAULT) -> Comparison:
    """Paired differences of two sides of one benchmark and protocol."""
    row = _same_benchmark(first, second)
    ours, theirs = _common(first, second)
    items = items_of(first.table.take(pa.array(ours)), row.kind)
    scores = _oriented(first)[ours], _oriented(second)[theirs]
    known: Flags = np.asarray(~np.isnan(np.hstack(scores)).any(axis=1))
    if not known.any():
        raise InputError("the two results have no item that both scored")
    sheets = [
        make_sheet(row, items, matrix, protocol=side.result.protocol, how=how, judged=side.metric.judged).take(known)
        for side, matrix in zip((first, second), scores, strict=True)
    ]
    differences = _by_credits(row, *sheets) if row.credits else _by_statistics(row, *sheets)
    apart = len(first.table) + len(second.table) - 2 * len(items)
    return Comparison(
        row.name, first.result.protocol, first.name, second.name, int(known.sum()), apart, int((~known).sum()),
        _adjusted(differences),
    )  # fmt: skip


def compare_all(
    result: Result, folder: Path, against: str, *, how: Resampling = DEFAULT
) -> dict[str, tuple[Comparison, float]]:
    """Every metric of a result against one of them, with the headline's p-value after Holm's correction over them."""
    base = side_of(result, against, folder)
    labels = [metric.label for metric in result.metrics if metric.label != against and metric.figures]
    comparisons = {label: compare_sides(side_of(result, label, folder), base, how=how) for label in labels}
    adjusted = holm([comparison.differences[0].tests[0].p_value for comparison in comparisons.values()]).tolist()
    return {label: (comparison, p) for (label, comparison), p in zip(comparisons.items(), adjusted, strict=True)}


def _same_benchmark(first: Side, second: Side) -> Benchmark:
    for name in ("benchmark", "protocol"):
        ours, theirs = getattr(first.result, name), getattr(second.result, name)
        if ours != theirs:
            raise InputError(f"expected two results of one {name}, got {ours} and {theirs}")
    return benchmark(first.result.benchmark)


def _common(first: Side, second: Side) -> tuple[list[int], list[int]]:
    """The rows of the items that both have, in the first's order; the same id must mean the same captions."""
    row_of = {key: row for row, key in enumerate(second.table.column("id").to_pylist())}
    ids = first.table.column("id").to_pylist()
    ours = [row for row, key in enumerate(ids) if key in row_of]
    if not ours:
        raise InputError("the two results share no item")
    theirs = [row_of[ids[row]] for row in ours]
    for name in ("picture", "captions"):
        if first.table.column(name).take(pa.array(ours)) != second.table.column(name).take(pa.array(theirs)):
            raise InputError(f"items of the same id have another {name} in the two results; they cannot be paired")
    return ours, theirs


def _oriented(side: Side) -> Floats:
    scores = score_matrix(side.table, side.metric.label)
    assert scores is not None, "a result names only metrics whose scores lie beside it"
    return scores if side.metric.higher_is_better else -scores


def _by_credits(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[Difference]:
    credits_of: Callable[[Sheet[Item]], list[Credit[Item]]] = resolve(row.credits, row.name)
    both = list(zip(credits_of(first), credits_of(second), strict=True))
    differences = [_credit_difference(ours, theirs) for ours, theirs in both if len(ours.values)]
    if row.kind == "pairs" and len(both) > 1:
        differences.insert(0, _macro_difference(*both[-1]))
    return differences


def _credit_difference(first: Credit[Item], second: Credit[Item]) -> Difference:
    names, how = clusters(first.sheet.items), first.sheet.how
    right = first.values == 1, second.values == 1
    # A permutation costs next to nothing, and Holm's correction needs small p-values to be told apart.
    often = replace(how, samples=max(how.samples, _PERMUTATIONS))
    tests = (
        permutation_test(first.values, second.values, clusters=names, how=often),
        _mcnemar(*right, names),
    )
    interval = paired_difference(first.values, second.values, clusters=names, how=how)
    means = float(first.values.mean()), float(second.values.mean())
    return Difference(first.name, *means, interval, tests, tests[0].p_value, len(first.values))


def _mcnemar(first: Flags, second: Flags, names: NDArray[np.str_]) -> Test:
    """McNemar's test in the form that fits: images with several items are clusters, few split pairs are exact."""
    if len(np.unique(names)) < len(names):
        return mcnemar_clustered(first, second, names)
    return mcnemar_exact(first, second) if int((first != second).sum()) < _EXACT_BELOW else mcnemar(first, second)


def _macro_difference(first: Credit[Item], second: Credit[Item]) -> Difference:
    labels = [item.subset for item in first.sheet.items]
    ours, theirs = macro(first.values, labels), macro(second.values, labels)
    return _statistic_difference("accuracy/mean", ours, theirs, first.sheet, len(first.values))


def _by_statistics(row: Benchmark, first: Sheet[Item], second: Sheet[Item]) -> list[Difference]:
    """Correlations and other statistics, the benchmark's headline first and with a permutation test too."""
    statistics: list[Statistic] = [
        statistic for statistic in resolve(row.statistics, row.name)(first.items) if statistic.compared
    ]
    differences = [_measured_difference(statistic, first, second) for statistic in statistics]
    head, ones = statistics[0], np.ones(len(first.items))
    swapped = swap_test(
        lambda scores: head.of(scores).value(ones), first.scores[:, 0], second.scores[:, 0],
        clusters=clusters(first.items), how=first.how,
    )  # fmt: skip
    return [replace(differences[0], tests=(*differences[0].tests, swapped)), *differences[1:]]


def _measured_difference(statistic: Statistic, first: Sheet[Item], second: Sheet[Item]) -> Difference:
    ours, theirs = (statistic.of(sheet.scores[:, 0]) for sheet in (first, second))
    difference = _statistic_difference(statistic.name, ours.value, theirs.value, first, ours.n)
    return replace(difference, scale=statistic.scale)


def _statistic_difference(
    name: str, first: Callable[[Floats], float], second: Callable[[Floats], float], sheet: Sheet[Item], n: int
) -> Difference:
    """The difference of two statistics of item weights, resampled by image."""
    names, size = clusters(sheet.items), len(sheet.items)

    def difference(weights: Floats) -> float:
        return first(weights) - second(weights)

    interval, test = bootstrap_both(difference, size, clusters=names, how=sheet.how)
    ones = np.ones(size)
    return Difference(name, first(ones), second(ones), interval, (test,), test.p_value, n)


def _adjusted(differences: list[Difference]) -> tuple[Difference, ...]:
    """Holm's correction over the subsets; figures over all items keep their p-value."""
    family = [number for number, difference in enumerate(differences) if is_subset(difference.name)]
    p_values = holm([differences[number].tests[0].p_value for number in family])
    changed = dict(zip(family, p_values.tolist(), strict=True))
    return tuple(
        replace(difference, adjusted=changed[number]) if number in changed else difference
        for number, difference in enumerate(differences)
    )


def is_subset(name: str) -> bool:
    """Whether a figure is of some items only: those are one family of tests.

    >>> is_subset("accuracy/add_obj"), is_subset("accuracy/all"), is_subset("tau_c")
    (True, False, False)
    """
    _, slash, part = name.partition("/")
    return bool(slash) and part not in _WHOLE
