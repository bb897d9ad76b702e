"""`msdscore table`, `compare` and `cite`: tables of results, significance tests, and BibTeX entries."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option
from msdscore.cli.progress import print_json, tell
from msdscore.errors import ConfigError
from msdscore_lab.cli import options as lab_options

if TYPE_CHECKING:
    from msdscore_lab.benchmarks.results.grids import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Content, style and file of the tables."""

    overview: bool = option(
        INPUT, False, "--overview", help="One table with a column per benchmark, best values in bold."
    )
    columns: str = option(OUTPUT, "", help="Columns of the tables, separated by commas, or all; default: the headline.")
    style: lab_options.TableStyle = ""
    output: Path | None = option(OUTPUT, None, "--output", "-o", help="File, .md or .tex; default: print the tables.")
    overwrite: options.Overwrite = False


def table(
    results: Annotated[list[Path], typer.Argument(help="Results (.json) of `msdscore bench`.")],
    chosen: TableOptions,
) -> None:
    """Print a table per benchmark and protocol, with intervals, controls and signatures, or one for all benchmarks."""
    from msdscore.io.targets import RUN_NOTES, check_target, put
    from msdscore_lab.benchmarks.results.tables import SUFFIXES, render

    if chosen.output is not None:
        check_target(chosen.output, tuple(SUFFIXES), inputs=results)
    # A pattern such as results/*.json also matches the run metadata next to the scores.
    wanted = [path for path in results if not path.name.endswith(RUN_NOTES)] or results
    grids = _result_grids(wanted, chosen)
    text = render(grids, chosen.style or (SUFFIXES[chosen.output.suffix.lower()] if chosen.output else "markdown"))
    if chosen.output is None:
        typer.echo(text, nl=False)
    else:
        put(chosen.output, text.encode(), overwrite=chosen.overwrite)


def _result_grids(paths: list[Path], chosen: TableOptions) -> "list[Grid]":
    from msdscore_lab.benchmarks.results.grids import overview, result_grids
    from msdscore_lab.benchmarks.results.result import read_result
    from msdscore_lab.benchmarks.results.tables import select_columns

    read, columns = list(map(read_result, paths)), lab_options.names_in(chosen.columns)
    grids = [overview(read)] if chosen.overview else result_grids(read, every=bool(columns))
    return [select_columns(grid, columns) for grid in grids] if columns not in ([], ["all"]) else grids


def compare(
    first: Annotated[str, typer.Argument(help="RESULT.json, or RESULT.json:METRIC.")],
    second: Annotated[str, typer.Argument(help="The second result; differences are first minus second.")] = "",
    against: str = option(
        None, "", help="Instead of a second result: compare this metric with all others of RESULT.json."
    ),
    samples: lab_options.Draws = None,
    seed: lab_options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Compare two results of `msdscore bench` on their common items, or all metrics of one with a baseline.

    Differences have intervals and p-values by one method, random flips of the signs of the differences of each image:
    p is below 0.05 exactly if the 95 % interval excludes 0. Both are corrected for all metrics with --against, and for
    all figures besides the main one.
    """
    from msdscore_lab.benchmarks.results.compare import compare_all, compare_sides, open_side
    from msdscore_lab.benchmarks.results.grids import against_grid, comparison_grid
    from msdscore_lab.benchmarks.results.result import plain, read_result
    from msdscore_lab.cli.grids import grid_table

    if bool(second) == bool(against):
        raise ConfigError("expected two results, or one result and --against METRIC")
    values: Any
    if against:
        result = read_result(Path(first))
        comparisons = compare_all(result, Path(first).parent, against, samples=samples, seed=seed)
        values = [{**asdict(comparison), "metric": label} for label, comparison in comparisons.items()]
        grid = against_grid(result, comparisons, against)
    else:
        (comparison,) = compare_sides([(open_side(first), open_side(second))], samples=samples, seed=seed)
        values, grid = asdict(comparison), comparison_grid(comparison)
    if json:
        print_json(plain(values))
    else:
        grid_table(grid)


def cite(
    result: Annotated[
        str, typer.Argument(help="Output of score, bench or study, or a signature; default: software and paper only.")
    ] = "",
) -> None:
    """Print BibTeX entries of the software, the paper and the encoder in the signature of a result.

    Sentences for your paper, with the signature and, for a scored file, the mean with its interval, are printed to
    standard error: `msdscore cite FILE > refs.bib` shows them and writes the entries.
    """
    from msdscore_lab.citation import bibtex, means, sentence, signatures_in

    signatures = signatures_in(result) if result else []
    typer.echo(bibtex(signatures))
    if signatures:
        tell("\n".join(filter(None, (sentence(signatures), means(result)))))
