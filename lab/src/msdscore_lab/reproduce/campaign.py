"""Runs of a reproduction: every encoder on every benchmark, compared with published values.

Each run is equivalent to `msdscore bench`, with its files in OUTPUT/results/ENCODER. An interrupted campaign resumes;
finished runs are evaluated again without loading the encoder.
"""

import gc
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.encoders.base import Encoder
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.scorer import Scorer
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.registry import data_folder
from msdscore_lab.benchmarks.results.result import MetricResult, Result, items_of, score_matrix
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan, pipeline_for
from msdscore_lab.benchmarks.run.runner import run_benchmark
from msdscore_lab.paper.run import folder_source
from msdscore_lab.reproduce import tolerance
from msdscore_lab.reproduce.published import COSINE, ITEMS, PUBLISHED, Published

GENERAL = ("clip-b32", "clip-l14", "longclip-l", "siglip2-base", "llava-1.5-7b")
ENCODERS = (*GENERAL, "remoteclip-l14", "biomedclip")
BENCHMARKS = tuple(ITEMS)
FORM = PROTOCOL = "paper"  # of all benchmarks
# Run with every general encoder; others only if a value is published.
EVERY = ("sugarcrepe", "flickr8k-expert", "pascal50s")
PUBLISHED_METRICS = ("clipscore", COSINE)  # of the model's own pooled vectors
METRICS = ("cosine", "msd", "soft-msd")
# Crop as CLIP's code does, with which CLIPScore and SugarCrepe were published. CLIPScore cuts captions at the context,
# MSD reads long ones in windows, as in `make paper`.
_AS_PUBLISHED = {"crop": "torchvision"}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"clip-b32": _AS_PUBLISHED, "clip-l14": _AS_PUBLISHED}
COMPLETE = 0.99  # fraction of a benchmark's items below which a result is not compared with the published value

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Benchmarks under `data` and encoders to run, optionally with folders of checkpoints instead of the hub."""

    data: Path
    output: Path
    encoders: tuple[str, ...] = ENCODERS
    benchmarks: tuple[str, ...] = BENCHMARKS
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    limit: int | None = None
    samples: int = 1000

    def __post_init__(self) -> None:
        for kind, names, known in (
            ("encoder", (*self.encoders, *self.checkpoints), ENCODERS),
            ("benchmark", self.benchmarks, BENCHMARKS),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ConfigError(f"expected a known {kind}, got {unknown[0]!r}; known: {', '.join(known)}")
        for name, folder in self.checkpoints.items():
            if not folder.is_dir():
                raise ConfigError(f"checkpoint of {name}: expected a folder, but {folder} does not exist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One result of a run, and the published value if there is one.

    `within` is None if the two are not compared; `reason` then says why.
    """

    encoder: str
    benchmark: str
    metric: str
    figure: str
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    items: int = 0
    published: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    within: bool | None = None
    reason: str = ""
    source: str = ""
    signature: str = ""
    command: str = ""

    @property
    def name(self) -> str:
        """Description of the cell in one line.

        >>> Cell(encoder="clip-b32", benchmark="pascal50s", metric="clipscore", figure="accuracy/HC").name
        'clip-b32, pascal50s, clipscore, accuracy/HC'
        """
        return f"{self.encoder}, {self.benchmark}, {self.metric}, {self.figure}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"cell": self.name, **asdict(self)}


def run_campaign(
    campaign: Campaign,
    *,
    finished: Callable[[list[Cell]], None] = lambda cells: None,
    progress: Progress = lambda name, done, total: None,
    say: Say = lambda line: None,
) -> list[Cell]:
    """Run unfinished runs and compare; `finished` is called with all cells so far after every run.

    A run without data or weights yields cells with the reason, and the other runs continue.
    """
    cells: list[Cell] = []
    for encoder in campaign.encoders:
        spec = encoder_spec(campaign, encoder)
        loaded = cache(partial(load_encoder, spec.encoder, device=spec.device, dtype=spec.dtype, **dict(spec.options)))
        every = EVERY if encoder in GENERAL else ()
        for benchmark in campaign.benchmarks:
            if benchmark not in every and not published_for(encoder, benchmark):
                continue
            chosen = replace(spec, form=FORM)
            plan = _plan(campaign, encoder, benchmark, chosen)
            name = f"{encoder}, {benchmark}"
            path = campaign.output / "results" / encoder / f"{benchmark}.json"
            try:
                result = run_benchmark(
                    plan, path, partial(_pipeline, loaded, chosen, benchmark), stamp=chosen.stamp(),
                    progress=partial(progress, name),
                )  # fmt: skip
                cells += compared_cells(encoder, result, plan.command, pq.read_table(path.with_name(result.scores)))
            except MSDScoreError as error:
                say(f"{name}: not run: {error}")
                cells += not_run(encoder, benchmark, str(error), plan.command)
            finished(cells)
        del loaded
        gc.collect()  # free the device before the next encoder is loaded
    return cells


def _pipeline(loaded: Callable[[], Encoder], spec: ScorerSpec, benchmark: str) -> Pipeline:
    return pipeline_for(benchmark, Scorer(loaded(), spec.form, batch_size=spec.batch_size).pipeline, spec)


def metrics_of(encoder: str, benchmark: str) -> tuple[str, ...]:
    """Return the metrics of a run; a vision-language model has no pooled vectors, so that it has no CLIPScore."""
    metrics = METRICS if encoder.startswith("llava") else (*PUBLISHED_METRICS, *METRICS)
    return (*metrics, "soft-msd,set=image") if benchmark == "flickr8k-expert" else metrics


def encoder_spec(campaign: Campaign, name: str) -> ScorerSpec:
    """Return the spec of an encoder by its short name, or from a local folder."""
    options = dict(OPTIONS.get(name, {}))
    source, folder = name, campaign.checkpoints.get(name)
    if folder is not None:
        source, own = folder_source(folder, name)
        options |= own
    return ScorerSpec(
        encoder=source, options=tuple(options.items()), device=campaign.device, dtype=campaign.dtype,
        batch_size=campaign.batch_size,
    )  # fmt: skip


def _plan(campaign: Campaign, encoder: str, benchmark: str, spec: ScorerSpec) -> BenchmarkPlan:
    plan = BenchmarkPlan(
        name=benchmark, root=data_folder(campaign.data, benchmark), metrics=metrics_of(encoder, benchmark),
        limit=campaign.limit, samples=campaign.samples, control=False, protocol=PROTOCOL,
    )  # fmt: skip
    return replace(plan, command=bench_command(plan, spec))


def bench_command(plan: BenchmarkPlan, spec: ScorerSpec) -> str:
    """Return the equivalent shell command."""
    words = ["msdscore", "bench", plan.name, "--root", str(plan.root), "--no-control", "--encoder", spec.encoder]
    words += ["--form", str(spec.form)]
    for name, value in spec.options:
        words += ["--encoder-option", f"{name}={value}"]
    for metric in plan.metrics:
        words += ["-m", metric]
    for name, value, default in (
        ("--device", spec.device, "auto"),
        ("--dtype", spec.dtype, "auto"),
        ("--batch-size", spec.batch_size, None),
        ("--protocol", plan.protocol, "official"),
        ("--limit", plan.limit, None),
        ("--samples", plan.samples, 1000),
    ):
        words += [] if value == default else [name, str(value)]
    return shlex.join(words)


def published_for(encoder: str, benchmark: str) -> list[Published]:
    """Return the published values of one encoder on one benchmark."""
    return [known for known in PUBLISHED if (known.encoder, known.benchmark) == (encoder, benchmark)]


def compared_cells(encoder: str, result: Result, command: str, scores: pa.Table | None) -> list[Cell]:
    """Return the cells of a run: every published statistic, and the headline of metrics that have none."""
    known = published_for(encoder, result.benchmark)
    cells = [
        _cell(encoder, result, result.metric(value.metric), value.figure, command, value, scores) for value in known
    ]
    compared = {value.metric for value in known}
    for metric in result.metrics:
        if metric.label not in compared:
            head = metric.figures[0].name if metric.figures else "headline"
            cells.append(_cell(encoder, result, metric, head, command, None))
    return cells


def _cell(
    encoder: str,
    result: Result,
    metric: MetricResult,
    figure: str,
    command: str,
    known: Published | None,
    scores: pa.Table | None = None,
) -> Cell:
    measured = metric.figure(figure)
    cell = Cell(
        encoder=encoder, benchmark=result.benchmark, metric=metric.label, figure=figure, items=result.counted,
        signature=metric.signature, command=command, reason="nothing published to compare with",
    )  # fmt: skip
    if known is not None:
        cell = replace(cell, published=known.value, source=known.source, reason=known.reason)
    if measured is None or measured.value != measured.value:
        return replace(cell, reason=_why_none(result))
    ends = {} if measured.interval is None else {"low": measured.interval.low, "high": measured.interval.high}
    # An end is NaN if there are too few items.
    values = {"ours": measured.value, **{name: end for name, end in ends.items() if isfinite(end)}}
    numbers = {name: round(measured.scale * value, 2) for name, value in values.items()}
    cell = replace(cell, ours=numbers["ours"], low=numbers.get("low"), high=numbers.get("high"))
    if known is None:
        return cell
    difference = round(numbers["ours"] - known.value, 2)
    allowed = round(_tolerance(known, measured, result, metric, scores), 2)
    cell = replace(cell, difference=difference, tolerance=allowed)
    if reason := incomplete(result.benchmark, result.counted):
        return replace(cell, reason=reason)
    return replace(cell, within=abs(difference) <= allowed)


def incomplete(benchmark: str, counted: int) -> str:
    """Return why a result on so many items is not judged; an empty string if it is."""
    items = ITEMS.get(benchmark)
    if items is None:
        return "not judged: the items of the published figure are not known"
    return "" if counted >= COMPLETE * items else f"not judged: {counted:,} of {items:,} items were scored"


def _tolerance(
    known: Published, measured: Figure, result: Result, metric: MetricResult, scores: pa.Table | None
) -> float:
    """Return the tolerance, derived from the digits, the size and the scores (see `tolerance`)."""
    if not known.same:
        ends = (None, None) if measured.interval is None else (measured.interval.low, measured.interval.high)
        return tolerance.redrawn(measured.value, ends, measured.n, digits=known.digits, scale=measured.scale)
    matrix = None if scores is None else score_matrix(scores, metric.label)
    if scores is None or matrix is None:
        return tolerance.repeated(measured, None, digits=known.digits)
    complete = np.asarray(~np.isnan(matrix).any(axis=1))
    items = [item for item, scored in zip(items_of(scores, result.kind), complete, strict=True) if scored]
    sign = 1 if metric.higher_is_better else -1
    again = tolerance.halved(result.benchmark, items, matrix[complete], result.protocol, sign)
    return tolerance.repeated(measured, again.get(measured.name), digits=known.digits)


def _why_none(result: Result) -> str:
    if not result.failed:
        return f"no figure: too few of its items are among the {result.counted} that were scored"
    return f"no figure: {result.failed} of {result.items} items failed: {result.failures[0]}"


def not_run(encoder: str, benchmark: str, reason: str, command: str) -> list[Cell]:
    """Return the cells of a run that could not be done."""
    known = published_for(encoder, benchmark)
    compared = {value.metric for value in known}
    more = [metric for metric in metrics_of(encoder, benchmark) if metric not in compared]
    blank = Cell(
        encoder=encoder, benchmark=benchmark, metric="", figure="headline", reason=f"not run: {reason}", command=command
    )
    cells = [
        replace(blank, metric=value.metric, figure=value.figure, published=value.value, source=value.source)
        for value in known
    ]
    return cells + [replace(blank, metric=metric) for metric in more]


def summary(cells: Sequence[Cell]) -> dict[str, int]:
    """Count results within tolerance, outside, not judged and missing."""
    return {
        "within": sum(cell.within is True for cell in cells),
        "outside": sum(cell.within is False for cell in cells),
        "not_judged": sum(cell.within is None and cell.ours is not None for cell in cells),
        "missing": sum(cell.ours is None for cell in cells),
    }
