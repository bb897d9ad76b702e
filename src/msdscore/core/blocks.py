"""Apply a function to a batch block by block, in bounded memory, so that no item's result depends on its neighbours.

Reductions of floating point numbers depend on the padded width they run over. A block therefore has items of one size
class and is padded to that class, never to the longest item that happens to be in the batch, and on a CPU it is
computed by one thread.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from msdscore.core.arrays import (
    Array,
    Bool,
    Int,
    Shaped,
    at_least,
    device_of,
    from_numpy,
    is_gpu,
    is_torch,
    namespace,
    on_cpu,
    take_rows,
    to_numpy,
    torch_part,
)
from msdscore.core.embeddings import extents, to_width

# Memory of one block in bytes: on a CPU a few cache-friendly items for every core.
BLOCK_BYTES = 64 << 20

# Work on so few points is finished before another thread has started it (measured; see docs/performance.md).
FEW_POINTS = 32

Indices = Int[np.ndarray, " items"]  # on the host, which splits the work


class Block(NamedTuple):
    """Items of a batch and the width they are padded to; `whole` if it is the entire batch in its order."""

    items: Indices
    width: int
    whole: bool

    def cut(self, values: Shaped[Array, "batch points *rest"]) -> Shaped[Array, "items width *rest"]:
        """The block's rows of a padded array, cropped or padded with zeros to the block's width."""
        return to_width(self.rows(values), self.width)

    def rows(self, values: Shaped[Array, "batch *rest"]) -> Shaped[Array, "items *rest"]:
        """The block's rows of an array."""
        return values if self.whole else take_rows(values, from_numpy(self.items, values))

    def shares(self, threads: int) -> "list[Block]":
        """The block divided among threads, unless it is too small."""
        if threads == 1 or self.width <= FEW_POINTS or len(self.items) < threads:
            return [self]
        return [Block(items, self.width, whole=False) for items in np.array_split(self.items, threads)]


# Numbers of the rows of a result, and the rows of one or several arrays.
Rows = tuple[Int[np.ndarray, "_"], tuple[Array, ...]]


def map_blocks(
    function: Callable[[Block], Rows], sizes: Indices, item_bytes: Callable[[int], int], like: Array
) -> tuple[Array, ...]:
    """Compute rows of arrays block by block, and return the arrays with all rows in order.

    `sizes` are the size classes of the items, `item_bytes` the memory that the function takes for one item of a size.
    On a CPU large blocks are divided among threads, each of which computes its items alone: a library that splits one
    product over threads adds in an order that depends on the numbers of threads and items.
    """
    room = torch_part("gpu.device").memory_share(like.device) if is_gpu(device_of(like)) else BLOCK_BYTES
    parts = blocks(sizes, item_bytes, room)
    if not (is_torch(like) and on_cpu(like)):
        return in_order([function(part) for part in parts])
    device = torch_part("gpu.device")
    shares = (share for part in parts for share in part.shares(device.cpu_threads()))
    return in_order(device.map_each(function, shares))


def widths(mask: Bool[Array, "batch points"]) -> Indices:
    """The size class of an item: the end of its last real point, rounded up to a quarter of the power of two below it.

    Above 128 to a sixteenth: images have that many points, mostly the same number, and padding costs a copy.

    >>> widths(np.array([[True, True, False], [True, False, False]])).tolist()
    [4, 4]
    """
    ends = at_least(to_numpy(extents(mask)), 1)
    power = 2 ** np.floor(np.log2(at_least(ends - 1, 1))).astype(np.int64)
    steps = at_least(np.where(power < 128, power // 4, power // 16), 4)
    return (ends + steps - 1) // steps * steps


def blocks(sizes: Indices, item_bytes: Callable[[int], int], room: int) -> Iterator[Block]:
    """Blocks of items of one size class each, which take at most `room` bytes, or one item."""
    for width in sorted(set(sizes.tolist())):  # np.unique would import numpy.ma
        items = np.flatnonzero(sizes == width)
        most = max(1, room // item_bytes(width))
        for start in range(0, len(items), most):
            part = items[start : start + most]
            yield Block(part, width, whole=len(part) == len(sizes))


def in_order(results: Sequence[Rows]) -> tuple[Array, ...]:
    """Join the rows of all blocks, sorted by their numbers."""
    numbers = np.concatenate([rows for rows, _ in results])
    columns = tuple(zip(*(arrays for _, arrays in results), strict=True))
    joined = tuple(column[0] if len(column) == 1 else namespace(column[0]).concat(column) for column in columns)
    if (numbers[1:] > numbers[:-1]).all():
        return joined
    order = np.argsort(numbers)
    return tuple(take_rows(array, from_numpy(order, array)) for array in joined)
