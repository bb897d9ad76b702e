"""`msdscore report`: one page about a scored file, to open from disk."""

from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import tell


def report(
    context: typer.Context,
    results: Annotated[Path, typer.Argument(help="A scored file: .parquet, .jsonl, .csv or .json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, an .html file.")] = Path("report.html"),
    overwrite: options.Overwrite = False,
    images: options.Images = None,
    rows: options.Rows = None,
    show: Annotated[int, typer.Option(min=0, help="Cards to show in each gallery of captions worth a look.")] = 24,
    title: Annotated[str | None, typer.Option(help="Title of the page; the file's name unless told.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            help="Encoder that scored the file: colours words and regions.",
            autocompletion=options.encoder_names,
        ),
    ] = None,
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
) -> None:
    """Make one self-contained page about a scored file: plots, worst captions, captioners, every row."""
    from msdscore.report.build import ReportOptions, build
    from msdscore.scorer import Scorer

    scorer = None if encoder is None else Scorer.from_spec(options.make_spec(context.params))
    chosen = ReportOptions(images=images, rows=rows, show=show, title=title, overwrite=overwrite)
    summary = build(results, output, chosen, scorer=scorer)
    if summary.unseen:
        first = "; ".join(list(dict.fromkeys(summary.unseen))[:3])
        tell(f"{len(summary.unseen)} cards have no image: {first}")
    tell(f"{summary.rows} rows, {summary.failed} failed, {summary.explained} explained -> {output}")
