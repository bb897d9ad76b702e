"""Embeddings of images and captions: unit vectors with their mask, pooled vectors, and the location of each point."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    integers,
    is_torch,
    masked,
    namespace,
    on_cpu,
    take_rows,
    to_numpy,
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
