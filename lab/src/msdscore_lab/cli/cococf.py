"""`msdscore cococf`: build counterfactual captions, and report how well the text alone predicts the true one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option, option_in
from msdscore.cli.progress import bar, print_json

if TYPE_CHECKING:
    from msdscore_lab.cococf.quality import Quality

cococf = typer.Typer(no_args_is_help=True, help="Build and check COCO-CF, a benchmark of counterfactual captions.")

PAIRS = "Pairs"
Reader = Annotated[
    str,
    option_in(
        PAIRS,
        help="Causal language model for the text-only check: folder, hub name, or package:NAME/FILE.gguf.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Annotated objects, and the changes to apply."""

    objects: Path | None = option(INPUT, None, help="instances_*.json, or rows with objects.")
    classes: Path | None = option(INPUT, None, help="Class names in the order of their ids, one per line.")
    limit: int | None = option(INPUT, None, min=1, help="Maximum number of images.")
    pairs: int = option(PAIRS, 5000, min=1, help="Maximum number of pairs per split, over all changes and captioners.")
    paper: bool = option(
        PAIRS,
        False,
        "--paper",
        help="As in the paper: one change per image, captioner and split, if possible; else only those that read well.",
    )
    subset: list[str] | None = option(PAIRS, None, help="Only this change, e.g. replace_obj. Repeatable.")
    seed: int = option(PAIRS, 0, min=0, help="Random seed for images and changes.")


@cococf.command()
def build(
    captions: Annotated[
        list[str],
        typer.Argument(
            help="COCO captions_*.json, rows (.jsonl) or a JSON object by file name; NAME=FILE names a source."
        ),
    ],
    changes: ChangeOptions,
    output: Path = option(OUTPUT, Path("coco_cf"), "--output", "-o", help="Folder for both splits and the report."),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Build caption pairs that differ by one change, in an easy and a hard split.

    Writes coco_cf_easy.json and coco_cf_hard.json in the authors' schema, with each change and its character span,
    and quality.json and quality.md with the accuracy that is reached without the image.
    """
    from msdscore_lab.cococf.build import BuildSettings
    from msdscore_lab.cococf.files import build_files

    passed: dict[str, Any] = {"images": changes.limit, "subsets": tuple(changes.subset) if changes.subset else None}
    make = BuildSettings.paper if changes.paper else BuildSettings
    settings = make(
        pairs=changes.pairs, seed=changes.seed,
        **{name: value for name, value in passed.items() if value is not None},
    )  # fmt: skip
    with bar("counterfactuals") as show:
        quality = build_files(
            captions, changes.objects, changes.classes, output, settings, overwrite=overwrite, progress=show
        )
    _show(quality, as_json=json)


@cococf.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="COCO-CF files, or the folder with both splits.")],
    reader: Reader = "",
    json: options.Json = False,
) -> None:
    """Check COCO-CF files: the accuracy without the image."""
    from msdscore_lab.cococf.files import read_cococf
    from msdscore_lab.cococf.quality import judge_quality, read_likelihoods

    pairs = read_cococf(files)
    with bar("captions") as show:
        texts = [text for pair in pairs for text in (pair.positive, pair.negative)]
        known = read_likelihoods(texts, reader, progress=show) if reader else None
    _show(judge_quality(pairs, known=known), as_json=json)


def _show(quality: "Quality", *, as_json: bool) -> None:
    from msdscore_lab.cococf.quality import section

    if as_json:
        print_json(quality.to_dict())
    else:
        typer.echo(section(quality))
    for line in quality.leaning:
        typer.echo(f"warning: the text alone is predictive: {line}; chance is 50", err=True)
