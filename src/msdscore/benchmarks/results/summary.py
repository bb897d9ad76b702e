"""From scores to a result: figures of every metric with true and wrong images, under one protocol."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.base import Benchmark, Item, Note, image_key
from msdscore.benchmarks.protocols.counting import (
    Figure,
    Figures,
    Flags,
    Floats,
    Sheet,
    figures_of,
    length_alone,
    make_sheet,
    matched_length,
)
from msdscore.benchmarks.results.result import MetricResult, Provenance, Result, fact_sums, score_matrix
from msdscore.metrics.base import Metric
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Resampling
from msdscore.version import __version__

_PACKAGES = ("numpy", "scipy", "torch", "transformers", "pillow")
_SHOWN = 5  # reasons of failed items that a result names


@dataclass(frozen=True, slots=True)
class ScorerRecord:
    """What a result says of its scorer: its signature, that of its encoder, and where it ran."""

    signature: str
    encoder: str
    device: str

    @classmethod
    def of(cls, pipeline: Pipeline) -> "ScorerRecord":
        """The record of a scorer that is loaded."""
        return cls(pipeline.signature, pipeline.encoder.signature, str(pipeline.encoder.device))


def signature(metric: Metric, scorer: ScorerRecord | None) -> str:
    """Everything that can change a score of this metric, in one line."""
    choices = f"|{metric.choices}" if metric.choices else ""
    if scorer is None or not metric.needs("encoder"):
        return f"{metric.row.name}{choices}|v:{__version__}"
    if metric.needs("mixtures"):
        settings = scorer.signature.split("|", 1)[1]
        return f"{metric.row.name}{choices}|{settings}"
    return f"{metric.row.name}{choices}|enc:{scorer.encoder}|v:{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How scores are counted, and what the result says of the run they come from."""

    row: Benchmark
    protocol: str
    scorer: ScorerRecord | None
    seed: int
    samples: int
    limit: int | None
    options: Mapping[str, Any]
    notes: tuple[Note, ...]
    scores: str
    made: Provenance

    def sheet(self, items: Sequence[Item], scores: Floats, *, judged: bool = False) -> Sheet[Any]:
        """Items with scores, ready to count."""
        resampling = Resampling(samples=self.samples, seed=self.seed)
        return make_sheet(self.row, items, scores, protocol=self.protocol, how=resampling, judged=judged)


def summarise(how: Counting, metrics: Sequence[Metric], table: pa.Table, items: Sequence[Item]) -> Result:
    """Count the figures of all metrics from the table of scores, all on the same items."""
    errors = [error for error in table.column("error").to_pylist() if error]
    scores = [_Scores.of(metric, table) for metric in metrics]
    common = _common(scores, len(items))
    chosen = [item for item, counts in zip(items, common, strict=True) if counts]
    count = figures_of(how.row)
    alone = length_alone(how.sheet(chosen, np.zeros((len(chosen), len(items[0].captions)))), count) if chosen else None
    return Result(
        benchmark=how.row.name,
        title=how.row.title,
        kind=how.row.kind,
        protocol=how.protocol,
        encoder=how.scorer.encoder if how.scorer else "",
        items=len(items),
        counted=len(chosen),
        pictures=len({image_key(item.image) for item in chosen}),
        failed=len(errors),
        failures=tuple(dict.fromkeys(errors))[:_SHOWN],
        seed=how.seed,
        samples=how.samples,
        limit=how.limit,
        options=how.options,
        notes=(*how.notes, *_left_out(scores, common)),
        metrics=tuple(_metric(how, own, table, chosen, common) for own in scores),
        versions=versions(),
        scores=how.scores,
        length=alone,
        made=how.made,
    )


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of a metric, turned so that higher is better; `wrong` is None where there is no control."""

    metric: Metric
    true: Floats
    wrong: Floats | None

    @classmethod
    def of(cls, metric: Metric, table: pa.Table) -> "_Scores":
        sign = 1 if metric.higher_is_better else -1
        true, wrong = (score_matrix(table, metric.label, wrong=side) for side in (False, True))
        assert true is not None, "the table holds every metric of its run"
        return cls(metric, sign * true, None if wrong is None or np.isnan(wrong).all() else sign * wrong)

    @property
    def known(self) -> Flags:
        """Which items have a score, with the wrong image too where there is a control."""
        whole = self.true if self.wrong is None else np.hstack([self.true, self.wrong])
        return np.asarray(~np.isnan(whole).any(axis=1))


def _common(scores: Sequence[_Scores], count: int) -> Flags:
    """The items that every metric knows; a metric that knows none has no figures and takes nothing from the others."""
    known = [own.known for own in scores if own.known.any()]
    return np.logical_and.reduce(known) if known else np.zeros(count, dtype=bool)


def _left_out(scores: Sequence[_Scores], common: Flags) -> list[Note]:
    """One note where metrics know different items, with the metrics that know fewest."""
    if not len(common) or all((own.known == common).all() for own in scores if own.known.any()):
        return []
    few = min((int(own.known.sum()), own.metric.label) for own in scores if own.known.any())
    return [Note(f"items left out: not scored by every metric ({few[1]} has {few[0]})", int((~common).sum()))]


def versions() -> dict[str, str]:
    """Versions of what the numbers went through."""
    packages = {"msdscore": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return packages


def _metric(how: Counting, scores: _Scores, table: pa.Table, items: Sequence[Item], common: Flags) -> MetricResult:
    metric = scores.metric
    missing = int(np.isnan(scores.true).any(axis=1).sum())
    facts = fact_sums(table, metric.label) or None
    head = (metric.label, _signature(how, metric, len(items)), metric.higher_is_better, metric.judged)
    if not common.any() or missing == len(common):
        return MetricResult(*head, (), missing=missing, facts=facts)
    count = figures_of(how.row)
    sheets = [
        None if side is None else how.sheet(items, side[common], judged=metric.judged)
        for side in (scores.true, scores.wrong)
    ]
    assert sheets[0] is not None, "every metric has scores with the true images"
    return MetricResult(
        *head,
        count(sheets[0]),
        () if sheets[1] is None else count(sheets[1]),
        matched_length(how.row, sheets[0]),
        missing,
        facts,
    )


def _signature(how: Counting, metric: Metric, counted: int) -> str:
    """The metric's signature with everything of the benchmark that can change a figure, the reader's options too."""
    tail = [f"bench:{how.row.name}", f"protocol:{how.protocol}", f"n:{counted}", f"seed:{how.seed}"]
    tail += [f"{name}:{value}" for name, value in sorted(how.options.items())]
    tail += [] if how.limit is None else [f"limit:{how.limit}"]
    return "|".join([signature(metric, how.scorer), *tail])


def average(results: Sequence[Result]) -> Result:
    """The first result with the mean of every figure over all; intervals are the mean of theirs."""
    first = results[0]
    metrics = [
        _averaged([next(m for m in result.metrics if m.label == metric.label) for result in results])
        for metric in first.metrics
    ]
    run = replace(first.made, seconds=round(sum(result.made.seconds for result in results), 1))
    return replace(first, metrics=tuple(metrics), seeds=len(results), failed=max(r.failed for r in results), made=run)


def _averaged(drawn: Sequence[MetricResult]) -> MetricResult:
    matched = [result.matched for result in drawn if result.matched is not None]
    return replace(
        drawn[0],
        signature=f"{drawn[0].signature}|seeds:{len(drawn)}",
        figures=_mean_figures([result.figures for result in drawn]),
        control=_mean_figures([result.control for result in drawn]),
        matched=_mean_figure(matched) if matched else None,
    )


def _mean_figures(drawn: Sequence[Figures]) -> Figures:
    means = []
    for figure in drawn[0]:
        same = [next((candidate for candidate in figures if candidate.name == figure.name), None) for figures in drawn]
        means.append(_mean_figure([candidate for candidate in same if candidate is not None]))
    return tuple(means)


def _mean_figure(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    intervals = [figure.interval for figure in figures if figure.interval is not None]
    if len(figures) < 2 or any(map(math.isnan, values)):
        return figures[0]
    interval = None
    if len(intervals) == len(figures):
        low, high = (fmean(getattr(drawn, end) for drawn in intervals) for end in ("low", "high"))
        interval = replace(intervals[0], value=fmean(values), low=low, high=high)
    return replace(figures[0], value=fmean(values), interval=interval, spread=stdev(values))
