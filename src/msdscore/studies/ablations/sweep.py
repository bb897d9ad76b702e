"""One benchmark under several settings or encoders: each variant is a benchmark run of its own, kept and resumed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Note
from msdscore.benchmarks.protocols.figure import Figure
from msdscore.benchmarks.results.compare import Difference, compare_sides, side_of
from msdscore.benchmarks.results.grids import NONE, Grid, markdown, number, p_value
from msdscore.benchmarks.results.result import MetricResult, Result
from msdscore.benchmarks.run.plan import BenchmarkPlan
from msdscore.benchmarks.run.runner import run_benchmark
from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, Resampling, holm
from msdscore.studies.outcome import Chart, ChartLine, Progress, spelled


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice that is tried: its name, how to load it, and where it stands on the axis of a curve."""

    name: str
    pipeline: Callable[[], Pipeline]
    place: float | None = None


@dataclass(frozen=True, slots=True)
class VariantResult:
    """A variant's result on one benchmark; `against` compares each metric's headline with the baseline variant's."""

    variant: Variant
    result: Result
    folder: Path
    against: Mapping[str, Difference]


@dataclass(frozen=True, slots=True)
class Sweep:
    """All variants on one benchmark, under one plan; `axis` says what differs between them."""

    axis: str
    baseline: str
    metrics: tuple[str, ...]
    rows: tuple[VariantResult, ...]

    @property
    def title(self) -> str:
        """The benchmark's name."""
        return self.rows[0].result.title

    def to_dict(self) -> dict[str, Any]:
        """Plain values: figures with intervals of every variant and metric, and differences from the baseline."""
        first = self.rows[0].result
        return {
            "benchmark": first.benchmark,
            "protocol": first.protocol,
            "items": first.items,
            "counted": first.counted,
            "pictures": first.pictures,
            "limit": first.limit,
            "options": dict(first.options),
            "versions": dict(first.versions),
            "axis": self.axis,
            "baseline": self.baseline,
            "variants": [_variant_dict(row) for row in self.rows],
        }


def run_sweep(
    plan: BenchmarkPlan,
    variants: Sequence[Variant],
    folder: Path,
    *,
    axis: str,
    baseline: str = "",
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Sweep:
    """Run a plan once per variant, with results in `folder`; `baseline` names the one that the others are held against.

    A variant that is finished is not run again, and one that was stopped goes on; `overwrite` runs all anew.
    """
    names = [variant.name for variant in variants]
    base = baseline or names[0]
    if base not in names or len(set(names)) < len(names):
        raise ConfigError(f"expected different variants with {base} among them, got {', '.join(names)}")
    found: dict[str, tuple[Result, Path]] = {}
    for place, variant in enumerate(variants):
        output = folder / slug(variant.name) / f"{plan.name}{_options(plan)}.json"

        def show(done: int, total: int, place: int = place) -> None:
            progress(place * total + done, len(variants) * total)

        found[variant.name] = (
            run_benchmark(plan, output, variant.pipeline, overwrite=overwrite, progress=show),
            output.parent,
        )
    how = Resampling(samples=plan.samples, seed=plan.seed)
    differences = {label: _differences(found, base, label, how) for label in plan.metrics}
    rows = [
        VariantResult(
            variant,
            *found[variant.name],
            {label: by_name[variant.name] for label, by_name in differences.items() if variant.name in by_name},
        )
        for variant in variants
    ]
    return Sweep(axis, base, plan.metrics, tuple(rows))


def slug(name: str) -> str:
    """A name as a folder may have it.

    >>> slug("K = (3, 2)")
    'k-3-2'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "variant"


def variant_grid(sweep: Sweep, label: str) -> Grid:
    """One metric: a row per figure, a column per variant, then what the wrong picture gives and the paired test."""
    metrics = [row.result.metric(label) for row in sweep.rows]
    names = [figure.name for figure in metrics[0].figures]
    rows = [(name, *(_cell(metric.figure(name)) for metric in metrics)) for name in names]
    best = {(place, at) for place, name in enumerate(names) for at in _best(metrics, name)}
    head = names[0]
    if metrics[0].control:
        rows.append(("wrong image", *(number(_control(metric, head)) for metric in metrics)))
    tests = [row.against.get(label) for row in sweep.rows]
    rows.append((f"difference from {sweep.baseline}", *(_gap(test) for test in tests)))
    rows.append(("p, Holm", *(NONE if test is None else p_value(test.adjusted) for test in tests)))
    first = sweep.rows[0].result
    title = f"{sweep.title}, {label}: {sweep.axis} ({first.counted} items, {first.pictures} pictures)"
    columns = ("figure", *(row.variant.name for row in sweep.rows))
    return Grid(title, columns, tuple(rows), tuple(_notes(sweep, label)), frozenset(best))


def headline_grid(sweep: Sweep) -> Grid:
    """The headline of every metric, a row each, a column per variant."""
    rows = []
    for label in sweep.metrics:
        metrics = [row.result.metric(label) for row in sweep.rows]
        rows.append((label, *(_both(metric) for metric in metrics)))
    head = sweep.rows[0].result.metrics[0].figures[0].name
    columns = ("metric", *(row.variant.name for row in sweep.rows))
    return Grid(f"{sweep.title}: {head} / with the wrong image", columns, tuple(rows))


def section(sweeps: Sequence[Sweep], labels: Sequence[str]) -> str:
    """All tables in Markdown: `labels` in full, then the headline of every metric."""
    parts = [markdown(variant_grid(sweep, label)) for sweep in sweeps for label in labels]
    parts += [markdown(headline_grid(sweep)) for sweep in sweeps if len(sweep.metrics) > 1]
    return "\n".join(parts)


def charts(sweeps: Sequence[Sweep], labels: Sequence[str], *, logarithmic: bool = False) -> tuple[Chart, ...]:
    """The headline of some metrics over the variants, a panel per benchmark."""
    return tuple(_chart(sweep, labels, logarithmic) for sweep in sweeps)


def interval_of(figure: Figure) -> Interval:
    """The interval of a figure; without one its ends are NaN."""
    nan = float("nan")
    return figure.interval or Interval(figure.value, nan, nan, 0.95, "none", figure.n, 0)


def _chart(sweep: Sweep, labels: Sequence[str], logarithmic: bool) -> Chart:
    numeric = all(row.variant.place is not None for row in sweep.rows)
    head = sweep.rows[0].result.metrics[0].figures[0]
    lines = []
    for label in labels:
        values = {
            row.variant.place if numeric else row.variant.name: interval_of(row.result.metric(label).figures[0])
            for row in sweep.rows
        }
        lines.append(ChartLine.of(label, values, scale=head.scale))
    return Chart(
        title=sweep.title,
        x_label=sweep.axis,
        y_label=head.name,
        lines=tuple(lines),
        level=50.0 if head.name.startswith("accuracy") else None,
        logarithmic=logarithmic and numeric,
    )


def _differences(
    found: Mapping[str, tuple[Result, Path]], base: str, label: str, how: Resampling
) -> dict[str, Difference]:
    """The headline of every other variant against the baseline, with Holm's correction over the variants."""
    result, folder = found[base]
    ours = side_of(result, label, folder)
    names = [name for name, (other, _) in found.items() if name != base and other.metric(label).figures]
    heads = [compare_sides(side_of(found[n][0], label, found[n][1]), ours, how=how).differences[0] for n in names]
    adjusted = holm([head.tests[0].p_value for head in heads]).tolist() if heads else []
    return {name: replace(head, adjusted=p) for name, head, p in zip(names, heads, adjusted, strict=True)}


def _options(plan: BenchmarkPlan) -> str:
    return "".join(f"-{slug(str(value))}" for _, value in sorted(plan.options.items()))


def _best(metrics: Sequence[MetricResult], name: str) -> list[int]:
    """The columns (from 1) with the highest value of a figure."""
    values = [figure.value if (figure := metric.figure(name)) else float("-inf") for metric in metrics]
    return [place + 1 for place, value in enumerate(values) if value == max(values)]


def _cell(figure: Figure | None) -> str:
    if figure is None or figure.interval is None or figure.interval.low != figure.interval.low:
        return number(figure)
    low, high = (figure.scale * end for end in (figure.interval.low, figure.interval.high))
    return f"{number(figure)} [{low:.1f}, {high:.1f}]"


def _control(metric: MetricResult, name: str) -> Figure | None:
    return next((figure for figure in metric.control if figure.name == name), None)


def _both(metric: MetricResult) -> str:
    head = metric.figures[0] if metric.figures else None
    wrong = _control(metric, head.name) if head else None
    return number(head) if wrong is None else f"{number(head)} / {number(wrong)}"


def _gap(test: Difference | None) -> str:
    if test is None:
        return NONE
    gap, low, high = (test.scale * x for x in (test.first - test.second, test.interval.low, test.interval.high))
    return f"{gap:+.1f} [{low:+.1f}, {high:+.1f}]"


def _notes(sweep: Sweep, label: str) -> list[str]:
    notes: list[Note] = list(dict.fromkeys(note for row in sweep.rows for note in row.result.notes))
    told = [f"{note.what}: {note.count}" for note in notes]
    return [*told, *(f"{row.variant.name}: `{row.result.metric(label).signature}`" for row in sweep.rows)]


def _variant_dict(row: VariantResult) -> dict[str, Any]:
    return {
        "name": row.variant.name,
        "value": row.variant.place,
        "encoder": row.result.encoder,
        "metrics": [_metric_dict(row, metric) for metric in row.result.metrics],
    }


def _metric_dict(row: VariantResult, metric: MetricResult) -> dict[str, Any]:
    test = row.against.get(metric.label)
    return {
        "metric": metric.label,
        "signature": metric.signature,
        "figures": {figure.name: spelled(interval_of(figure)) for figure in metric.figures},
        "wrong_image": {figure.name: figure.value for figure in metric.control},
        "difference": None
        if test is None
        else {**spelled(test.interval), "p": test.tests[0].p_value, "p_holm": test.adjusted},
    }
