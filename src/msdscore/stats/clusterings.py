"""How alike two clusterings of the same items are."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msdscore.errors import InputError

Floats = NDArray[np.float64]


def adjusted_rand(first: ArrayLike, second: ArrayLike) -> float:
    r"""The adjusted Rand index: 1 where two clusterings are the same up to names, 0 on average for random ones.

    .. math:: \frac{\sum_{ij}\binom{n_{ij}}{2} - e}{\tfrac12(a + b) - e}, \quad e = ab / \binom{n}{2}

    with a and b the sums of :math:`\binom{\cdot}{2}` over the clusters of either side (Hubert and Arabie, Journal of
    Classification 2, 1985). Two clusterings in which all items are together, or all alone, are the same.

    >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0]), round(adjusted_rand([0, 0, 1, 1], [0, 1, 0, 1]), 2)
    (1.0, -0.5)
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InputError(f"expected two clusterings of the same items, got shapes {a.shape} and {b.shape}")
    ours, theirs = (np.unique(labels, return_inverse=True)[1] for labels in (a, b))
    table = np.zeros((int(ours.max()) + 1, int(theirs.max()) + 1))
    np.add.at(table, (ours, theirs), 1)
    both, rows, columns, whole = (
        float(_couples(counts).sum()) for counts in (table, table.sum(1), table.sum(0), table.sum(keepdims=True))
    )
    expected = rows * columns / whole if whole else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def _couples(counts: Floats) -> Floats:
    return counts * (counts - 1) / 2
