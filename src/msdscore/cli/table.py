"""`msdscore table`: results side by side, for a page, a paper or a spreadsheet."""

from pathlib import Path
from typing import Annotated

import typer


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
    from msdscore.benchmarks.results.overview import Opened, mean_ranks
    from msdscore.benchmarks.results.overview import overview as all_in_one
    from msdscore.benchmarks.results.result import read_result
    from msdscore.errors import ConfigError
    from msdscore.io.outputs.manifest import RUN_NOTES
    from msdscore.report.tables import render
    from msdscore.stats.resample import Resampling

    if (against or quoted) and not overview:
        raise ConfigError("--against and --quoted go with --overview alone")
    # A pattern such as results/*.json also finds what a run notes beside its scores.
    wanted = [path for path in results if not path.name.endswith(RUN_NOTES)] or results
    read = {path: read_result(path) for path in wanted}
    opened = [Opened(result, path.parent) for path, result in read.items()]
    if ranks:
        grids = [mean_ranks(opened, how=Resampling(samples=samples))]
    elif overview:
        grids = [all_in_one(opened, against=against, quoted=quoted, how=Resampling(samples=samples))]
    else:
        grids = result_grids(list(read.values()))
    typer.echo(render(grids, style), nl=False)
