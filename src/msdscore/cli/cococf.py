"""`msdscore cococf`: counterfactual captions from annotated images, and a report on what text alone gives away."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, print_json

if TYPE_CHECKING:
    from msdscore.lab.cococf.quality import Quality

cococf = typer.Typer(no_args_is_help=True, help="Build and check COCO-CF, a benchmark of captions with one change.")

Reader = Annotated[
    str,
    typer.Option(
        help="Causal language model that must not tell the captions apart: folder, hub name, or package:NAME/FILE.gguf."
    ),
]


@cococf.command()
def build(
    captions: Annotated[
        list[str],
        typer.Argument(
            help="captions_*.json of COCO, rows (.jsonl), or a map from file names; NAME=FILE names a source."
        ),
    ],
    objects: Annotated[
        Path | None,
        typer.Option("--objects", help="instances_*.json, rows with objects, or a folder of YOLO files."),
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="Names of the numbered classes, one line each.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of both splits and report.")] = Path("coco_cf"),
    pairs: Annotated[int, typer.Option(min=1, help="Pairs per split at most, shared out among the changes.")] = 5000,
    limit: Annotated[int | None, typer.Option(min=1, help="Look at so many images at most.")] = None,
    subset: Annotated[
        list[str] | None, typer.Option("--subset", help="Only this change, e.g. replace_obj. Repeatable.")
    ] = None,
    add: Annotated[
        str, typer.Option(help="matched: a false addition against a true one; plain: against none, so always longer.")
    ] = "matched",
    reader: Reader = "",
    seed: Annotated[int, typer.Option(help="Of the images and the changes.")] = 0,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Make pairs of captions that differ by one change of one type, in an easy and a hard split.

    Writes coco_cf_easy.json and coco_cf_hard.json in the authors' schema, with the change and its characters, and
    quality.json and quality.md: how far one gets without the image.
    """
    from msdscore.lab.cococf.build import BuildSettings
    from msdscore.lab.cococf.changes import MAKERS
    from msdscore.lab.cococf.files import publish

    wanted = tuple(subset) if subset else tuple(MAKERS)
    settings = BuildSettings(pairs=pairs, pictures=limit, seed=seed, subsets=wanted, add=add, reader=reader)
    with bar("counterfactuals") as show:
        quality = publish(captions, objects, classes, output, settings, overwrite=overwrite, progress=show)
    _show(quality, as_json=json)


@cococf.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Files of the schema, or the folder of both splits.")],
    reader: Reader = "",
    json: options.Json = False,
) -> None:
    """Report on any COCO-CF file: what readers without the image find, and faults of the text."""
    from msdscore.lab.cococf.files import read_written
    from msdscore.lab.cococf.quality import judge_quality, read_likelihoods

    pairs = read_written(files)
    with bar("captions") as show:
        texts = [text for pair in pairs for text in (pair.positive, pair.negative)]
        known = read_likelihoods(texts, reader, progress=show) if reader else None
    _show(judge_quality(pairs, known=known), as_json=json)


def _show(quality: "Quality", *, as_json: bool) -> None:
    from msdscore.lab.cococf.quality import section

    if as_json:
        print_json(quality.to_dict())
    else:
        typer.echo(section(quality))
    for line in quality.leaning:
        typer.echo(f"warning: text alone gives a part of the set away: {line}; chance is 50", err=True)
