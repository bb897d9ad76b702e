r"""What the words of a caption are worth as evidence, word by word.

Under calibration a token's support term is, up to its share, its evidence
:math:`e_j = \log P_{img}(y_j) - \overline{\log P_b(y_j)}`: how many nats more this picture expects the word than
pictures in general do. Two readings of it are made here, and both stay sums over tokens:

.. math::
    \text{support} = -\sum_j \omega_j e_j,\quad \omega_j = w_j / \textstyle\sum w,\qquad
    \text{information} = m \sum_{j\ \text{new}} w_j\, a\, (e_j - z),\quad m = \sigma\bigl((-\text{support} - c)/b\bigr)

:math:`w_j` says how well the encoder can judge the word (0: not at all). :math:`a (e - z)` is the log-odds of a word
that is true of the picture against a likely one that is not, so a true word adds and a false one takes away. A caption
of another picture is nearly all false, and there the longer one would lose for its length alone; :math:`m` counts
information only as far as the caption belongs to the picture at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from msdscore.core.divergence import total

Terms = Float[Tensor, "pairs tokens"]


@dataclass(frozen=True, slots=True)
class WordCalibration:
    """How the evidence of words is to be read under one encoder, measured on captioned pictures.

    `weights` are those of known words, by stem; `other` is the weight of all other words. `slope` and `zero` turn
    evidence into log-odds; `center` and `width` are those of the gate on information.
    """

    weights: Mapping[str, float]
    other: float
    slope: float
    zero: float
    center: float
    width: float


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """For every token of every text: how well it can be judged, and whether its word is new in the caption.

    Pieces of one word share its weight.
    """

    weights: Float[Tensor, "texts tokens"]
    new: Bool[Tensor, "texts tokens"]


def evidence(support_terms: Terms, mask: Bool[Tensor, "pairs tokens"]) -> Terms:
    """The evidence of every token from calibrated support terms, which are its negative shares.

    >>> evidence(torch.tensor([[-1.0, 0.5, 0.0]]), torch.tensor([[True, True, False]]))
    tensor([[ 2., -1., -0.]])
    """
    return -support_terms * mask.sum(dim=1, keepdim=True)


def shares(weights: Terms, mask: Bool[Tensor, "pairs tokens"]) -> Terms:
    """Weights that add up to 1 over the real tokens; equal ones where no word can be judged.

    >>> shares(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([[True, True], [True, True]]))
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000]])
    """
    real = mask.to(weights.dtype)
    chosen = torch.where((weights * real).sum(dim=1, keepdim=True) > 0, weights * real, real)
    return chosen / total(chosen).clamp_min(torch.finfo(weights.dtype).tiny).unsqueeze(1)


def weighed_support(found: Terms, weights: Terms, mask: Bool[Tensor, "pairs tokens"]) -> Terms:
    r"""Support terms :math:`-\omega_j e_j` from evidence."""
    return -found * shares(weights, mask)


def log_odds(found: Terms, calibration: WordCalibration) -> Terms:
    """The log-odds of words that are true of the picture against likely ones that are not, from their evidence."""
    return calibration.slope * (found - calibration.zero)


def information_terms(
    found: Terms,
    tokens: TokenWeights,
    support: Float[Tensor, " pairs"],
    calibration: WordCalibration,
) -> Terms:
    """Each token's share of the information of its caption, in nats; `tokens` holds one row per pair."""
    gate = torch.sigmoid((-support - calibration.center) / calibration.width)
    odds = log_odds(found, calibration)
    return gate.unsqueeze(1) * torch.where(tokens.new, tokens.weights * odds, torch.zeros_like(odds))
