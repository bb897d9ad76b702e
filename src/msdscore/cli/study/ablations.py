"""Studies of settings and encoders on benchmarks: what each choice of the paper is worth."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli.options import setting as read_setting
from msdscore.cli.study.common import StudyOptions, shown

if TYPE_CHECKING:
    from msdscore.encoders.base import Encoder
    from msdscore.scoring.config import MSDConfig
    from msdscore.studies.ablations.sweep import Sweep, Variant
    from msdscore.studies.outcome import Chart, Outcome

PAPER = "short"  # the preset of the paper's settings, where none is asked for
SWEPT = ["cosine", "msd", "soft-msd"]
Benchmarks = Annotated[
    list[str],
    typer.Option("--benchmark", "-b", help="Benchmarks of the folder; see `msdscore benchmarks`. Repeatable."),
]
Metrics = Annotated[list[str], typer.Option("--metric", "-m", help="The first is shown in full. Repeatable.")]
Samples = Annotated[int, typer.Option(min=1, help="Resamples behind an interval.")]
Control = Annotated[bool, typer.Option("--control/--no-control", help="Score with wrong pictures too.")]
Values = Annotated[str, typer.Option(help="Values to try, separated by spaces, e.g. '10 20 40' or '3,2 5,3'.")]
PAIRS = ["sugarcrepe"]


def mixtures(
    asked: StudyOptions,
    benchmark: Benchmarks = PAIRS,
    metric: Metrics = ["msd", "bi-kl", "coverage", "support"],  # noqa: B006
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Distributions of the local vectors: vMF with fixed and adaptive kappa, Gaussians; accuracy per subtask.

    Their divergences differ in size a thousandfold, so that one alpha is no fair weight: a second table has alpha such
    that alpha d varies as much over the captions as it does with the first distribution.
    """
    from msdscore.studies.ablations.settings import MIXTURES, equal_weights, named_variants
    from msdscore.studies.outcome import Outcome

    encoder, config = _loaded(asked)
    choices: dict[str, dict[str, Any]] = {name: {"mixture": kind} for name, kind in MIXTURES.items()}
    metrics = tuple(dict.fromkeys((*metric, "bi-kl")))
    how: dict[str, Any] = {"axis": "distribution", "metrics": metrics, "control": control, "samples": samples}
    with runs_folder(asked) as folder:
        plain = run_sweeps(asked, folder / "same-alpha", benchmark, named_variants(choices, encoder, config), **how)
        fair = equal_weights(plain[0], choices, config.alpha)
        equal = run_sweeps(asked, folder / "equal-weight", benchmark, named_variants(fair, encoder, config), **how)
    same, fairer = "the same alpha", "equal weight (alpha d varies as much as with the first)"
    first, second = _outcome("mixtures", plain, [metric[0]]), _outcome("mixtures", equal, [metric[0]])
    return Outcome(
        "mixtures",
        {"same_alpha": first.numbers, "equal_weight": second.numbers},
        f"## {same}\n\n{first.text}\n## {fairer}\n\n{second.text}",
        (*_titled(first, same), *_titled(second, fairer)),
    )


def ablation(name: str, about: str) -> "Callable[..., Outcome]":
    """The study of one setting: a command of its name, and what it says of itself."""

    def study(
        asked: StudyOptions, values: Values = "", benchmark: Benchmarks = PAIRS, metric: Metrics = SWEPT,
        control: Control = True, samples: Samples = 1000,
    ) -> "Outcome":  # fmt: skip
        from msdscore.studies.ablations.settings import ABLATIONS, value_variants

        encoder, config = _loaded(asked)
        given = [read_setting(f"{name}={value}")[1] for value in values.split()]
        one = ABLATIONS[name]
        variants, own = value_variants(one, given, encoder, config)
        how: dict[str, Any] = {"axis": one.axis, "metrics": metric, "control": control, "samples": samples}
        with runs_folder(asked) as folder:
            sweeps = run_sweeps(asked, folder, benchmark, variants, baseline=own, **how)
        full = next((label for label in metric if label != "cosine"), metric[0])
        return _outcome(name, sweeps, [full], logarithmic=one.logarithmic)

    study.__name__, study.__doc__ = name, about
    return study


kappa = ablation("kappa", "The concentration of the mixtures.")
alpha = ablation("alpha", "The weight of the local divergence against the similarity.")
components = ablation("components", "The number of components of the picture's and of the caption's mixture.")
iterations = ablation("iterations", "The iterations of EM.")


def direction(
    asked: StudyOptions,
    benchmark: Benchmarks = ["sugarcrepe", "long-captions"],  # noqa: B006
    buckets: Annotated[int, typer.Option(min=1, help="Quantiles of the caption length.")] = 6,
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Coverage, support, a fixed weight or the length gate; and each direction by caption length."""
    from msdscore.studies.ablations import direction as study
    from msdscore.studies.ablations.decided import decided_pairs, joined
    from msdscore.studies.ablations.settings import GATES, named_variants
    from msdscore.studies.outcome import Outcome

    encoder, config = _loaded(asked)
    with runs_folder(asked) as folder:
        sweeps = run_sweeps(
            asked, folder, benchmark, named_variants(GATES, encoder, config), axis="direction",
            metrics=("soft-msd", *(label for label in study.METRICS if label != "soft-msd")),
            control=control, samples=samples,
        )  # fmt: skip
        gated = [sweep.rows[0] for sweep in sweeps]
        parts = [decided_pairs(row.result, row.folder, study.METRICS) for row in gated]
    found = study.length_buckets(joined(parts), count=buckets)
    shown_in_full = _outcome("direction", sweeps, ["soft-msd"])
    return Outcome(
        "direction",
        {**shown_in_full.numbers, "by_length": study.to_dict(found)},
        f"{shown_in_full.text}\n{study.section(found, benchmark)}",
        (*shown_in_full.charts, *study.charts(found)),
    )


def margin(
    asked: StudyOptions,
    benchmark: Benchmarks = PAIRS,
    bins: Annotated[int, typer.Option(min=1, help="Quantiles of the cosine margin.")] = 5,
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Gains by how far apart the similarities lie; Soft-MSD against MSD, cosine and RankAgg."""
    from msdscore.stats.resample import Resampling
    from msdscore.studies.ablations import margin as study
    from msdscore.studies.ablations.decided import decided_pairs
    from msdscore.studies.ablations.settings import variant
    from msdscore.studies.outcome import Outcome

    encoder, config = _loaded(asked)
    parts: list[tuple[dict[str, Any], str, Any]] = []
    with runs_folder(asked) as folder:
        one = [variant("settings", encoder, config)]
        for sweep in run_sweeps(
            asked, folder, benchmark, one, axis="settings", metrics=study.METRICS, control=control, samples=samples
        ):
            row = sweep.rows[0]
            pairs = decided_pairs(row.result, row.folder, study.METRICS)
            found = study.margin_bins(pairs, temperature=config.temperature, count=bins)
            gains = study.gains(pairs, how=Resampling(samples=samples, seed=asked.seed))
            text = study.section(sweep.title, found, gains) + f"\n`{row.result.metric('soft-msd').signature}`\n"
            numbers = study.to_dict(found, gains) | sweep.to_dict()
            parts.append((numbers, text, study.charts(sweep.title, found)))
    charts = tuple(chart for _, _, some in parts for chart in some)
    return Outcome("margin", {"benchmarks": [n for n, _, _ in parts]}, "\n".join(text for _, text, _ in parts), charts)


def _loaded(asked: StudyOptions) -> "tuple[Encoder, MSDConfig]":
    """An encoder that remembers, and the settings asked for, else the paper's."""
    pipeline = asked.pipeline(PAPER)
    return pipeline.encoder, pipeline.config


def _outcome(study: str, sweeps: "list[Sweep]", full: list[str], *, logarithmic: bool = False) -> "Outcome":
    from msdscore.studies.ablations import sweep as engine
    from msdscore.studies.outcome import Outcome

    charts = engine.charts(sweeps, sweeps[0].metrics, logarithmic=logarithmic)
    numbers = {"benchmarks": [sweep.to_dict() for sweep in sweeps]}
    return Outcome(study, numbers, engine.section(sweeps, full), charts)


def _titled(outcome: "Outcome", title: str) -> "list[Chart]":
    from dataclasses import replace

    return [replace(chart, title=f"{chart.title}: {title}") for chart in outcome.charts]


def run_sweeps(
    asked: StudyOptions,
    folder: Path,
    benchmarks: list[str],
    variants: "list[Variant]",
    *,
    axis: str,
    metrics: Any,
    control: bool,
    samples: int,
    baseline: str = "",
    **options: Any,
) -> "list[Sweep]":
    """All variants on every benchmark, with progress shown; `options` are those of the benchmarks' readers."""
    from msdscore.benchmarks.run.plan import BenchmarkPlan
    from msdscore.studies.ablations.sweep import run_sweep

    found = []
    for name in benchmarks:
        plan = BenchmarkPlan(
            name=name, root=asked.folder_of(name), metrics=tuple(metrics), limit=asked.limit, seed=asked.seed,
            samples=samples, control=control, options={**asked.reader_options, **options},
        )  # fmt: skip
        with shown(name) as show:
            found.append(
                run_sweep(
                    plan, variants, folder, axis=axis, baseline=baseline, overwrite=asked.overwrite, progress=show
                )
            )
    return found


@contextmanager
def runs_folder(asked: StudyOptions) -> Iterator[Path]:
    """Where the benchmark runs of a study lie: beside its output, or nowhere that lasts."""
    from tempfile import TemporaryDirectory

    if asked.output is not None:
        yield asked.output.with_name(f"{asked.output.stem}.runs")
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)
