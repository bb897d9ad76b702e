"""`msdscore table`: results side by side, for a page, a paper or a spreadsheet."""

from pathlib import Path
from typing import Annotated

import typer


def table(
    results: Annotated[list[Path], typer.Argument(help="Results of `msdscore bench` (.json).")],
    style: Annotated[str, typer.Option("--format", "-f", help="markdown, latex or csv.")] = "markdown",
) -> None:
    """Print a table a benchmark and protocol, with intervals, controls and signatures."""
    from msdscore.benchmarks.results.grids import result_grids
    from msdscore.benchmarks.results.result import read_result
    from msdscore.io.outputs.manifest import RUN_NOTES
    from msdscore.report.tables import render

    # A pattern such as results/*.json also finds what a run notes beside its scores.
    wanted = [path for path in results if not path.name.endswith(RUN_NOTES)] or results
    typer.echo(render(result_grids([read_result(path) for path in wanted]), style), nl=False)
