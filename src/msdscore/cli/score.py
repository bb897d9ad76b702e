"""`msdscore score`: captions of one picture, or every row of a file."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.bank import PICTURES
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.io.outputs.run import Summary
    from msdscore.scorer import Scorer

SOME_FAILED, STOPPED = 3, 130


def score(
    source: Annotated[str, typer.Argument(help="A picture, or a file of rows; - is JSON lines on standard input.")],
    captions: Annotated[list[str] | None, typer.Argument(help="Captions of the picture: one candidate set.")] = None,
    images: options.Images = None,
    output: options.Output = None,
    input_format: Annotated[str | None, typer.Option("--format", help="Format, if the name does not tell.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away an output that is there.")] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006, typer copies it
    bank: options.BankFile = None,
    encoder_option: options.EncoderOption = [],  # noqa: B006
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    batch_size: options.BatchSize = 32,
    max_pixels: options.MaxPixels = None,
    json: options.Json = False,
) -> None:
    """Score captions of one picture, or every row of a file.

    A picture with captions prints a table. A file of rows (JSON lines, CSV, Parquet, COCO results, id-to-caption JSON,
    a saved dataset) is scored in parts that survive any crash; the same command goes on where it stopped.

    Exit codes: 0 all scored, 3 some rows failed and say why, 2 wrong usage.
    """
    import json as js
    from dataclasses import asdict

    scorer = options.make_scorer(
        encoder, preset, change, encoder_options=encoder_option, bank=bank, batch_size=batch_size,
        max_pixels=max_pixels, device=device, dtype=dtype, revision=revision,
    )  # fmt: skip
    if captions:
        score_picture(scorer, source, captions, as_json=json, output=output)
        return
    if Path(source).suffix.lower() in PICTURES:
        raise ConfigError(f"{source}: a picture is scored with its captions: msdscore score IMAGE CAPTION…")
    try:
        summary = score_file(scorer, source, images, output, input_format=input_format, overwrite=overwrite)
    except KeyboardInterrupt:
        typer.echo("stopped; finished parts are kept, and the same command goes on from there", err=True)
        raise typer.Exit(STOPPED) from None
    if json and output is not None:
        facts = {"output": str(output), **asdict(summary), "signature": scorer.signature}
        typer.echo(js.dumps(facts, ensure_ascii=False))
    raise typer.Exit(SOME_FAILED if summary.failed else 0)


def score_picture(scorer: "Scorer", image: str, captions: list[str], *, as_json: bool, output: Path | None) -> None:
    """Rank the captions of one picture and print or write them."""
    import json

    from msdscore.io.inputs.formats import known_inputs
    from msdscore.io.outputs.files import write_table

    if Path(image).suffix.lower().removeprefix(".") in known_inputs():
        raise ConfigError(f"{image} is a file of rows and takes no captions; give a picture, or leave the captions out")
    scores = scorer.rank(image, captions)
    if output is not None:
        write_table(scores.to_arrow(), output, metadata={"msdscore": scores.signature})
    if as_json:
        answer = {"image": image, "signature": scores.signature, "scores": scores.rows()}
        typer.echo(json.dumps(answer, ensure_ascii=False))
    elif output is None:
        typer.echo(str(scores))


def score_file(
    scorer: "Scorer",
    source: str,
    images: Path | None,
    output: Path | None,
    *,
    input_format: str | None,
    overwrite: bool,
) -> "Summary":
    """Score a file into the output, or as JSON lines to standard output."""
    from msdscore.cli.progress import bar
    from msdscore.engine.local import score_rows
    from msdscore.io.inputs.rows import open_rows

    with open_rows(source, images=images, format=input_format) as rows, TemporaryDirectory() as place:
        target = output or Path(place) / "scores.jsonl"
        with bar("scoring") as show:
            summary = score_rows(scorer.pipeline, rows, target, images=images, overwrite=overwrite, progress=show)
        if output is None:
            sys.stdout.write(target.read_text(encoding="utf-8"))
    where = f" -> {output}" if output else ""
    typer.echo(f"{summary.rows} rows, {summary.failed} failed{where}\n{scorer.signature}", err=True)
    return summary
