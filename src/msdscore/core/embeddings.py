"""Embeddings of images and captions: unit vectors with their mask, pooled vectors, and the location of each point."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from msdscore.core.device import sent

Points = Float[Tensor, "batch points dim"]
Mask = Bool[Tensor, "batch points"]  # True for real points
PerPoint = Float[Tensor, "batch points"]
# Smallest length a vector is divided by, as in the authors' scripts.
TINY = 1e-6


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Locations of the patches of one image.

    `boxes` contains (left, top, right, bottom) in pixels of the original image, one row per patch in the order of the
    points, row-major over `grid` (rows, columns). Resizing and cropping are undone, so a box may be fractional.
    `warnings` describe properties of the image that affect its score, such as that it is tiny.
    """

    size: tuple[int, int]  # width, height of the original image
    grid: tuple[int, int]  # rows, columns
    boxes: Float[Tensor, "points 4"]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Locations of the tokens of one caption.

    `spans` are (start, end) character offsets into the original caption, one per point. `windows` is the number of
    windows of the text tower that the caption took; `cut` the number of its tokens dropped by truncation.
    `warnings` describe properties of the caption that affect its score, such as words that the encoder cannot read.
    """

    spans: tuple[tuple[int, int], ...]
    windows: int = 1
    cut: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Local unit vectors and one pooled unit vector for each item of a batch; `mask` is True for real points.

    Points and pooled vectors may have different sizes: a backbone can have separate local and global spaces. `filled`
    is True for every item that has a real point, if the host knows it without synchronising with the device. `keys` are
    integers computed from each item's content, which seed the random starts of mixtures.
    """

    points: Points
    mask: Mask
    pooled: Float[Tensor, "batch pooled_dim"]
    layout: tuple[PatchLayout | TokenLayout, ...] = ()
    filled: tuple[bool, ...] | None = None
    keys: Int[Tensor, " batch"] | None = None

    def __len__(self) -> int:
        return self.points.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors and masks."""
        return self.points.nbytes + self.mask.nbytes + self.pooled.nbytes


def take(batch: Embeddings, index: Sequence[int]) -> Embeddings:
    """Select items of a batch, in the order of `index`."""
    rows = sent(torch.tensor(index, dtype=torch.int64), batch.points.device)
    return Embeddings(
        batch.points[rows],
        batch.mask[rows],
        batch.pooled[rows],
        tuple(batch.layout[number] for number in index) if batch.layout else (),
        None if batch.filled is None else tuple(batch.filled[number] for number in index),
        None if batch.keys is None else batch.keys[rows],
    )


def split(batch: Embeddings) -> list[Embeddings]:
    """Split a batch into single items, without the padding after their last points."""
    # One synchronisation with the device for all of them.
    widths = extents(batch.mask).clamp_min(1).tolist() if batch.mask.shape[1] else [0] * len(batch)
    return [
        Embeddings(
            batch.points[row : row + 1, :width].clone(),
            batch.mask[row : row + 1, :width].clone(),
            batch.pooled[row : row + 1].clone(),
            batch.layout[row : row + 1],
        )
        for row, width in enumerate(widths)
    ]


def join(batches: Sequence[Embeddings]) -> Embeddings:
    """Concatenate batches, padded to the longest item."""
    if len(batches) == 1:
        return batches[0]
    width = max(batch.points.shape[1] for batch in batches)
    filled = [batch.filled for batch in batches if batch.filled is not None]
    keys = [batch.keys for batch in batches if batch.keys is not None]
    return Embeddings(
        torch.cat([widen(batch.points, width) for batch in batches]),
        torch.cat([widen(batch.mask, width) for batch in batches]),
        torch.cat([batch.pooled for batch in batches]),
        tuple(layout for batch in batches for layout in batch.layout),
        tuple(item for part in filled for item in part) if len(filled) == len(batches) else None,
        torch.cat(keys) if len(keys) == len(batches) else None,
    )


def widen(values: Tensor, width: int) -> Tensor:
    """Pad a tensor with zeros along its points, to `width` of them.

    >>> widen(torch.ones(1, 2, dtype=torch.bool), 3)
    tensor([[ True,  True, False]])
    """
    missing = width - values.shape[1]
    return pad(values, (0, 0) * (values.dim() - 2) + (0, missing)) if missing > 0 else values


def extents(mask: Mask) -> Int[Tensor, " batch"]:
    """The number of points of every item up to its last real one.

    >>> extents(torch.tensor([[True, False, True, False]]))
    tensor([3])
    """
    return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(dim=1)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: float32 for half precision, otherwise the dtype itself.

    >>> accumulation_dtype(torch.bfloat16)
    torch.float32
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def unit(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    r"""Vectors of length one, :math:`x/\lVert x\rVert`, in float32 or better; a zero vector stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    wide = vectors.to(accumulation_dtype(vectors.dtype))
    # Scaling by the largest entry first prevents overflow and underflow of the squares.
    peak = wide.abs().amax(dim=-1, keepdim=True)
    scaled = wide / torch.where(peak > 0, peak, torch.ones_like(peak))
    return scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(TINY)


def real_points(points: Points, mask: Mask) -> Points:
    """The points in their accumulation dtype, with zeros at padding."""
    wide = points.to(accumulation_dtype(points.dtype))
    # Checking first saves a pass over the vectors on a CPU, but on a GPU the host would wait for the device.
    if mask.device.type == "cpu" and bool(mask.all()):
        return wide
    return wide.masked_fill(~mask.unsqueeze(-1), 0.0)


def masked_mean(points: Points, mask: Mask) -> Float[Tensor, "batch dim"]:
    r"""Normalised mean of the real points, :math:`\sum_i x_i / \lVert\sum_i x_i\rVert`.

    >>> points = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    >>> masked_mean(points, torch.tensor([[True, True, False]]))
    tensor([[0.7071, 0.7071]])
    """
    return unit(real_points(points, mask).sum(dim=1))
