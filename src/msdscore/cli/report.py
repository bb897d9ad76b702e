"""`msdscore report`: a page about a scored file; `rank-captioners`: which captioner describes the same images best?"""

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


def rank_captioners(
    files: Annotated[
        list[str],
        typer.Argument(help="Scored files, one per captioner (NAME=FILE names it), or one with a column system."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A page, .html; a .json goes beside it.")
    ] = None,
    people: Annotated[
        str | None, typer.Option(help="Column of the rows with people's ratings, to compare with.")
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Rank on the images that all captioners have.")] = False,
    images: options.Images = None,
    rows: options.Rows = None,
    show: Annotated[int, typer.Option(min=0, help="Wins to show per captioner.")] = 3,
    samples: options.Samples = 1000,
    seed: options.Seed = 0,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Captioners",
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Rank captioners on shared images by MSD, Soft-MSD and match, with intervals and significance.

    Soft-MSD takes the captions of all captioners of an image as one candidate set. Images are matched by their path in
    the rows; files with different signatures, or different images under one path, are an error.
    """
    from json import dumps

    from msdscore.cli.tables import grid_table
    from msdscore.intervals import Resampling
    from msdscore.io.outputs.targets import MARK, check_target, is_standard_output, put_all, with_images
    from msdscore.lab.captioners.ranking import duel_grid, overview_grid, page, rank, read_contest

    if output is not None:
        inputs = with_images([*files, rows], images)
        check_target(output, (".html", ".htm"), inputs=inputs, side=[output.with_suffix(".json")])
    contest = read_contest(files, shared=shared, people=people, images=images, rows=rows)
    ranking = rank(contest, people=people, how=Resampling(samples=samples, seed=seed))
    plain = dumps({"note": MARK, **ranking.to_dict()}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if output is not None:
        text = page(ranking, title=title, show=show, images=images, rows=rows)
        beside = {} if is_standard_output(output) else {output.with_suffix(".json"): plain.encode()}
        put_all({output: text.encode()}, side=beside, overwrite=overwrite)
        if not beside:
            return
    if json:
        typer.echo(plain, nl=False)
        return
    for grid in (overview_grid(ranking), *(duel_grid(metric) for metric in ranking.metrics if metric.duels)):
        grid_table(grid)
