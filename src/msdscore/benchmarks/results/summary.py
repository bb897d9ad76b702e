"""From scores to a result: figures of every metric with true and wrong pictures, under one protocol."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.base import Benchmark, Item, Note, picture_key
from msdscore.benchmarks.protocols.counting import count
from msdscore.benchmarks.protocols.figure import Figures, Floats
from msdscore.benchmarks.results.result import MetricResult, Result
from msdscore.benchmarks.results.scores import fact_sums, score_matrix
from msdscore.metrics.base import Metric
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Resampling
from msdscore.version import __version__

_PACKAGES = ("numpy", "scipy", "torch", "transformers", "pillow")
_SHOWN = 5  # reasons of failed items that a result names


def signature(metric: Metric, pipeline: Pipeline | None) -> str:
    """Everything that can change a score of this metric, in one line."""
    choices = f"|{metric.choices}" if metric.choices else ""
    if pipeline is None or not metric.needs("encoder"):
        return f"{metric.row.name}{choices}|v:{__version__}"
    if metric.needs("mixtures"):
        settings = pipeline.signature.split("|", 1)[1]
        return f"{metric.row.name}{choices}|{settings}"
    return f"{metric.row.name}{choices}|enc:{pipeline.encoder.signature}|v:{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How scores are counted, and what the result says of the run they come from."""

    row: Benchmark
    protocol: str
    pipeline: Pipeline | None
    seed: int
    samples: int
    limit: int | None
    options: Mapping[str, Any]
    notes: tuple[Note, ...]
    scores: str


def summarise(how: Counting, metrics: Sequence[Metric], table: pa.Table, items: Sequence[Item]) -> Result:
    """Count the figures of all metrics from the table of scores."""
    errors = [error for error in table.column("error").to_pylist() if error]
    return Result(
        benchmark=how.row.name,
        title=how.row.title,
        kind=how.row.kind,
        protocol=how.protocol,
        encoder=how.pipeline.encoder.signature if how.pipeline else "",
        items=len(items),
        pictures=len({picture_key(item.image) for item in items}),
        failed=len(errors),
        failures=tuple(dict.fromkeys(errors))[:_SHOWN],
        seed=how.seed,
        samples=how.samples,
        limit=how.limit,
        options=how.options,
        notes=how.notes,
        metrics=tuple(_metric(how, metric, table, items) for metric in metrics),
        versions=versions(),
        scores=how.scores,
    )


def versions() -> dict[str, str]:
    """Versions of what the numbers went through."""
    found = {"msdscore": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _oriented(metric: Metric, table: pa.Table, *, wrong: bool) -> Floats | None:
    """Scores turned so that higher is better."""
    scores = score_matrix(table, metric.label, wrong=wrong)
    return scores if scores is None or metric.higher_is_better else -scores


def _metric(how: Counting, metric: Metric, table: pa.Table, items: Sequence[Item]) -> MetricResult:
    tail = f"|bench:{how.row.name}|protocol:{how.protocol}|n:{len(items)}|seed:{how.seed}"
    true, wrong = (_figures(how, metric, items, _oriented(metric, table, wrong=side)) for side in (False, True))
    return MetricResult(
        metric.label,
        signature(metric, how.pipeline) + tail,
        metric.higher_is_better,
        metric.judged,
        true,
        wrong,
        fact_sums(table, metric.label) or None,
    )


def _figures(how: Counting, metric: Metric, items: Sequence[Item], scores: Floats | None) -> Figures:
    if scores is None or np.isnan(scores).all():
        return ()
    resampling = Resampling(samples=how.samples, seed=how.seed)
    return count(how.row, items, scores, protocol=how.protocol, how=resampling, judged=metric.judged)
