"""Comparison of encoders on benchmarks: gains of the score over a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.align.export import export
from msdscore_lab.align.recipe import Recipe, load_recipe
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import RunReport, train
from msdscore_lab.benchmarks.results.compare import compare_sides
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan, pipeline_for
from msdscore_lab.pairs import DataSource
from msdscore_lab.studies.ablations.sweep import (
    PAIRS,
    Variant,
    VariantResult,
    chance,
    interval_of,
    run_sweep,
    slug,
    sweep_table,
)
from msdscore_lab.studies.context import PAPER_FORM, Study
from msdscore_lab.studies.table import Column, Plot, Table, Value

BASELINE = "cosine"
BACKBONE_METRICS = (BASELINE, "coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg")
TRANSFER_METRICS = (BASELINE, "msd", "soft-msd")
PLAIN, WITHOUT, WITH = "plain", "without reconstruction", "with reconstruction"


def backbones(study: Study, *, also: Sequence[str] = (), benchmark: Sequence[str] = PAIRS) -> list[Table]:
    """Every part of the score with several encoders, per subtask, and its gain over the cosine."""
    plans = {name: study.plan(name, BACKBONE_METRICS) for name in benchmark}
    return compare_encoders(study, plans, _titled(study.spec.encoder, *also))


def _titled(*encoders: str) -> dict[str, str]:
    """Return encoders by a short title: the name of a folder, unless two have the same.

    >>> _titled("clip-l14", "/models/siglip")
    {'clip-l14': 'clip-l14', 'siglip': '/models/siglip'}
    """
    titles = {Path(name).name: name for name in encoders}
    return titles if len(titles) == len(encoders) else {name: name for name in encoders}


def reconstruction(
    study: Study,
    *,
    data: Sequence[str] = (),
    images: Sequence[str] = (),
    recipe: str = "paper",
    recipe_set: Sequence[str] = (),
    benchmark: Sequence[str] = PAIRS,
) -> list[Table]:
    """Train the aligner with and without reconstruction; score benchmarks with both, and with the plain encoder."""
    if not data:
        raise ConfigError("reconstruction trains two aligners and needs captioned images: add --data ROWS.jsonl")
    plans = {name: study.plan(name, (*TRANSFER_METRICS, "clipscore")) for name in benchmark}
    with study.runs() as folder:
        source, base_recipe = DataSource(tuple(data), tuple(images)), load_recipe(Recipe, recipe, changes=recipe_set)
        trained = train_both(study, base_recipe, source, folder)
        encoders = {PLAIN: study.spec.encoder, **{name: str(encoder) for name, (encoder, _) in trained.items()}}
        summary, *tables = compare_encoders(study, plans, encoders)
    reports = {name: asdict(report) for name, (_, report) in trained.items()}
    return [replace(summary, facts={**summary.facts, "training": reports}), *tables]


def train_both(study: Study, recipe: Recipe, data: DataSource, folder: Path) -> dict[str, tuple[Path, RunReport]]:
    """Train and export both aligners with the same data, seed and steps; return encoder folders and reports by name.

    An interrupted run resumes; a finished one is only exported again.
    """
    if not recipe.loss.reconstruction:
        raise ConfigError("the recipe has no reconstruction; set loss.reconstruction=1 and lm.source")
    trained = {}
    ablated = replace(recipe, loss=replace(recipe.loss, reconstruction=0.0))
    for name, variant in ((WITH, recipe), (WITHOUT, ablated)):
        run, encoder = folder / "training" / slug(name), folder / "encoders" / slug(name)
        with study.progress(f"training {name}") as show:
            options = TrainOptions(
                device=study.spec.device, resume=True,
                on_event=lambda event, show=show: show(event.done, event.of),  # type: ignore[misc]
            )  # fmt: skip
            report = train(variant, data, run, options=options)
        trained[name] = export(run, encoder, dtype="float32", overwrite=True), report
    return trained


def compare_encoders(study: Study, plans: Mapping[str, BenchmarkPlan], encoders: Mapping[str, str]) -> list[Table]:
    """Return headlines and gains over the first metric of every encoder on every set, then all figures of each set."""
    sweeps = {
        dataset: run_sweep(
            study,
            plan,
            [Variant(title, partial(_pipeline, study, name, plan.name)) for title, name in encoders.items()],
        )
        for dataset, plan in plans.items()
    }
    labels = next(iter(plans.values())).metrics
    baseline = labels[0]
    rows = [row for dataset, results in sweeps.items() for row in _gains(dataset, results, plans[dataset])]
    headline = next(iter(sweeps.values()))[0].result.metrics[0].figures[0]
    number_format = ".1f" if headline.scale > 1 else ".2f"
    columns = [
        Column("dataset"),
        Column("encoder"),
        *(Column(label, "", number_format, headline.scale, False) for label in labels),
    ]
    for label in ("msd", "soft-msd"):
        columns += [Column(f"{label} − {baseline}", "", f"+{number_format}", headline.scale),
                    Column(f"{label} − {baseline}, p", "p", "p")]  # fmt: skip
    plot = Plot(x="encoder", y=labels, panel=["dataset"], y_label=headline.name, level=chance(headline))
    summary = Table(name="encoders", title=f"{headline.name}, by encoder", columns=columns, rows=rows, plots=[plot])
    figures = [
        replace(sweep_table(results, axis="encoder", title=dataset), plots=[]) for dataset, results in sweeps.items()
    ]
    return [summary, *figures]


def _pipeline(study: Study, encoder: str, benchmark: str) -> Pipeline:
    pipeline = study.pipeline(PAPER_FORM, encoder)
    study.form(pipeline, benchmark)  # reports a change of components
    return pipeline_for(benchmark, pipeline, study.spec)


def _gains(dataset: str, results: Sequence[VariantResult], plan: BenchmarkPlan) -> list[dict[str, Value]]:
    """Compare every metric of every encoder with the first one; p-values and intervals hold for all of them."""
    baseline, *labels = plan.metrics
    pairs = [(row.side(label), row.side(baseline)) for row in results for label in labels]
    gains = iter(compare_sides(pairs, seed=plan.seed))
    rows: list[dict[str, Value]] = []
    for row in results:
        values: dict[str, Value] = {"dataset": dataset, "encoder": row.variant.name, "signature": row.result.encoder}
        values |= {metric.label: interval_of(metric.figures[0]) for metric in row.result.metrics}
        for label in labels:
            gain = next(gains).differences[0]
            values |= {f"{label} − {baseline}": gain.interval, f"{label} − {baseline}, p": gain.p_value}
        rows.append(values)
    return rows
