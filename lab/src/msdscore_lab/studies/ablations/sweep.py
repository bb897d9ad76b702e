"""Sweeps: one benchmark under several settings or encoders, and the paper's ablations.

Each variant is a separate benchmark run, which can be resumed; all are compared with the baseline variant.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.encoders.banks import NamedBank
from msdscore.encoders.base import Encoder
from msdscore.errors import ConfigError, InputError
from msdscore.forms.base import Form
from msdscore.intervals import Interval
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.results.compare import Difference, Side, compare_sides
from msdscore_lab.benchmarks.results.result import Result, score_matrix
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark
from msdscore_lab.studies.ablations.mixtures import Kind, with_mixture
from msdscore_lab.studies.context import PAPER_FORM, Study, paper_form
from msdscore_lab.studies.table import Column, Plot, Row, Table

PAIRS = ("sugarcrepe",)
DIVERGENCE = "bi-kl"  # the metric that is d itself
# The paper's table of distributions: Euclidean Gaussians, adaptive and fixed concentration.
MIXTURES: dict[str, Kind] = {
    "vMF, fixed kappa": "vmf",
    "vMF, adaptive kappa": "vmf-adaptive",
    "Gaussian, spherical": "gaussian",
    "Gaussian, diagonal": "gaussian-diagonal",
    "Gaussian, shrunk": "gaussian-shrunk",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a sweep: the setting of the form, default values, and axis of the figure."""

    setting: str
    values: tuple[Any, ...]
    axis: str
    logarithmic: bool = True
    form: str = PAPER_FORM  # used unless another one is passed


PARAMETERS = {
    "kappa": Parameter("kappa", (5.0, 10.0, 20.0, 40.0, 80.0), "concentration kappa"),
    "alpha": Parameter("alpha", (0.0, 0.02, 0.05, 0.1, 0.2, 0.5), "weight alpha of the divergence", logarithmic=False),
    "components": Parameter(
        "components", ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4)), "components K (image, text)"
    ),
    "iterations": Parameter("iterations", (1, 2, 5, 10, 20, 50), "iterations of EM"),
    "xi": Parameter("temperature", (0.05, 0.1, 0.2, 0.4, 0.8), "temperature xi of Soft-MSD"),
    "l0": Parameter("gate_center", (5.0, 10.0, 20.0, 40.0, 80.0), "length L0 at which the gate is one half"),
    "tau-l": Parameter("gate_width", (1.0, 2.0, 3.0, 6.0, 12.0), "width tau_L of the gate"),
    "beta": Parameter("beta", (0.0, 0.25, 0.5, 0.75, 1.0), "fixed weight beta of coverage", logarithmic=False),
    "balance": Parameter(
        "balance", (0.0, 0.25, 0.5, 0.75, 1.0), "balance (0: precision, 1: information)", False, "evidence"
    ),
    "delta": Parameter("delta", (0.0, 0.05, 0.1, 0.15, 0.2, 0.3), "weight delta of the penalty", False, "evidence"),
}
MIXTURE = "mixture"  # the parameter that is no setting of the form


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a sweep: its name, a function that builds it, and its value on a numeric axis."""

    name: str
    pipeline: Callable[[], Pipeline]
    value: float | None = None


@dataclass(frozen=True, slots=True)
class VariantResult:
    """Result and scores of a variant on one benchmark; `against` compares each headline with the baseline variant."""

    variant: Variant
    result: Result
    table: pa.Table
    against: Mapping[str, Difference] = field(default_factory=dict)

    def side(self, label: str) -> Side:
        """Return one metric as a side of a comparison."""
        return Side(self.result, self.result.metric(label), self.table)

    def scores(self, label: str) -> npt.NDArray[np.float64]:
        """Return the scores (items, candidates) of a metric."""
        scores = score_matrix(self.table, label)
        assert scores is not None, "the scores of a result contain all its metrics"
        return scores

    def about(self, label: str, **extra: Any) -> dict[str, Any]:
        """Return the signature of a metric and the facts of the result, with additional facts, as fields of `Table`."""
        return {"signature": self.result.metric(label).signature, "facts": facts(self.result) | extra}


def sweep(
    study: Study, *, parameter: str, values: str = "", benchmark: Sequence[str] = PAIRS, metric: Sequence[str] = ()
) -> list[Table]:
    """Vary one parameter, e.g. `values="10 20 40"`; the value in use is the baseline.

    `mixture` are the distributions of the paper: vMF with fixed and adaptive kappa, and Gaussians.
    """
    if parameter == MIXTURE:
        return _mixtures(study, benchmark, metric or ("msd", "bi-kl", "coverage", "support"))
    chosen, tables = PARAMETERS[parameter], []
    pipeline = study.pipeline(chosen.form)
    if not hasattr(pipeline.form, chosen.setting):
        raise ConfigError(
            f"form {type(pipeline.form).__name__.lower()} has no {chosen.setting}; use --form {chosen.form}"
        )
    for name in benchmark:
        form = study.form(pipeline, name)
        form = form.changed(gate="fixed") if parameter == "beta" else form
        variants, current = value_variants(parameter, values, pipeline.encoder, form, pipeline.bank)
        plan = study.plan(name, metric or ("cosine", "msd", "soft-msd"))
        results = run_sweep(study, plan, variants, baseline=current)
        tables.append(sweep_table(results, axis=chosen.axis, baseline=current, logarithmic=chosen.logarithmic))
    return tables


def _mixtures(study: Study, benchmark: Sequence[str], metric: Sequence[str]) -> list[Table]:
    """Compare distributions of the local vectors by the accuracy per subtask.

    Their divergences differ by a factor of up to a thousand, so a common alpha is not a fair weight. In a second
    table, alpha is chosen so that alpha d has the same standard deviation over captions as in the first distribution.
    """
    pipeline = study.pipeline(PAPER_FORM)
    alpha = paper_form(pipeline).alpha
    choices: dict[str, dict[str, Any]] = {name: {"mixture": kind} for name, kind in MIXTURES.items()}
    plans = [study.plan(name, list(dict.fromkeys((*metric, DIVERGENCE)))) for name in benchmark]
    tables = []
    for name, title in (("same_alpha", "the same alpha"), ("equal_weight", "equal weight of the divergences")):
        sweeps = [
            run_sweep(
                study,
                plan,
                named_variants(choices, pipeline.encoder, with_mixture(study.form(pipeline, plan.name), "vmf")),
                under=name.replace("_", "-"),
            )
            for plan in plans
        ]
        tables += [sweep_table(results, axis="distribution", name=name, title=title) for results in sweeps]
        # Choose alpha so that alpha d has the standard deviation of the first distribution.
        spreads = {row.variant.name: float(np.nanstd(row.scores(DIVERGENCE))) for row in sweeps[0]}
        weight = alpha * next(iter(spreads.values()))
        choices = {name: {**changes, "alpha": weight / spreads[name]} for name, changes in choices.items()}
    return tables


def value_variants(
    parameter: str, values: str, encoder: Encoder, form: Form, bank: NamedBank | None = None
) -> tuple[list[Variant], str]:
    """Return one variant per value, and the name of the current value, which is added if necessary."""
    setting = PARAMETERS[parameter].setting
    current = getattr(form, setting)
    selected = [_read(type(current), text, parameter) for text in values.split()] or list(PARAMETERS[parameter].values)
    selected = selected if current in selected else sorted([*selected, current])
    choices = {_variant_name(parameter, value): {setting: value} for value in selected}
    variants = named_variants(choices, encoder, form, bank)
    axis_values = [None if isinstance(value, tuple) else float(value) for value in selected]
    return [
        replace(variant, value=axis_value) for variant, axis_value in zip(variants, axis_values, strict=True)
    ], _variant_name(parameter, current)


def named_variants(
    choices: Mapping[str, Mapping[str, Any]], encoder: Encoder, form: Form, bank: NamedBank | None = None
) -> list[Variant]:
    """Return one variant per named change of the settings, with a loaded encoder."""
    forms = {name: form.changed(**changes) for name, changes in choices.items()}
    return [Variant(name, partial(Pipeline, encoder, changed, bank=bank)) for name, changed in forms.items()]


def run_sweep(
    study: Study, plan: BenchmarkPlan, variants: Sequence[Variant], *, under: str = "", baseline: str = ""
) -> list[VariantResult]:
    """Run a plan once per variant, and compare the variants with `baseline`, by default the first.

    A finished variant is not run again, and a stopped one resumes; with `overwrite`, all are run again.
    """
    names = [variant.name for variant in variants]
    base = baseline or names[0]
    if base not in names or len(set(names)) < len(names):
        raise ConfigError(f"expected distinct variants that include {base}, got {', '.join(names)}")
    rows: list[VariantResult] = []
    options = "".join(f"-{slug(str(value))}" for _, value in sorted(plan.options.items()))
    with study.runs() as folder, study.progress(plan.name) as show:
        for index, choice in enumerate(variants):
            output = folder / under / slug(choice.name) / f"{plan.name}{options}.json"

            def report(done: int, total: int, index: int = index) -> None:
                show(index * total + done, len(variants) * total)

            result = run_benchmark(plan, output, choice.pipeline, overwrite=study.overwrite, progress=report)
            if not any(metric.figures for metric in result.metrics):
                detail = f": {result.failures[0]}" if result.failures else ""
                raise InputError(f"{plan.name}: none of the {result.items} items could be scored{detail}")
            rows.append(VariantResult(choice, result, pq.read_table(output.with_name(result.scores))))
    differences = {label: _differences(rows, rows[names.index(base)], label, plan.seed) for label in plan.metrics}
    return [
        replace(
            row, against={label: by_variant[name] for label, by_variant in differences.items() if name in by_variant}
        )
        for name, row in zip(names, rows, strict=True)
    ]


def run_once(study: Study, plan: BenchmarkPlan, pipeline: Pipeline) -> VariantResult:
    """Run a plan with the settings of a pipeline."""
    return run_sweep(study, plan, [Variant("settings", lambda: pipeline)])[0]


def slug(name: str) -> str:
    """Convert a name to a valid folder name.

    >>> slug("K = (3, 2)")
    'k-3-2'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "variant"


def sweep_table(
    results: Sequence[VariantResult],
    *,
    axis: str,
    baseline: str = "",
    name: str = "",
    title: str = "",
    logarithmic: bool = False,
) -> Table:
    """Return one row per metric and variant: all figures, the headline with wrong images, and the paired difference."""
    first, baseline = results[0].result, baseline or results[0].variant.name
    figures = first.metrics[0].figures
    headline = figures[0]
    columns = [
        Column("metric"),
        Column("variant", axis),
        *(Column(figure.name, "", ".1f" if figure.scale > 1 else ".2f", figure.scale, figure is headline)
          for figure in figures),
        *([Column("wrong image", "", ".1f", headline.scale)] if first.metrics[0].control else []),
        *([Column("difference", f"difference from {baseline}", "+.1f", headline.scale),
           Column("p", "", "p")]
          if len(results) > 1 else []),
    ]  # fmt: skip
    numeric = all(row.variant.value is not None for row in results)
    plot = Plot(
        x="value" if numeric else "variant", y=[headline.name], series="metric", x_label=axis, y_label=headline.name,
        title=": ".join(filter(None, (first.title, title))), logarithmic=logarithmic and numeric,
        level=chance(headline),
    )  # fmt: skip
    labels = [metric.label for metric in first.metrics]
    signed_metric = next((label for label in labels if label != "cosine"), labels[0])
    notes = dict.fromkeys(f"{note}: {count}" for row in results for note, count in row.result.notes.items())
    signatures = [f"{row.variant.name}: `{row.result.metric(signed_metric).signature}`" for row in results]
    return Table(
        name=name or first.benchmark,
        title=f"{plot.title}: {axis} ({first.counted} items, {first.images} images)",
        columns=columns,
        rows=list(_rows(results)),
        notes=[*notes, *signatures],
        facts=facts(first) | {"axis": axis, "baseline": baseline, "headline": headline.name},
        plots=[plot],
    )


def facts(result: Result) -> dict[str, Any]:
    """Return the benchmark, protocol, counts and versions of a result."""
    names = ("benchmark", "protocol", "items", "counted", "images", "limit")
    return {name: getattr(result, name) for name in names} | {
        "options": dict(result.options), "versions": dict(result.versions),
    }  # fmt: skip


def chance(figure: Figure) -> float | None:
    """Return the chance level of a figure: 50 for accuracies of pairs, else None."""
    return 50.0 if figure.name.startswith("accuracy") else None


def interval_of(figure: Figure) -> Interval:
    """Return the interval of a figure, with NaN limits if it has none."""
    nan = float("nan")
    return figure.interval or Interval(figure.value, nan, nan, 0.95, "none", figure.n, 0)


def _rows(results: Sequence[VariantResult]) -> Iterator[Row]:
    for label in [metric.label for metric in results[0].result.metrics]:
        for row in results:
            metric, test = row.result.metric(label), row.against.get(label)
            wrong = {figure.name: figure.value for figure in metric.control}
            yield {
                "metric": label,
                "variant": row.variant.name,
                "value": row.variant.value,
                "encoder": row.result.encoder,
                **{figure.name: interval_of(figure) for figure in metric.figures},
                "wrong image": wrong.get(metric.figures[0].name) if metric.figures else None,
                **{f"wrong image/{name}": value for name, value in wrong.items()},
                "difference": None if test is None else test.interval,
                "p": None if test is None else test.p_value,
                "signature": metric.signature,
            }


def _differences(rows: Sequence[VariantResult], base: VariantResult, label: str, seed: int) -> dict[str, Difference]:
    """Compare the headline of every variant with the baseline; p-values and intervals hold for all variants."""
    others = [row for row in rows if row is not base and row.result.metric(label).figures]
    compared = compare_sides([(row.side(label), base.side(label)) for row in others], seed=seed) if others else []
    return {row.variant.name: found.differences[0] for row, found in zip(others, compared, strict=True)}


def _variant_name(parameter: str, value: Any) -> str:
    return f"{parameter}={','.join(map(str, value)) if isinstance(value, tuple) else f'{value:g}'}"


def _read(kind: type, text: str, name: str) -> Any:
    """Parse a value of a setting."""
    try:
        if kind is not tuple:
            return kind(text)
        image, caption = map(int, text.split(","))
    except ValueError:
        expected = "two numbers (image, text)" if kind is tuple else "a number"
        raise ConfigError(f"expected {name} as {expected}, got {text!r}") from None
    return image, caption
