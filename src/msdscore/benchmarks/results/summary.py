"""From scores to a result: figures of every metric with true and wrong images, under one protocol."""

import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean, stdev

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.base import Note, image_key
from msdscore.benchmarks.protocols import counting
from msdscore.benchmarks.protocols.counting import Figure, Figures, Flags, Floats
from msdscore.benchmarks.results.result import FACT, MetricResult, Provenance, Result, ScorerRecord, score_matrix
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


def summarise(work: Work, scorer: ScorerRecord | None, table: pa.Table, scores: str, provenance: Provenance) -> Result:
    """Count the figures of all metrics of a run from its table of scores (the file `scores`), on the same items."""
    plan, row, items = work.plan, work.row, work.item_set.items
    errors = [error for error in table.column("error").to_pylist() if error]
    columns = [_scores(metric, table) for metric in work.metrics]
    # Items that have a score, with the wrong image too where there is a control.
    known: list[Flags] = [np.asarray(~np.isnan(np.hstack(sides)).any(axis=1)) for sides in columns]
    # A metric that knows no item has no figures and takes nothing from the others.
    knowing = [(flags, metric.label) for flags, metric in zip(known, work.metrics, strict=True) if flags.any()]
    common: Flags = np.logical_and.reduce([f for f, _ in knowing]) if knowing else np.zeros(len(items), dtype=bool)
    notes = list(work.notes())
    if not all((flags == common).all() for flags, _ in knowing):
        few, label = min((int(flags.sum()), label) for flags, label in knowing)
        what = f"items left out: not scored by every metric ({label} has {few})"
        notes.append(Note(what, int((~common).sum())))
    chosen = [item for item, counts in zip(items, common, strict=True) if counts]
    how = Resampling(samples=plan.samples, seed=plan.seed)
    sheet = partial(counting.make_sheet, row, chosen, protocol=plan.protocol, how=how)
    bare = np.zeros((len(chosen), len(items[0].captions)))
    # Everything of the benchmark that can change a figure, the reader's options too.
    tail = [f"bench:{plan.name}", f"protocol:{plan.protocol}", f"n:{len(chosen)}", f"seed:{plan.seed}"]
    tail += [f"{name}:{value}" for name, value in sorted(plan.options.items())]
    tail += [] if plan.limit is None else [f"limit:{plan.limit}"]
    metrics = []
    for metric, sides in zip(work.metrics, columns, strict=True):
        signed = "|".join([signature(metric, scorer), *tail])
        missing = int(np.isnan(sides[0]).any(axis=1).sum())
        facts = _fact_sums(table, metric.label) or None
        result = MetricResult(
            metric.label, signed, metric.higher_is_better, metric.judged, (), (), None, missing, facts
        )
        if chosen and missing < len(items):
            sheets = [sheet(side[common], judged=metric.judged) for side in sides]
            figures, *control = (counting.figures(row, side) for side in sheets)
            matched = counting.matched_length(row, sheets[0])
            result = replace(result, figures=figures, control=control[0] if control else (), matched=matched)
        metrics.append(result)
    return Result(
        benchmark=row.name,
        title=row.title,
        kind=row.kind,
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
        notes=tuple(notes),
        metrics=tuple(metrics),
        versions=versions(),
        scores=scores,
        length=counting.length_alone(row, sheet(bare, judged=False)) if chosen else None,
        made=provenance,
    )


def _scores(metric: Metric, table: pa.Table) -> list[Floats]:
    """Scores with true images and, where there is a control, with wrong ones; higher is better."""
    sign = 1 if metric.higher_is_better else -1
    true, wrong = (score_matrix(table, metric.label, wrong=side) for side in (False, True))
    assert true is not None, "the table holds every metric of its run"
    return [sign * true, *([] if wrong is None or np.isnan(wrong).all() else [sign * wrong])]


def _fact_sums(table: pa.Table, label: str) -> dict[str, float]:
    head = label + FACT
    names = [name for name in table.column_names if name.startswith(head)]
    return {name.removeprefix(head): float(np.nansum(table.column(name).to_numpy())) for name in names}


def versions() -> dict[str, str]:
    """Versions of what the numbers went through."""
    packages = {"msdscore": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return packages


def average(results: Sequence[Result]) -> Result:
    """The first result with the mean of every figure over all; intervals are the mean of theirs."""
    first, metrics = results[0], []
    for metric in first.metrics:
        drawn = [result.metric(metric.label) for result in results]
        matched = [own.matched for own in drawn if own.matched is not None]
        metrics.append(replace(
            metric,
            signature=f"{metric.signature}|seeds:{len(drawn)}",
            figures=_mean_figures([own.figures for own in drawn]),
            control=_mean_figures([own.control for own in drawn]),
            matched=_mean_figure(matched) if matched else None,
        ))  # fmt: skip
    run = replace(first.made, seconds=round(sum(result.made.seconds for result in results), 1))
    return replace(first, metrics=tuple(metrics), seeds=len(results), failed=max(r.failed for r in results), made=run)


def _mean_figures(drawn: Sequence[Figures]) -> Figures:
    every = [figure for figures in drawn for figure in figures]
    return tuple(_mean_figure([other for other in every if other.name == figure.name]) for figure in drawn[0])


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
