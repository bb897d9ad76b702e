"""`msdscore report`: a page about a scored file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import OUTPUT, SCORING, option
from msdscore.cli.progress import tell

if TYPE_CHECKING:
    from msdscore.scorer import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportScorer(options.ScorerOptions):
    """Scorer of a report; without an encoder, captions are explained if the default one has scored the file."""

    encoder: str = option(
        SCORING,
        "",
        "--encoder",
        "-e",
        help="Encoder that scored the file, to explain words and regions; not needed for the default one.",
        autocompletion=options.encoder_names,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Output page and its images."""

    images: options.Images = None
    rows: options.Rows = None
    output: Path = option(OUTPUT, Path("report.html"), "--output", "-o", help="Output file (.html).")
    show: int = option(OUTPUT, 12, min=0, help="Number of captions in each gallery.")
    title: str | None = option(OUTPUT, None, help="Title of the page; default: the file's name.")
    overwrite: options.Overwrite = False


def report(
    results: Annotated[
        Path, typer.Argument(help="A scored file (.parquet, .jsonl, .csv, .json), or a folder of scored shards.")
    ],
    scorer: ReportScorer,
    page: PageOptions,
) -> None:
    """Write a self-contained HTML page about a scored file: plots, worst captions, captioners and all rows."""
    from msdscore.report.build import ReportOptions, build
    from msdscore.scorer import Scorer

    explaining = Scorer.from_spec(scorer.spec()) if scorer.encoder else None
    chosen = ReportOptions(
        images=page.images, rows=page.rows, show=page.show, title=page.title, overwrite=page.overwrite
    )
    summary = build(results, page.output, chosen, scorer=explaining, default=_default_scorer)
    if summary.unseen:
        first = "; ".join(list(dict.fromkeys(summary.unseen))[:3])
        tell(f"{len(summary.unseen)} cards have no image: {first}")
    tell(f"{summary.rows} rows, {summary.failed} failed, {summary.explained} explained -> {page.output}")


def _default_scorer(signature: str) -> "Scorer | None":
    """Return the default scorer if it has this signature and its weights are installed."""
    from msdscore.errors import MSDScoreError
    from msdscore.scorer import Scorer
    from msdscore.scoring.spec import DEFAULT_ENCODER

    if f"enc:{DEFAULT_ENCODER}@" not in signature:
        tell("words are not explained: pass --encoder with the encoder that scored the file")
        return None
    try:
        scorer = Scorer()
    except MSDScoreError as error:
        tell(f"words are not explained: {error}")
        return None
    if scorer.signature != signature:
        tell("words are not explained: the file was scored with other settings; pass them with --encoder")
        return None
    return scorer
