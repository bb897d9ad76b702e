"""Metrics by their mean rank over many benchmarks: what helps on two of them and hurts on five is a loss."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from msdscore.benchmarks.results.grids import Grid
from msdscore.benchmarks.results.overview import Opened, headline_cells, labels
from msdscore.errors import InputError
from msdscore.stats.resample import Resampling, bootstrap_mean


def mean_ranks(opened: Sequence[Opened], *, how: Resampling | None = None) -> Grid:
    """Ranks of the headline figures, 1 is best and ties share; intervals of the mean come from resampled benchmarks.

    Only metrics with a figure on every benchmark are ranked.

    Raises:
        InputError: there are fewer than two benchmarks, or fewer than two such metrics.
    """
    columns = list(dict.fromkeys(one.column for one in opened))
    cells = headline_cells(opened)
    whole = {row: found for row, found in cells.items() if all(column in found for column in columns)}
    if len(columns) < 2 or len(whole) < 2:
        raise InputError(
            f"expected at least two benchmarks and two metrics that all have, got {len(columns)} and {len(whole)}"
        )
    values = np.array([[found[column].figure.value for column in columns] for found in whole.values()])
    ranks = rankdata(-np.nan_to_num(values, nan=-np.inf), axis=0)
    means = [bootstrap_mean(own, how=how or Resampling()) for own in ranks]
    order = sorted(range(len(means)), key=lambda place: means[place].value)
    named = labels(list(whole))
    rows = tuple(
        (
            named[place],
            f"{means[place].value:.2f}",
            f"[{means[place].low:.2f}, {means[place].high:.2f}]",
            *(f"{rank:g}" for rank in ranks[place]),
        )
        for place in order
    )
    note = f"1 is best of {len(rows)}; intervals from resampled benchmarks"
    return Grid("Mean ranks", ("metric", "mean rank", "95 % interval", *(name for name, _ in columns)), rows, (note,))
