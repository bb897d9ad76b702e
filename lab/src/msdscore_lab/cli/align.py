"""`msdscore align`: train, evaluate and export a local aligner."""

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SPEED, option, option_in
from msdscore.cli.progress import display, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from msdscore_lab.align.recipe import Recipe
    from msdscore_lab.align.run.parts import Event
    from msdscore_lab.align.run.train import RunReport
    from msdscore_lab.pairs import DataSource

align = typer.Typer(no_args_is_help=True, help="Train light heads that map frozen backbones into one local space.")

TRAINING = "Training"
Output = Annotated[Path, option_in(OUTPUT, "--output", "-o", help="Folder for the run.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Captioned images."""

    data: list[str] = option(INPUT, ..., help="Captioned images: chat.json, COCO, JSONL, Parquet or tar. Repeatable.")
    images: list[str] = option(INPUT, [], help="Folder or Parquet of the images. Repeatable.")
    data_format: str | None = option(INPUT, None, "--format", help="Format of the data; default: by file name.")

    def source(self) -> "DataSource":
        """Return the captioned images as a data source."""
        from msdscore_lab.pairs import DataSource

        return DataSource(tuple(self.data), tuple(self.images), self.data_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Recipe of a training run, its validation data and its environment."""

    recipe: str = option(TRAINING, "paper", help="Name of a recipe (paper, paper-llama) or a TOML file.")
    change: list[str] = option(TRAINING, [], "--set", help="Change a setting, e.g. train.steps=100.")
    val: list[str] = option(INPUT, [], help="Validation data, for early stopping.")
    val_images: list[str] = option(INPUT, [], help="Images of the validation data.")
    resume: bool = option(OUTPUT, False, "--resume", help="Resume the run in the folder.")
    workers: int = option(SPEED, 4, min=1, help="Number of threads that load images.")
    device: options.Device = "auto"


@align.command()
def train(output: Output, pairs: PairOptions, training: TrainingOptions, json: options.Json = False) -> None:
    """Train an aligner on one device; --resume continues an interrupted run."""
    from msdscore_lab.align.recipe import Recipe
    from msdscore_lab.align.run.train import train as trainer

    run_training(trainer, Recipe, output, pairs, training, json=json)


def run_training(
    trainer: "Callable[..., RunReport]",
    kind: "type[Recipe]",
    output: Path,
    pairs: PairOptions,
    training: TrainingOptions,
    *,
    json: bool,
) -> None:
    """Load a recipe, train it and print the report."""
    from msdscore.cli.progress import fields_table
    from msdscore.io.targets import check_folder
    from msdscore_lab.align.recipe import load_recipe
    from msdscore_lab.align.run.parts import TrainOptions

    check_folder(output)
    recipe = load_recipe(kind, training.recipe, changes=training.change)
    validation = PairOptions(data=training.val, images=training.val_images).source() if training.val else None
    with _events() as show:
        how = TrainOptions(
            device=training.device, resume=training.resume, workers=training.workers, on_event=show
        )  # fmt: skip
        report = trainer(recipe, pairs.source(), output, val=validation, options=how)
    (print_json if json else fields_table)(asdict(report))


@contextmanager
def _events() -> "Iterator[Callable[[Event], None]]":
    """Yield a callback for the events of a training run that shows the step, the losses and the last evaluation."""
    with display() as progress:
        tasks: dict[str, Any] = {}

        def show(event: "Event") -> None:
            if event.kind not in tasks:
                tasks[event.kind] = progress.add_task(event.kind, text="")
            progress.update(tasks[event.kind], completed=event.done, total=event.of)
            if event.values:
                values = "  ".join(f"{name} {value:.4g}" for name, value in event.values.items())
                progress.update(tasks[event.kind], text=values)

        yield show


@align.command("eval")
def evaluate(run: RunFolder, pairs: PairOptions, device: options.Device = "auto", json: options.Json = False) -> None:
    """Evaluate the retrieval of a run with pooled vectors."""
    from msdscore.cli.progress import rows_table
    from msdscore_lab.align.evaluate import evaluate as measure

    result = measure(run, pairs.source(), device=device)
    if json:
        print_json(asdict(result))
        return
    rows = result.rows()
    rows_table(rows, tuple(rows[0]))
    unreadable = f", {result.unreadable} unreadable" if result.unreadable else ""
    typer.echo(f"step {result.step}: {result.images} images, {result.captions} captions{unreadable}")


@align.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="Folder for the encoder.")],
    dtype: str = option(OUTPUT, "float16", help="Data type of the weights: int8, float16 or float32."),
    overwrite: options.Overwrite = False,
) -> None:
    """Export a run as an encoder, which is loaded by the name of its folder."""
    from msdscore.io.targets import check_folder
    from msdscore_lab.align.export import export as write

    check_folder(folder)
    path = write(run, folder, dtype=dtype, overwrite=overwrite)
    typer.echo(f"{path}: load it with --encoder {folder}")
