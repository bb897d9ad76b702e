"""From scores to a result: figures of every metric with true and wrong images, under one protocol."""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.base import Note, image_key
from msdscore.benchmarks.protocols import counting
from msdscore.benchmarks.protocols.counting import Figure, Figures, Flags, Floats, Sheet
from msdscore.benchmarks.results.result import MetricResult, Provenance, Result, ScorerRecord, fact_sums, score_matrix
from msdscore.benchmarks.run.plan import Work
from msdscore.metrics.base import Metric
from msdscore.stats.resample import Resampling
from msdscore.version import __version__

_PACKAGES = ("numpy", "scipy", "torch", "transformers", "pillow")
_SHOWN = 5  # reasons of failed items that a result names


def signature(metric: Metric, scorer: ScorerRecord | None) -> str:
    """Everything that can change a score of this metric, in one line."""
    choices = f"|{metric.choices}" if metric.choices else ""
    if scorer is None or not metric.needs("encoder"):
        return f"{metric.row.name}{choices}|v:{__version__}"
    if metric.needs("mixtures"):
        settings = scorer.signature.split("|", 1)[1]
        return f"{metric.row.name}{choices}|{settings}"
    return f"{metric.row.name}{choices}|enc:{scorer.encoder}|v:{__version__}"


MetricScores = tuple[Metric, Floats, Floats | None]  # with true and wrong images, higher is better; None: no control


def summarise(work: Work, scorer: ScorerRecord | None, table: pa.Table, scores: str, provenance: Provenance) -> Result:
    """Count the figures of all metrics of a run from its table of scores (the file `scores`), on the same items."""
    plan, items = work.plan, work.item_set.items
    errors = [error for error in table.column("error").to_pylist() if error]
    columns = [_scores(metric, table) for metric in work.metrics]
    known = [_known(true, wrong) for _, true, wrong in columns]
    # A metric that knows no item has no figures and takes nothing from the others.
    knowing = [flags for flags in known if flags.any()]
    common: Flags = np.logical_and.reduce(knowing) if knowing else np.zeros(len(items), dtype=bool)
    chosen = [item for item, counts in zip(items, common, strict=True) if counts]
    how = Resampling(samples=plan.samples, seed=plan.seed)
    sheet = partial(counting.make_sheet, work.row, chosen, protocol=plan.protocol, how=how)
    bare = np.zeros((len(chosen), len(items[0].captions)))
    return Result(
        benchmark=work.row.name,
        title=work.row.title,
        kind=work.row.kind,
        protocol=plan.protocol,
        encoder=scorer.encoder if scorer else "",
        items=len(items),
        counted=len(chosen),
        pictures=len({image_key(item.image) for item in chosen}),
        failed=len(errors),
        failures=tuple(dict.fromkeys(errors))[:_SHOWN],
        seed=plan.seed,
        samples=plan.samples,
        limit=plan.limit,
        options=dict(plan.options),
        notes=(*work.notes(), *_left_out(work.metrics, known, common)),
        metrics=tuple(_metric(work, scorer, own, table, common, sheet) for own in columns),
        versions=versions(),
        scores=scores,
        length=counting.length_alone(work.row, sheet(bare, judged=False)) if chosen else None,
        made=provenance,
    )


def _scores(metric: Metric, table: pa.Table) -> MetricScores:
    sign = 1 if metric.higher_is_better else -1
    true, wrong = (score_matrix(table, metric.label, wrong=side) for side in (False, True))
    assert true is not None, "the table holds every metric of its run"
    return metric, sign * true, None if wrong is None or np.isnan(wrong).all() else sign * wrong


def _known(true: Floats, wrong: Floats | None) -> Flags:
    """Which items have a score, with the wrong image too where there is a control."""
    whole = true if wrong is None else np.hstack([true, wrong])
    return np.asarray(~np.isnan(whole).any(axis=1))


def _left_out(metrics: Sequence[Metric], known: Sequence[Flags], common: Flags) -> list[Note]:
    """One note where metrics know different items, with the metric that knows fewest."""
    knowing = [(flags, metric.label) for flags, metric in zip(known, metrics, strict=True) if flags.any()]
    if not len(common) or all((flags == common).all() for flags, _ in knowing):
        return []
    few, label = min((int(flags.sum()), label) for flags, label in knowing)
    return [Note(f"items left out: not scored by every metric ({label} has {few})", int((~common).sum()))]


def versions() -> dict[str, str]:
    """Versions of what the numbers went through."""
    packages = {"msdscore": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return packages


def _metric(
    work: Work,
    scorer: ScorerRecord | None,
    scores: MetricScores,
    table: pa.Table,
    common: Flags,
    sheet: Callable[..., Sheet[Any]],
) -> MetricResult:
    metric, true, wrong = scores
    missing = int(np.isnan(true).any(axis=1).sum())
    facts = fact_sums(table, metric.label) or None
    # Everything of the benchmark that can change a figure, the reader's options too.
    plan = work.plan
    tail = [f"bench:{plan.name}", f"protocol:{plan.protocol}", f"n:{int(common.sum())}", f"seed:{plan.seed}"]
    tail += [f"{name}:{value}" for name, value in sorted(plan.options.items())]
    tail += [] if plan.limit is None else [f"limit:{plan.limit}"]
    signed = "|".join([signature(metric, scorer), *tail])
    head = (metric.label, signed, metric.higher_is_better, metric.judged)
    if not common.any() or missing == len(common):
        return MetricResult(*head, (), missing=missing, facts=facts)
    count = partial(counting.figures, work.row)
    own = sheet(true[common], judged=metric.judged)
    control = () if wrong is None else count(sheet(wrong[common], judged=metric.judged))
    return MetricResult(*head, count(own), control, counting.matched_length(work.row, own), missing, facts)


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
