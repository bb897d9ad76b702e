"""`msdscore compare`: is one metric better than another on the same items?"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options

if TYPE_CHECKING:
    from msdscore.stats.resample import Resampling


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
    import json as js

    from msdscore.cli.tables import grid_table
    from msdscore.errors import ConfigError
    from msdscore.stats.resample import Resampling

    if bool(second) == bool(against):
        raise ConfigError("expected two results, or one result and --against METRIC")
    how = Resampling(samples=samples, seed=seed)
    facts, grid = _against(first, against, how) if against else _two(first, second, how)
    if json:
        typer.echo(js.dumps(facts, ensure_ascii=False))
    else:
        grid_table(grid)


def _two(first: str, second: str, how: "Resampling") -> tuple[Any, Any]:
    from dataclasses import asdict

    from msdscore.benchmarks.results.compare import compare_sides, open_side
    from msdscore.benchmarks.results.grids import comparison_grid

    found = compare_sides(open_side(first), open_side(second), how=how)
    return asdict(found), comparison_grid(found)


def _against(path: str, against: str, how: "Resampling") -> tuple[Any, Any]:
    from dataclasses import asdict
    from pathlib import Path

    from msdscore.benchmarks.results.compare import compare_all
    from msdscore.benchmarks.results.grids import against_grid
    from msdscore.benchmarks.results.result import read_result

    result = read_result(Path(path))
    found = compare_all(result, Path(path).parent, against, how=how)
    facts = [{**asdict(one), "metric": label, "adjusted": p} for label, (one, p) in found.items()]
    return facts, against_grid(result, found, against)
