"""Unit vectors, and means of the real points of a padded batch."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Smallest length a vector is divided by: the authors' scripts use the same.
TINY = 1e-6


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are made in: float32 for half precision, else the dtype itself.

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
    # Scaling by the largest entry first keeps squares of huge and tiny vectors inside the dtype.
    peak = wide.abs().amax(dim=-1, keepdim=True)
    scaled = wide / torch.where(peak > 0, peak, torch.ones_like(peak))
    return scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(TINY)


def real_points(
    points: Float[Tensor, "batch points dim"], mask: Bool[Tensor, "batch points"]
) -> Float[Tensor, "batch points dim"]:
    """The points in their accumulation dtype, with zeros where the mask says padding."""
    wide = points.to(accumulation_dtype(points.dtype))
    # Looking first saves a pass over the vectors on a CPU, but on a GPU the host would wait for the device.
    if mask.device.type == "cpu" and bool(mask.all()):
        return wide
    return wide.masked_fill(~mask.unsqueeze(-1), 0.0)


def counts(mask: Bool[Tensor, "batch points"]) -> Int[Tensor, " batch"]:
    """How many real points each item has."""
    return mask.sum(dim=1)


def masked_mean(
    points: Float[Tensor, "batch points dim"], mask: Bool[Tensor, "batch points"]
) -> Float[Tensor, "batch dim"]:
    r"""Normalised mean of the real points, :math:`\sum_i x_i / \lVert\sum_i x_i\rVert`.

    >>> points = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    >>> masked_mean(points, torch.tensor([[True, True, False]]))
    tensor([[0.7071, 0.7071]])
    """
    return unit(real_points(points, mask).sum(dim=1))
