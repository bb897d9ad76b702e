"""Studies that compare encoders: backbones, other domains, and aligners trained for the purpose."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli.study.ablations import PAIRS, PAPER, Benchmarks, Control, Samples, run_sweeps, runs_folder
from msdscore.cli.study.common import StudyOptions

if TYPE_CHECKING:
    from msdscore.scoring.pipeline import Pipeline
    from msdscore.studies.ablations.sweep import Variant
    from msdscore.studies.ablations.transfer import EncoderGains
    from msdscore.studies.outcome import Outcome

Also = Annotated[list[str], typer.Option("--also", help="Further encoders to compare. Repeatable.")]


def backbones(
    asked: StudyOptions,
    also: Also = [],  # noqa: B006, typer copies it
    benchmark: Benchmarks = PAIRS,
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Every part of the score with several encoders, per subtask, and what it gains over the cosine."""
    from msdscore.studies.ablations import transfer as study

    variants = _encoders(asked, [asked.encoder, *also])
    with runs_folder(asked) as folder:
        found: list[EncoderGains] = []
        for name in benchmark:
            found += _gains(
                asked, folder, name, variants, metrics=study.BACKBONE_METRICS, control=control, samples=samples
            )
    return _outcome("backbones", found)


def ood(
    asked: StudyOptions,
    also: Also = [],  # noqa: B006
    benchmark: Benchmarks = ["rsicd", "rocov2"],  # noqa: B006
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Own against other captions in domains that an encoder was not trained on; easy and hard negatives."""
    from msdscore.benchmarks.registry import reader_options
    from msdscore.errors import InputError
    from msdscore.studies.ablations import transfer as study
    from msdscore.studies.evidence import is_present

    there = [name for name in benchmark if is_present(name, asked.folder_of(name))]
    if not there:
        raise InputError(f"expected one of {', '.join(benchmark)} under {asked.root}, found none")
    variants = _encoders(asked, [asked.encoder, *also])
    with runs_folder(asked) as folder:
        found: list[EncoderGains] = []
        for name in there:
            hard = "negatives" in reader_options(name, asked.folder_of(name))
            for negatives in ("easy", "hard") if hard else ("easy",):
                options = {"negatives": negatives} if hard else {}
                found += _gains(
                    asked, folder, name, variants, title=f"{name}, {negatives} negatives",
                    metrics=study.TRANSFER_METRICS, control=control, samples=samples, **options,
                )  # fmt: skip
    return _outcome("ood", found)


def reconstruction(
    asked: StudyOptions,
    data: Annotated[
        list[str], typer.Option("--data", help="Captioned pictures to train on, as `align train` reads them.")
    ],
    images: Annotated[list[str], typer.Option("--images", help="Their pictures. Repeatable.")] = [],  # noqa: B006
    recipe: Annotated[str, typer.Option(help="Name of a recipe, or a TOML file.")] = "paper",
    recipe_set: Annotated[
        list[str], typer.Option("--recipe-set", help="Change of the recipe, e.g. train.steps=100.")
    ] = [],  # noqa: B006
    benchmark: Benchmarks = PAIRS,
    control: Control = True,
    samples: Samples = 1000,
) -> "Outcome":
    """Train the aligner with and without reconstruction, and score benchmarks with both."""
    from dataclasses import asdict, replace

    from msdscore.align.data.formats import DataSource
    from msdscore.align.recipe_file import load_recipe
    from msdscore.align.run.session import TrainOptions
    from msdscore.cli.progress import events, tell
    from msdscore.studies.ablations import reconstruction as study
    from msdscore.studies.ablations import transfer

    chosen = load_recipe(recipe, changes=recipe_set)
    with runs_folder(asked) as folder:
        with events() as show:
            how = TrainOptions(device=asked.device, cache=str(folder / "features"), on_event=show)
            source = DataSource(tuple(data), tuple(images))
            trained = study.train_both(chosen, source, folder, options=how, tell=tell)
        variants = _encoders(asked, {name: str(encoder) for name, (encoder, _) in trained.items()})
        found: list[EncoderGains] = []
        for name in benchmark:
            found += _gains(
                asked, folder, name, variants, metrics=transfer.TRANSFER_METRICS, control=control, samples=samples
            )
    outcome = _outcome("reconstruction", found)
    reports = {name: asdict(report) for name, (_, report) in trained.items()}
    return replace(outcome, numbers={**outcome.numbers, "training": reports})


def _encoders(asked: StudyOptions, names: list[str] | dict[str, str]) -> "list[Variant]":
    from msdscore.studies.ablations.sweep import Variant

    known = names if isinstance(names, dict) else {name: name for name in names}
    return [Variant(title, partial(_pipeline, asked, name)) for title, name in known.items()]


def _pipeline(asked: StudyOptions, encoder: str) -> "Pipeline":
    found = asked.spec(PAPER, encoder).build()
    found.encoder = asked.remembering(found.encoder)
    return found


def _gains(
    asked: StudyOptions, folder: Path, name: str, variants: "list[Variant]", *, title: str = "", **how: Any
) -> "list[EncoderGains]":
    from msdscore.stats.resample import Resampling
    from msdscore.studies.ablations import transfer as study

    (sweep,) = run_sweeps(asked, folder, [name], variants, axis="encoder", **how)
    return study.gains_of(title or sweep.title, sweep, how=Resampling(samples=how["samples"], seed=asked.seed))


def _outcome(name: str, found: "list[EncoderGains]") -> "Outcome":
    from msdscore.studies.ablations import transfer as study
    from msdscore.studies.outcome import Outcome

    return Outcome(name, {"results": study.to_dict(found)}, study.section(found), study.charts(found))
