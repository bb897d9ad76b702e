"""Terms laid out over the picture: what backs the caption, what speaks against it, what it leaves out."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from msdscore.encoders.base import PatchLayout
from msdscore.errors import unknown_name

Floats = npt.NDArray[np.float64]
Projection = Literal["influence", "signed", "centred"]
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)


def affinities(patches: Floats, tokens: Floats, kappa: float) -> Floats:
    r"""How each token spreads over the patches, :math:`a_{ji} = \operatorname{softmax}_i(\kappa\, x_i^\top y_j)`.

    >>> affinities(np.eye(2), np.array([[1.0, 0.0]]), kappa=2.0).round(3).tolist()
    [[0.881, 0.119]]
    """
    logits = kappa * tokens @ patches.T
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits)
    spread: Floats = weights / weights.sum(axis=1, keepdims=True)
    return spread


def influence(coverage_terms: Floats, affinity: Floats, beta: float) -> Floats:
    r"""How far the local divergence rises, to first order, when a patch is taken away; a rise means it backs the caption.

    .. math:: \beta\,\frac{\bar c - c_i}{N - 1} + \frac{1-\beta}{M}\sum_j \Bigl(a_{ji} - \tfrac1N\Bigr)

    with :math:`c_i` the patch's log ratio. Coverage is a mean over patches, so losing one moves it by its distance from
    the mean; the picture's density at a token is a mean over patches too, to which patch i adds the share a_ji.
    """
    count = len(coverage_terms)
    ratios = count * coverage_terms
    along_patches = (ratios.mean() - ratios) / max(count - 1, 1)
    along_tokens = affinity.mean(axis=0) - 1 / count
    result: Floats = beta * along_patches + (1 - beta) * along_tokens
    return result


def signed(support_terms: Floats, affinity: Floats) -> Floats:
    r"""Token terms carried to the patches they lean on, :math:`-\sum_j s_j a_{ji}`; supported words count up."""
    carried: Floats = -support_terms @ affinity
    return carried


def backing(
    projection: Projection, coverage_terms: Floats, support_terms: Floats, affinity: Floats, beta: float
) -> Floats:
    """One number a patch: above zero it backs the caption, below it speaks against it."""
    if projection == "influence":
        return influence(coverage_terms, affinity, beta)
    if projection == "signed":
        return signed(support_terms, affinity)
    if projection == "centred":
        return signed(support_terms - support_terms.mean(), affinity)
    raise unknown_name("projection", projection, PROJECTIONS)


def grid(values: Floats, layout: PatchLayout) -> Floats:
    """Values of patches as rows and columns of the picture."""
    return values.reshape(layout.grid)


def extent(layout: PatchLayout) -> tuple[float, float, float, float]:
    """The part of the picture that the encoder saw: left, top, right, bottom in pixels of the picture."""
    low, high = layout.boxes.amin(dim=0).tolist(), layout.boxes.amax(dim=0).tolist()
    return low[0], low[1], high[2], high[3]


def pixels(values: Floats, layout: PatchLayout, size: tuple[int, int] | None = None) -> Floats:
    """Values of patches for every pixel of the picture, smooth between patches; NaN where the encoder did not look.

    `size` is (width, height) of the result: the original picture's unless told otherwise.
    """
    width, height = size or layout.size
    boxes = layout.boxes.double().numpy().reshape(*layout.grid, 4)
    across = _spread(boxes[0][:, (0, 2)] * width / layout.size[0], width)
    down = _spread(boxes[:, 0][:, (1, 3)] * height / layout.size[1], height)
    result: Floats = down @ grid(values, layout) @ across.T
    return result


def _spread(cells: Floats, length: int) -> Floats:
    """Weights of cells (start, end) at each of `length` pixels, linear between centres; NaN outside all cells."""
    # A cell that lies in padding alone has no width and nothing to show.
    real = np.flatnonzero(cells[:, 1] > cells[:, 0])
    centres = cells[real].mean(axis=1)
    at = np.arange(length) + 0.5
    weights = np.zeros((length, len(cells)))
    for place, cell in enumerate(real):
        weights[:, cell] = np.interp(at, centres, np.eye(len(real))[place])
    weights[(at < cells[real, 0].min()) | (at > cells[real, 1].max())] = np.nan
    return weights


def strongest(values: Floats, layout: PatchLayout, count: int) -> list[dict[str, float]]:
    """The patches with the largest values: their boxes in pixels of the picture, strongest first."""
    order = np.argsort(-values, kind="stable")[:count]
    names = ("left", "top", "right", "bottom")
    boxes = [dict(zip(names, layout.boxes[number].tolist(), strict=True)) for number in order]
    return [box | {"value": float(values[number])} for number, box in zip(order, boxes, strict=True)]
