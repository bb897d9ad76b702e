"""`msdscore rank-captioners`: a ranking of captioners."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option
from msdscore.cli.progress import tell
from msdscore_lab.cli import options as lab_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOptions:
    """Images, ratings and table of a ranking."""

    shared: bool = option(INPUT, False, "--shared", help="Use only the images that all captioners have.")
    people: str | None = option(INPUT, None, help="Column with human ratings to compare with.")
    images: options.Images = None
    rows: options.Rows = None
    samples: lab_options.Draws = None
    seed: lab_options.Seed = 0
    style: lab_options.TableStyle = ""
    columns: str = option(
        OUTPUT, "", help="Columns, e.g. msd,match,interval,rank,p,n; all: every number. Default: the first score."
    )


def rank_captioners(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files of captions or scores, one per captioner (NAME=FILE names it), or one with a column system."
        ),
    ],
    chosen: RankingOptions,
    scorer: options.ScorerOptions,
    batch: options.BatchOptions,
    output: Path | None = option(
        OUTPUT,
        None,
        "--output",
        "-o",
        help="Output file: .json with all numbers, or a table, .tex or .md.",
    ),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Rank captioners on shared images by MSD, Soft-MSD and match, with intervals and significance.

    Files without scores are scored first, each image only once, into FILE.scores.parquet next to them; the options of
    scoring apply to these. Soft-MSD uses the captions of all captioners for an image as one candidate set. Images are
    matched by their path in the rows; files with different signatures, or different images with the same path, are
    rejected.
    """
    from json import dumps

    from msdscore.intervals import Resampling
    from msdscore.io.targets import MARK, check_target, put
    from msdscore_lab.benchmarks.results.tables import SUFFIXES, render
    from msdscore_lab.captioners.contest import read_contest
    from msdscore_lab.captioners.ranking import rank, ranking_grids, verdict
    from msdscore_lab.captioners.scoring import scored_files
    from msdscore_lab.cli.grids import grid_table
    from msdscore_lab.stats.differences import default_draws

    if output is not None:
        check_target(output, (".json", *SUFFIXES), inputs=[*files, chosen.rows])
    files, use = scored_files(files, scorer.spec(batch), images=chosen.images)
    if use is not None:
        tell(f"scored {len(files)} files: {use}")
    contest = read_contest(files, shared=chosen.shared, people=chosen.people, images=chosen.images, rows=chosen.rows)
    how = Resampling(samples=chosen.samples or default_draws(len(contest.images)), seed=chosen.seed)
    ranking = rank(contest, people=chosen.people, how=how)
    grids = ranking_grids(ranking, lab_options.names_in(chosen.columns))
    plain = dumps({"note": MARK, **ranking.to_dict()}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if output is not None:
        style = chosen.style or SUFFIXES.get(output.suffix.lower(), "")
        put(output, (render(grids, style) if style else plain).encode(), overwrite=overwrite)
        tell(verdict(ranking))
    if json:
        typer.echo(plain, nl=False)
    elif output is not None:
        return
    elif chosen.style:
        typer.echo(render(grids, chosen.style), nl=False)
    else:
        for grid in grids:
            grid_table(grid)
