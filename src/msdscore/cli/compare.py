"""`msdscore compare`: is one metric better than another on the same items?"""

from typing import Annotated

import typer

from msdscore.cli import options


def compare(
    first: Annotated[str, typer.Argument(help="RESULT.json, or RESULT.json:METRIC.")],
    second: Annotated[str, typer.Argument(help="The same; differences are first less second.")],
    samples: Annotated[int, typer.Option(min=1, help="Resamples behind intervals and tests.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    json: options.Json = False,
) -> None:
    """Test two results of `msdscore bench` on the items that both scored.

    Accuracies: paired bootstrap and permutation of whole pictures, and McNemar's test. Correlations: bootstrap of
    the difference, and permutation. Holm's correction goes over the subsets.
    """
    import json as js
    from dataclasses import asdict

    from msdscore.benchmarks.results.compare import compare_sides, open_side
    from msdscore.benchmarks.results.grids import comparison_grid
    from msdscore.cli.tables import grid_table
    from msdscore.stats.resample import Resampling

    found = compare_sides(open_side(first), open_side(second), how=Resampling(samples=samples, seed=seed))
    if json:
        typer.echo(js.dumps(asdict(found), ensure_ascii=False))
    else:
        grid_table(comparison_grid(found))
