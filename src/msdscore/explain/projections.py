"""Projections of the terms of a caption onto the patches of its image, and values of patches as pixels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import float64, to_numpy
from msdscore.encoders.base import PatchLayout
from msdscore.errors import unknown_name
from msdscore.forms.base import Floats, Form, Measurement
from msdscore.scoring.embedder import Embedded

CARRIED = "carried"  # the projection whose maps are smoothed
# P-value of a word from which its region is shown: the maximum is then in a box of its object in 77 % of cases, in each
# of two halves of 301 images of COCO, against 66 % of all words (the centre of the image: 64 and 53 %).
SURE = 0.7
CENTRE = 0.25  # standard deviation of the preference for the centre, relative to the image


def responsibilities(points: Floats, means: Floats, kappa: float, log_weights: Floats | float = 0.0) -> Floats:
    r"""Return the probability of each component for each point, rows adding up to 1.

    Tokens with every patch as a component of equal weight have the affinities
    :math:`a_{ji} = \operatorname{softmax}_i(\kappa\, x_i^\top y_j)`.

    >>> responsibilities(np.array([[1.0, 0.0]]), np.eye(2), kappa=2.0).round(3).tolist()
    [[0.881, 0.119]]
    """
    logits = kappa * points @ means.T + log_weights
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return shares


def sharpened(affinity: Floats, times: float) -> Floats:
    """Return the affinities of `times` the concentration.

    >>> sharpened(responsibilities(np.array([[1.0, 0.0]]), np.eye(2), kappa=1.0), 2).round(3).tolist()
    [[0.881, 0.119]]
    """
    weights = (affinity / affinity.max(axis=1, keepdims=True)) ** times
    spread: Floats = weights / weights.sum(axis=1, keepdims=True)
    return spread


def region(values: Floats, grid: tuple[int, int], visible: npt.NDArray[np.bool_]) -> Floats:
    """Return a map of patches, smoothed over 3 × 3 cells and weighted towards the centre, with the same sum.

    On annotated boxes the maximum of a word's map is more often inside its object (docs/lab has the comparison).

    >>> region(np.array([0.0, 0.0, 9.0]), (1, 3), np.ones(3, dtype=bool)).round(2).tolist()
    [0.0, 5.57, 3.43]
    """
    rows, columns = grid
    seen = visible.reshape(grid).astype(np.float64)
    padded, counted = (np.pad(cells, 1) for cells in (values.reshape(grid) * seen, seen))
    around = [(row, column) for row in range(3) for column in range(3)]
    sums, counts = (
        sum(cells[row : row + rows, column : column + columns] for row, column in around) for cells in (padded, counted)
    )
    weighted = (sums / np.maximum(counts, 1) * seen).ravel() * centre(rows, columns)
    shown: Floats = weighted * (values.sum() / max(float(weighted.sum()), 1e-12))
    return shown


def centre(rows: int, columns: int) -> Floats:
    """Return the weight of each patch: a Gaussian around the centre of the image."""
    y, x = np.meshgrid((np.arange(rows) + 0.5) / rows - 0.5, (np.arange(columns) + 0.5) / columns - 0.5, indexing="ij")
    prior: Floats = np.exp(-(x**2 + y**2) / (2 * CENTRE**2)).ravel()
    return prior


def removals(patches: Floats, tokens: Floats, means: Floats, log_weights: Floats, kappa: float) -> Floats:
    r"""Return the first-order change of the image's log density at each token (rows) if a patch (columns) is removed.

    .. math:: -\sum_k r_{jk} \Bigl[\frac{\gamma_{ik}}{N_k} - \frac1N
        + \frac{\kappa\,\gamma_{ik}}{\lVert S_k\rVert}\bigl(x_i^\top y_j - (x_i^\top\mu_k)(\mu_k^\top y_j)\bigr)\Bigr]

    with :math:`\gamma, r` the shares of patches and tokens in the components, :math:`S_k = \sum_i \gamma_{ik} x_i`: the
    patch takes its weight from its components, and turns their means. The mixture has unit `means`.
    """
    shares, reach = (responsibilities(points, means, kappa, log_weights) for points in (patches, tokens))
    sums = shares.T @ patches
    length = np.maximum(np.linalg.norm(sums, axis=1), 1e-12)
    turned = sums / length[:, None]
    weight = shares / np.maximum(shares.sum(axis=0), 1e-12) - 1 / len(patches)
    turn = kappa * shares / length
    # The products below are over components k: weight and direction of every token-patch pair.
    straight = (reach @ turn.T) * (tokens @ patches.T)
    along = (reach * (tokens @ turned.T)) @ (turn * (patches @ turned.T)).T
    change: Floats = -(reach @ weight.T + straight - along)
    return change


@dataclass(frozen=True, slots=True)
class MapTerms:
    """Inputs of a projection: terms of both divergences, affinities of tokens and patches, the gate."""

    coverage: Floats  # one per visible patch, adding up to the coverage divergence
    support: Floats  # one per token, adding up to the support divergence
    affinity: Floats  # tokens by patches, rows adding up to 1
    removal: Floats  # tokens by patches: change of the log density at the token if the patch is removed
    beta: float
    shares: Floats  # one per token, adding up to 1: its weight among the tokens


Regions = tuple[Floats, Floats]  # support of the caption by each patch, and contradiction


def terms_of(form: Form, images: Embedded, texts: Embedded, measured: Measurement[Any]) -> list[MapTerms]:
    """Return the terms of every measured pair, and the affinities of its tokens to the patches."""
    seen, read, mixtures = images.vectors, texts.vectors, measured.terms.image_mixtures
    terms = []
    for number, (image, text) in enumerate(zip(measured.image_of.tolist(), measured.text_of.tolist(), strict=True)):
        patches, tokens = to_numpy(seen.mask)[image], to_numpy(read.mask)[text]
        x, y = float64(seen.points[image])[patches], float64(read.points[text])[tokens]
        affinity = responsibilities(y, x, form.image_fit.kappa)
        means, log_weights = float64(mixtures.means[image]), float64(mixtures.log_weights[image])
        removal = removals(x, y, means, log_weights, mixtures.kappa)
        by_point = form.point_terms(measured, number, patches, tokens)
        terms.append(MapTerms(by_point.coverage, by_point.support, affinity, removal, by_point.beta, by_point.shares))
    return terms


def influence(terms: MapTerms) -> Regions:
    r"""Return the first-order increase of the local divergence if a patch is removed.

    .. math:: \beta\,\frac{\bar c - c_i}{N - 1} - (1-\beta)\sum_j \omega_j \Delta_{ji}

    with :math:`c_i` the patch's log ratio, :math:`\omega` the tokens' shares and :math:`\Delta` the `removals`.
    Coverage is a mean over patches, so removing one changes it by its distance from the mean; support falls with the
    image's density at the tokens. An increase supports the caption, a decrease contradicts it.
    """
    return both_ways(terms, -(terms.shares @ terms.removal))


def both_ways(terms: MapTerms, along_tokens: Floats) -> Regions:
    """Return `influence` for these changes of the support divergence, one per patch."""
    count = len(terms.coverage)
    ratios = count * terms.coverage
    along_patches = (ratios.mean() - ratios) / max(count - 1, 1)
    rise = terms.beta * along_patches + (1 - terms.beta) * along_tokens
    return rise, -rise


def carried(terms: MapTerms) -> Regions:
    r"""Token terms spread by affinity, :math:`\sum_j s_j a_{ji}`: negative ones support, others penalise."""
    return np.maximum(-terms.support, 0) @ terms.affinity, np.maximum(terms.support, 0) @ terms.affinity


PROJECTIONS: dict[str, Callable[[MapTerms], Regions]] = {"influence": influence, CARRIED: carried}


def check_projection(name: str) -> None:
    """Raise `UnknownNameError` unless the name is that of a projection."""
    if name not in PROJECTIONS:
        raise unknown_name("projection", name, PROJECTIONS)


def over_all(values: Floats, visible: npt.NDArray[np.bool_]) -> Floats:
    """Return values of the visible patches (last axis) on the whole grid of patches; zero for masked patches.

    >>> over_all(np.array([1.0, 2.0]), np.array([True, False, True])).tolist()
    [1.0, 0.0, 2.0]
    """
    whole: Floats = np.zeros((*values.shape[:-1], len(visible)))
    whole[..., visible] = values
    return whole


def pixels(values: Floats, layout: PatchLayout, size: tuple[int, int] | None = None) -> Floats:
    """Return values of patches for every pixel of the image, smooth between patches; NaN outside the encoder's view.

    `size` is (width, height) of the result: by default that of the original image.
    """
    width, height = size or layout.size
    boxes = float64(layout.boxes).reshape(*layout.grid, 4)
    across = _spread(boxes[0][:, (0, 2)] * width / layout.size[0], width)
    down = _spread(boxes[:, 0][:, (1, 3)] * height / layout.size[1], height)
    result: Floats = down @ values.reshape(layout.grid) @ across.T
    return result


def _spread(cells: Floats, length: int) -> Floats:
    """Return weights of cells (start, end) at each of `length` pixels, linear between centres; NaN outside."""
    # A cell that is entirely in padding has no width and nothing to show.
    real = np.flatnonzero(cells[:, 1] > cells[:, 0])
    centres = cells[real].mean(axis=1)
    at = np.arange(length) + 0.5
    weights = np.zeros((length, len(cells)))
    for number, cell in enumerate(real):
        weights[:, cell] = np.interp(at, centres, np.eye(len(real))[number])
    weights[(at < cells[real, 0].min()) | (at > cells[real, 1].max())] = np.nan
    return weights


def strongest(values: Floats, layout: PatchLayout, count: int) -> list[dict[str, float]]:
    """Return the boxes, in pixels of the image, of the patches with the largest values, strongest first."""
    order = np.argsort(-values, kind="stable")[:count]
    names = ("left", "top", "right", "bottom")
    boxes = [dict(zip(names, layout.boxes[number].tolist(), strict=True)) for number in order]
    return [box | {"value": float(values[number])} for number, box in zip(order, boxes, strict=True)]
