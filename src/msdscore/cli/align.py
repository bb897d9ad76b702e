"""`msdscore align`: train, evaluate and export a local aligner."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import events, print_json

if TYPE_CHECKING:
    from msdscore.lab.align.data.formats import DataSource

align = typer.Typer(no_args_is_help=True, help="Train light heads on frozen backbones into one local space.")

Data = Annotated[list[str], typer.Option("--data", help="Captioned images: chat.json, COCO, JSONL, Parquet or tar.")]
Images = Annotated[list[str], typer.Option("--images", help="Folder or Parquet of the images. Repeatable.")]
Format = Annotated[str | None, typer.Option("--format", help="Format of the data, if the files do not tell.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run.")]


@align.command()
def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    data: Data,
    recipe: Annotated[str, typer.Option(help="Name of a recipe (paper, mini) or a TOML file.")] = "paper",
    images: Images = [],
    data_format: Format = None,
    val: Annotated[list[str], typer.Option("--val", help="Validation data, for early stopping.")] = [],
    val_images: Annotated[list[str], typer.Option(help="Its images.")] = [],
    change: Annotated[list[str], typer.Option("--set", help="Change a setting, e.g. train.steps=100.")] = [],
    no_reconstruction: Annotated[bool, typer.Option("--no-reconstruction", help="The paper's ablation.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    cache: Annotated[str, typer.Option(help="Folder of cached frozen features.")] = "",
    logger: Annotated[list[str], typer.Option(help="tensorboard or wandb. Repeatable.")] = [],
    workers: Annotated[int, typer.Option(min=1, help="Threads that read images.")] = 4,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train an aligner; several GPUs through torchrun, a killed run goes on with --resume."""
    from importlib import import_module
    from importlib.util import find_spec

    from msdscore.cli.tables import fields_table
    from msdscore.io.outputs.targets import check_folder
    from msdscore.lab.align.recipe import load_recipe
    from msdscore.lab.align.run.session import TrainOptions
    from msdscore.lab.align.run.train import train as run_training

    check_folder(output)
    chosen = load_recipe(recipe, changes=change, no_reconstruction=no_reconstruction)
    validation = _source(val, val_images, None) if val else None
    with events() as show:
        how = TrainOptions(
            device=device, resume=resume, workers=workers, cache=cache, loggers=tuple(logger), on_event=show
        )
        # Resident recipes have a trainer of their own, `tools/train_mini` of the repository, where it is on the path.
        if chosen.train.resident and find_spec("train_mini"):
            run_training = import_module("train_mini.trainer").train
        report = run_training(chosen, _source(data, images, data_format), output, val=validation, options=how)
    (print_json if json else fields_table)(asdict(report))


@align.command("eval")
def evaluate(
    run: RunFolder,
    data: Data,
    images: Images = [],
    data_format: Format = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Measure the retrieval of a run, by pooled vectors and by local similarity."""
    from msdscore.cli.tables import rows_table
    from msdscore.lab.align.evaluate import evaluate as measure

    result = measure(run, _source(data, images, data_format), device=device)
    if json:
        print_json(asdict(result))
        return
    rows, cosine = result.rows(), result.cosine
    rows_table(rows, tuple(rows[0]))
    unreadable = f", {cosine.unreadable} unreadable" if cosine.unreadable else ""
    typer.echo(f"step {result.step}: {cosine.images} images, {cosine.captions} captions{unreadable}")


@align.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="Folder of the encoder to write.")],
    dtype: Annotated[str, typer.Option(help="int8, float16 or float32.")] = "float16",
    background: Annotated[
        Path | None,
        typer.Option(help="Folder of background images: the encoder brings its own bank."),
    ] = None,
    limit: Annotated[int, typer.Option(min=2, help="How many background images at most.")] = 128,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run as an encoder that loads by its folder's name."""
    from msdscore.cli.bank import spread_over
    from msdscore.io.images import open_image
    from msdscore.io.outputs.targets import check_folder
    from msdscore.lab.align.export import export as write

    check_folder(folder)
    images = [] if background is None else [open_image(path) for path in spread_over(background, limit)]
    path = write(run, folder, dtype=dtype, background=images, overwrite=overwrite)
    typer.echo(f"{path}: load it with --encoder {folder}")


@align.command()
def join(
    folders: Annotated[list[Path], typer.Argument(help="Folders of exported encoders on the same backbones.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the encoder to write.")],
    dtype: Annotated[str, typer.Option(help="int8, float16 or float32.")] = "int8",
    overwrite: options.Overwrite = False,
) -> None:
    """Write several encoders as one, whose similarities are the means of theirs; make its bank with `msdscore bank`."""
    from msdscore.io.outputs.targets import check_folder
    from msdscore.lab.align.export import join as write

    check_folder(output)
    path = write(folders, output, dtype=dtype, overwrite=overwrite)
    typer.echo(f"{path}: load it with --encoder {output}")


def _source(rows: list[str], images: list[str], data_format: str | None) -> "DataSource":
    from msdscore.lab.align.data.formats import DataSource

    return DataSource(tuple(rows), tuple(images), data_format)
