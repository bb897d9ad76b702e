"""Results of several draws of one benchmark as one: mean figures, and their spread over the draws."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from msdscore.benchmarks.protocols.figure import Figure, Figures
from msdscore.benchmarks.results.result import MetricResult, Result


def average(results: Sequence[Result]) -> Result:
    """The first result with the mean of every figure over all; intervals are the mean of theirs."""
    first = results[0]
    metrics = [
        _metric([next(m for m in result.metrics if m.label == metric.label) for result in results])
        for metric in first.metrics
    ]
    made = replace(first.made, seconds=round(sum(result.made.seconds for result in results), 1))
    return replace(first, metrics=tuple(metrics), seeds=len(results), failed=max(r.failed for r in results), made=made)


def _metric(drawn: Sequence[MetricResult]) -> MetricResult:
    matched = [one.matched for one in drawn if one.matched is not None]
    return replace(
        drawn[0],
        signature=f"{drawn[0].signature}|seeds:{len(drawn)}",
        figures=_figures([one.figures for one in drawn]),
        control=_figures([one.control for one in drawn]),
        matched=_mean(matched) if matched else None,
    )


def _figures(drawn: Sequence[Figures]) -> Figures:
    found = []
    for figure in drawn[0]:
        same = [next((one for one in figures if one.name == figure.name), None) for figures in drawn]
        found.append(_mean([one for one in same if one is not None]))
    return tuple(found)


def _mean(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    intervals = [figure.interval for figure in figures if figure.interval is not None]
    if len(figures) < 2 or any(map(math.isnan, values)):
        return figures[0]
    interval = None
    if len(intervals) == len(figures):
        low, high = fmean(one.low for one in intervals), fmean(one.high for one in intervals)
        interval = replace(intervals[0], value=fmean(values), low=low, high=high)
    return replace(figures[0], value=fmean(values), interval=interval, spread=stdev(values))
