"""`msdscore table` and `msdscore compare`: results of `bench` side by side, and tests between them."""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.stats.resample import Resampling


def table(
    results: Annotated[list[Path], typer.Argument(help="Results of `msdscore bench` (.json).")],
    style: Annotated[str, typer.Option("--format", "-f", help="markdown, latex or csv.")] = "markdown",
    overview: Annotated[
        bool, typer.Option("--overview", help="One table, a column per benchmark, best in bold.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="One table, metrics by their mean rank over benchmarks.")
    ] = False,
    against: Annotated[str, typer.Option(help="With --overview: mark what differs from this metric.")] = "",
    quoted: Annotated[bool, typer.Option("--quoted", help="With --overview: published figures too.")] = False,
    samples: Annotated[int, typer.Option(min=1, help="Resamples behind the marks.")] = 1000,
) -> None:
    """Print a table per benchmark and protocol, with intervals, controls and signatures; or one of all benchmarks."""
    from msdscore.benchmarks.results.grids import result_grids
    from msdscore.benchmarks.results.overview import StoredResult, mean_ranks
    from msdscore.benchmarks.results.overview import overview as all_in_one
    from msdscore.benchmarks.results.result import read_result
    from msdscore.io.outputs.manifest import RUN_NOTES
    from msdscore.report.tables import render
    from msdscore.stats.resample import Resampling

    if (against or quoted) and not overview:
        raise ConfigError("--against and --quoted go with --overview alone")
    # A pattern such as results/*.json also finds what a run notes beside its scores.
    wanted = [path for path in results if not path.name.endswith(RUN_NOTES)] or results
    read = {path: read_result(path) for path in wanted}
    opened = [StoredResult(result, path.parent) for path, result in read.items()]
    if ranks:
        grids = [mean_ranks(opened, how=Resampling(samples=samples))]
    elif overview:
        grids = [all_in_one(opened, against=against, quoted=quoted, how=Resampling(samples=samples))]
    else:
        grids = result_grids(list(read.values()))
    typer.echo(render(grids, style), nl=False)


def compare(
    first: Annotated[str, typer.Argument(help="RESULT.json, or RESULT.json:METRIC.")],
    second: Annotated[str, typer.Argument(help="The same; differences are first less second.")] = "",
    against: Annotated[
        str, typer.Option(help="Instead of a second: this metric against all others of RESULT.json.")
    ] = "",
    samples: Annotated[int, typer.Option(min=1, help="Resamples behind intervals and tests.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    json: options.Json = False,
) -> None:
    """Test two results of `msdscore bench` on the items that both scored, or all metrics of one against a baseline.

    Accuracies: paired bootstrap and permutation of whole pictures, and McNemar's test. Correlations: bootstrap of
    the difference, and permutation. Holm's correction goes over the subsets; with --against, over the metrics.
    """
    from msdscore.cli.tables import grid_table
    from msdscore.stats.resample import Resampling

    if bool(second) == bool(against):
        raise ConfigError("expected two results, or one result and --against METRIC")
    how = Resampling(samples=samples, seed=seed)
    values, grid = _against(first, against, how) if against else _two(first, second, how)
    if json:
        typer.echo(dumps(values, ensure_ascii=False))
    else:
        grid_table(grid)


def _two(first: str, second: str, how: "Resampling") -> tuple[Any, Any]:
    from msdscore.benchmarks.results.compare import compare_sides, open_side
    from msdscore.benchmarks.results.grids import comparison_grid

    comparison = compare_sides(open_side(first), open_side(second), how=how)
    return asdict(comparison), comparison_grid(comparison)


def _against(path: str, against: str, how: "Resampling") -> tuple[Any, Any]:
    from msdscore.benchmarks.results.compare import compare_all
    from msdscore.benchmarks.results.grids import against_grid
    from msdscore.benchmarks.results.result import read_result

    result = read_result(Path(path))
    comparisons = compare_all(result, Path(path).parent, against, how=how)
    rows = [{**asdict(tested), "metric": label, "adjusted": p} for label, (tested, p) in comparisons.items()]
    return rows, against_grid(result, comparisons, against)
