"""Embeddings of images and captions: unit vectors with their mask, pooled vectors, and the location of each point.

`map_blocks` applies a function to a batch block by block, in bounded memory, so that no item's result depends on its
neighbours. Reductions of floating point numbers depend on the padded width they run over. A block therefore has items
of one size class and is padded to that class, never to the longest item that happens to be in the batch, and on a CPU
it is computed by one thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from msdscore.core.arrays import (
    Array,
    Bool,
    Float,
    Int,
    Shaped,
    accumulation_dtype,
    astype,
    at_least,
    device_of,
    from_numpy,
    integers,
    is_gpu,
    is_torch,
    masked,
    namespace,
    on_cpu,
    take_rows,
    to_numpy,
    torch_part,
)

Points = Float[Array, "batch points dim"]
Mask = Bool[Array, "batch points"]  # True for real points
PerPoint = Float[Array, "batch points"]
# Smallest length a vector is divided by, as in the authors' scripts.
TINY = 1e-6
SMALLEST = 1e-300  # length of a vector in float64 that is divided by: a zero vector stays zero


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Locations of the patches of one image.

    `boxes` contains (left, top, right, bottom) in pixels of the original image, one row per patch in the order of the
    points, row-major over `grid` (rows, columns). Resizing and cropping are undone, so a box may be fractional.
    `warnings` describe properties of the image that affect its score, such as that it is tiny.
    """

    size: tuple[int, int]  # width, height of the original image
    grid: tuple[int, int]  # rows, columns
    boxes: Float[np.ndarray, "points 4"]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Locations of the tokens of one caption.

    `spans` are (start, end) character offsets into the original caption, one per point. `windows` is the number of
    windows of the text tower that the caption took; `cut` the number of its tokens dropped by truncation.
    `warnings` describe properties of the caption that affect its score, such as words that the encoder cannot read.
    `omitted` is the number of tokens without a point: function words, if an encoder has vectors of content words only.
    """

    spans: tuple[tuple[int, int], ...]
    windows: int = 1
    cut: int = 0
    warnings: tuple[str, ...] = ()
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Local unit vectors and one pooled unit vector for each item of a batch; `mask` is True for real points.

    Vectors and mask are arrays of one library, NumPy or torch, on one device; everything that is computed from them is
    of the same library. Points and pooled vectors may have different sizes: a backbone can have separate local and
    global spaces. `filled` is True for every item that has a real point, if the host knows it without synchronising
    with the device. `keys` are integers computed from each item's content, which seed the random starts of mixtures.
    """

    points: Points
    mask: Mask
    pooled: Float[Array, "batch pooled_dim"]
    layout: tuple[PatchLayout | TokenLayout, ...] = ()
    filled: tuple[bool, ...] | None = None
    keys: Int[Array, " batch"] | None = None

    def __len__(self) -> int:
        return self.points.shape[0]

    @property
    def lengths(self) -> Int[Array, " batch"]:
        """The number of real points of every item."""
        xp = namespace(self.mask)
        return xp.sum(astype(self.mask, xp.int64), axis=1)

    @property
    def token_counts(self) -> Int[Array, " batch"]:
        """The number of tokens of every caption, with those that have no point."""
        omitted = [layout.omitted if isinstance(layout, TokenLayout) else 0 for layout in self.layout]
        return self.lengths + integers(omitted, like=self.mask) if any(omitted) else self.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors and masks."""
        return self.points.nbytes + self.mask.nbytes + self.pooled.nbytes


def take(batch: Embeddings, index: Sequence[int]) -> Embeddings:
    """Select items of a batch, in the order of `index`; the batch itself if these are all of its items in order."""
    if list(index) == list(range(len(batch))):
        return batch
    rows = integers(index, like=batch.mask)
    return Embeddings(
        take_rows(batch.points, rows),
        take_rows(batch.mask, rows),
        take_rows(batch.pooled, rows),
        tuple(batch.layout[number] for number in index) if batch.layout else (),
        None if batch.filled is None else tuple(batch.filled[number] for number in index),
        None if batch.keys is None else take_rows(batch.keys, rows),
    )


def split(batch: Embeddings) -> list[Embeddings]:
    """Split a batch into single items, without the padding after their last points."""
    xp = namespace(batch.points)
    # One synchronisation with the device for all of them.
    widths = at_least(to_numpy(extents(batch.mask)), 1).tolist()
    return [
        Embeddings(
            xp.asarray(batch.points[row : row + 1, :width, :], copy=True),
            xp.asarray(batch.mask[row : row + 1, :width], copy=True),
            xp.asarray(batch.pooled[row : row + 1, :], copy=True),
            batch.layout[row : row + 1],
        )
        for row, width in enumerate(widths)
    ]


def join(batches: Sequence[Embeddings]) -> Embeddings:
    """Concatenate batches, padded to the longest item."""
    if len(batches) == 1:
        return batches[0]
    xp, width = namespace(batches[0].points), max(batch.points.shape[1] for batch in batches)
    filled = [batch.filled for batch in batches if batch.filled is not None]
    keys = [batch.keys for batch in batches if batch.keys is not None]
    return Embeddings(
        xp.concat([widen(batch.points, width) for batch in batches]),
        xp.concat([widen(batch.mask, width) for batch in batches]),
        xp.concat([batch.pooled for batch in batches]),
        tuple(layout for batch in batches for layout in batch.layout),
        tuple(item for part in filled for item in part) if len(filled) == len(batches) else None,
        xp.concat(keys) if len(keys) == len(batches) else None,
    )


def widen(values: Shaped[Array, "batch points *rest"], width: int) -> Shaped[Array, "batch width *rest"]:
    """Pad an array with zeros along its points, to `width` of them.

    >>> widen(np.ones((1, 2), dtype=bool), 3).tolist()
    [[True, True, False]]
    """
    xp, missing = namespace(values), width - values.shape[1]
    if missing <= 0:
        return values
    shape = (values.shape[0], missing, *values.shape[2:])
    return xp.concat([values, xp.zeros(shape, dtype=values.dtype, device=device_of(values))], axis=1)


def to_width(values: Shaped[Array, "batch points *rest"], width: int) -> Shaped[Array, "batch width *rest"]:
    """Crop an array along its points, or pad it with zeros, to `width` of them."""
    return values[:, :width, ...] if width < values.shape[1] else widen(values, width)


def extents(mask: Mask) -> Int[Array, " batch"]:
    """The number of points of every item up to its last real one.

    >>> extents(np.array([[True, False, True, False]])).tolist()
    [3]
    """
    xp = namespace(mask)
    if not mask.shape[1]:
        return xp.zeros(mask.shape[0], dtype=xp.int64, device=device_of(mask))
    ends = xp.arange(1, mask.shape[1] + 1, device=device_of(mask))
    return xp.max(xp.where(mask, ends, 0), axis=1)


def unit(vectors: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    r"""Vectors of length one, :math:`x/\lVert x\rVert`, in float32 or better; a zero vector stays zero.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).round(4).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    xp, wide = namespace(vectors), astype(vectors, accumulation_dtype(vectors))
    if is_torch(wide) and wide.device.type == "cuda" and wide.dtype == xp.float32:
        # Squares of such numbers neither overflow nor vanish in float64 (not on Apple GPUs): half as many launches.
        norms = wide.norm(dim=-1, keepdim=True, dtype=xp.float64)
        return astype(wide / at_least(norms, SMALLEST), xp.float32)
    # Scaling by the largest entry first prevents overflow and underflow of the squares.
    peak = xp.max(xp.abs(wide), axis=-1, keepdims=True)
    scaled = wide / xp.where(peak > 0, peak, 1.0)
    return scaled / at_least(length(scaled)[..., None], TINY)


def length(vectors: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
    """The Euclidean length of vectors.

    >>> length(np.array([[3.0, 4.0]])).tolist()
    [5.0]
    """
    if is_torch(vectors):
        return vectors.norm(dim=-1)
    xp = namespace(vectors)
    return xp.sqrt(xp.sum(vectors * vectors, axis=-1))


def real_points(points: Points, mask: Mask) -> Points:
    """The points in their accumulation dtype, with zeros at padding."""
    wide = astype(points, accumulation_dtype(points))
    # Checking first saves a pass over the vectors on a CPU, but on a GPU the host would wait for the device.
    if on_cpu(mask) and bool(namespace(mask).all(mask)):
        return wide
    return masked(wide, mask[..., None], 0.0)


def masked_mean(points: Points, mask: Mask) -> Float[Array, "batch dim"]:
    r"""Normalised mean of the real points, :math:`\sum_i x_i / \lVert\sum_i x_i\rVert`.

    >>> points = np.array([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    >>> masked_mean(points, np.array([[True, True, False]])).round(4).tolist()
    [[0.7071, 0.7071]]
    """
    return unit(namespace(points).sum(real_points(points, mask), axis=1))


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
