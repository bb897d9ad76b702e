"""`msdscore table`, `compare` and `cite`: tables of benchmark results, significance tests, and BibTeX."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import print_json
from msdscore.errors import ConfigError


def table(
    results: Annotated[
        list[Path], typer.Argument(help="Results (.json) of `msdscore bench` or `msdscore rank-captioners`.")
    ],
    style: Annotated[str, typer.Option("--format", "-f", help="markdown, latex or csv.")] = "markdown",
    overview: Annotated[
        bool, typer.Option("--overview", help="One table with a column per benchmark, best values in bold.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="One table with the mean rank of each metric over benchmarks.")
    ] = False,
    against: Annotated[str, typer.Option(help="With --overview: mark significant differences from this metric.")] = "",
    quoted: Annotated[bool, typer.Option("--quoted", help="With --overview: include published values.")] = False,
    samples: options.Samples = 1000,
) -> None:
    """Print a table per benchmark and protocol, with intervals, controls and signatures, or one for all benchmarks."""
    import json

    from msdscore.intervals import Resampling
    from msdscore.io.outputs.targets import RUN_NOTES
    from msdscore.lab.benchmarks.results.grids import mean_ranks, result_grids
    from msdscore.lab.benchmarks.results.grids import overview as all_in_one
    from msdscore.lab.benchmarks.results.result import read_result
    from msdscore.lab.benchmarks.results.tables import render
    from msdscore.lab.captioners.ranking import is_ranking, ranking_grids, read_ranking

    if (against or quoted) and not overview:
        raise ConfigError("--against and --quoted need --overview")
    # A pattern such as results/*.json also matches the run metadata next to the scores.
    wanted = [path for path in results if not path.name.endswith(RUN_NOTES)] or results
    rankings = [path for path in wanted if is_ranking(path)]
    if rankings:
        if overview or ranks or len(rankings) < len(wanted):
            raise ConfigError(
                f"{rankings[0]} is a ranking of captioners; print it separately, without --overview and --ranks"
            )
        stored = [read_ranking(json.loads(path.read_text(encoding="utf-8"))) for path in rankings]
        typer.echo(render([grid for ranking in stored for grid in ranking_grids(ranking)], style), nl=False)
        return
    read = {path: read_result(path) for path in wanted}
    if ranks:
        grids = [mean_ranks(list(read.values()), how=Resampling(samples=samples))]
    elif overview:
        opened = [(result, path.parent) for path, result in read.items()]
        grids = [all_in_one(opened, against=against, quoted=quoted, how=Resampling(samples=samples))]
    else:
        grids = result_grids(list(read.values()))
    typer.echo(render(grids, style), nl=False)


def compare(
    first: Annotated[str, typer.Argument(help="RESULT.json, or RESULT.json:METRIC.")],
    second: Annotated[str, typer.Argument(help="The second result; differences are first minus second.")] = "",
    against: Annotated[
        str, typer.Option(help="Instead of a second result: compare this metric with all others of RESULT.json.")
    ] = "",
    samples: options.Samples = 1000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Compare two results of `msdscore bench` on their common items, or all metrics of one with a baseline.

    Accuracies: paired bootstrap and permutation test over images, and McNemar's test. Correlations: bootstrap of the
    difference, and permutation test. Holm's correction is applied over the subsets; with --against, over the metrics.
    """
    from msdscore.cli.tables import grid_table
    from msdscore.intervals import Resampling
    from msdscore.lab.benchmarks.results.compare import compare_all, compare_sides, open_side
    from msdscore.lab.benchmarks.results.grids import against_grid, comparison_grid
    from msdscore.lab.benchmarks.results.result import plain, read_result

    if bool(second) == bool(against):
        raise ConfigError("expected two results, or one result and --against METRIC")
    how = Resampling(samples=samples, seed=seed)
    values: Any
    if against:
        result = read_result(Path(first))
        comparisons = compare_all(result, Path(first).parent, against, how=how)
        values = [{**asdict(tested), "metric": label, "adjusted": p} for label, (tested, p) in comparisons.items()]
        grid = against_grid(result, comparisons, against)
    else:
        comparison = compare_sides(open_side(first), open_side(second), how=how)
        values, grid = asdict(comparison), comparison_grid(comparison)
    if json:
        print_json(plain(values))
    else:
        grid_table(grid)


def cite(
    result: Annotated[
        Path | None, typer.Argument(help="Output of score, bench or study; default: software and paper only.")
    ] = None,
) -> None:
    """Print BibTeX entries of the software, the paper and the encoder in the signature of a result file."""
    from msdscore.report.citation import bibtex

    typer.echo(bibtex(result))
