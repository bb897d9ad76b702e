"""Scores in, official figures out: one call for every benchmark, protocol and metric."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from msdscore.benchmarks.base import Benchmark, Item
from msdscore.benchmarks.protocols.figure import Figure, Figures, Sheet
from msdscore.benchmarks.protocols.lengths import matched_pairs, matched_ratings
from msdscore.errors import InputError, unknown_name
from msdscore.stats.resample import DEFAULT, Resampling


def evaluate(
    benchmark: Benchmark,
    items: Sequence[Item],
    scores: ArrayLike,
    *,
    protocol: str = "official",
    how: Resampling = DEFAULT,
    judged: bool = False,
) -> Figures:
    """The benchmark's figures, the headline first, from one row of scores per item, one score per caption.

    A NaN means that no score could be made: it is dropped and counted. Higher scores mean better captions. With
    `judged` the scores are verdicts as numbers (1 and 0, or 0.5 for a tie), on which no tie threshold is put.
    """
    return figures_of(benchmark)(make_sheet(benchmark, items, scores, protocol=protocol, how=how, judged=judged))


def resolve(target: str) -> Any:
    """The object that a "module:name" string of a registry row names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def figures_of(benchmark: Benchmark) -> Callable[[Sheet[Any]], Figures]:
    """The function that counts a sheet of this benchmark, the headline first."""
    if benchmark.figures:
        counted: Callable[[Sheet[Any]], Figures] = resolve(benchmark.figures)
        return counted
    statistics = resolve(benchmark.statistics)
    return lambda sheet: tuple(statistic.figure(sheet) for statistic in statistics(sheet.items))


def matched_length(benchmark: Benchmark, sheet: Sheet[Any]) -> Figure | None:
    """The headline among captions of about equal length."""
    if benchmark.figures:
        return matched_pairs(sheet, figures_of(benchmark))
    return matched_ratings(sheet, resolve(benchmark.statistics))


def make_sheet(
    benchmark: Benchmark,
    items: Sequence[Item],
    scores: ArrayLike,
    *,
    protocol: str,
    how: Resampling,
    judged: bool,
) -> Sheet[Any]:
    """Items and scores checked against each other and the protocol."""
    if protocol not in benchmark.protocols:
        raise unknown_name(f"protocol of {benchmark.name}", protocol, benchmark.protocols)
    matrix = np.asarray(scores, dtype=np.float64)
    if not len(items):
        raise InputError(f"{benchmark.name}: nothing to evaluate, expected at least one item")
    width = len(items[0].captions)
    if matrix.ndim == 1 and width == 1:
        matrix = matrix[:, None]
    if matrix.shape != (len(items), width):
        expected = (len(items), width)
        raise InputError(f"{benchmark.name}: expected scores of shape {expected}, got {matrix.shape}")
    return Sheet(tuple(items), matrix, protocol, how, judged)
