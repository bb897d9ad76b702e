r"""What the words of a caption are worth as evidence, word by word.

Under calibration a token's support term is, up to its share, its evidence
:math:`e_j = \log P_{img}(y_j) - \overline{\log P_b(y_j)}`: how many nats more this picture expects the word than
pictures in general do. Three readings of it are made here, and all stay sums over tokens:

.. math::
    \text{support} = -\sum_j \omega_j e_j + \tau\,\ell\,m \sum_{j\ \text{new}} r_j^2 \max(\tfrac12 - a(e_j - z),\, 0)

.. math::
    \text{information} = \frac{\sum_{j\ \text{new}} r_j^{1/4} e_j}{\sqrt{\sum_{j\ \text{new}} r_j^{1/2} s_j^2}}

:math:`r_j` says how well the encoder can judge the word (0: not at all), and :math:`s_j` how far its evidence spreads
over background pictures. Support is a mean of evidence; the longer the caption is (:math:`\ell` from 0 to 1), the more
it goes by the words that can be judged, :math:`\omega_j \propto r_j^{\ell + (1-\ell)/4}`, and with a weight
:math:`\tau` doubtful words count on their own, however many others there are: :math:`a(e - z)` is the log-odds of a
word that is true of the picture against a likely one that is not. In a caption of another picture nearly every word is
doubtful, and there the longer one would lose for its length alone; :math:`m` counts doubts only as far as the caption
belongs to the picture at all. Information is a sum, in units of its own spread over background pictures: it grows with
every word that is true of the picture, and is zero on average for another one, however long the caption is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from msdscore.core.divergence import total

Terms = Float[Tensor, "pairs tokens"]

MILD = 0.25  # power of reliability in captions of a sentence; docs/decisions.md
SURE = 0.5  # log-odds from which a word is in no doubt; docs/decisions.md


@dataclass(frozen=True, slots=True)
class WordCalibration:
    """How the evidence of words is to be read under one encoder, measured on captioned pictures.

    `weights` are those of known words, by stem; `other` is the weight of all other words. `slope` and `zero` turn
    evidence into log-odds; `center` and `width` say when a caption belongs to a picture. `spreads` say how far the
    evidence of known words goes over background pictures, `other_spread` that of all others.
    """

    weights: Mapping[str, float]
    other: float
    slope: float
    zero: float
    center: float
    width: float
    spreads: Mapping[str, float] = field(default_factory=dict)
    other_spread: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """For every token of every text: how well it can be judged, and whether its word is new in the caption.

    Pieces of one word share its weight; `pieces` is their number. `spreads` are those of the word. In every reading of
    evidence a piece counts as a word does: words in several pieces are rare ones, and tell more.
    """

    weights: Float[Tensor, "texts tokens"]
    new: Bool[Tensor, "texts tokens"]
    pieces: Float[Tensor, "texts tokens"]
    spreads: Float[Tensor, "texts tokens"]

    def take(self, rows: Tensor) -> "TokenWeights":
        """The weights of the chosen texts."""
        return TokenWeights(self.weights[rows], self.new[rows], self.pieces[rows], self.spreads[rows])

    def powered(self, power: float | Float[Tensor, "texts one"]) -> Terms:
        """Weights of words raised to a power, in full for each piece of a word; a weight of zero stays zero."""
        whole = (self.weights * self.pieces).clamp_min(torch.finfo(self.weights.dtype).tiny)
        return torch.where(self.weights > 0, whole**power, torch.zeros_like(whole))


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


def support_shares(tokens: TokenWeights, long: Float[Tensor, " pairs"], mask: Bool[Tensor, "pairs tokens"]) -> Terms:
    """The share of every token in support; `long` goes from 0 for a sentence to 1 for a paragraph."""
    power = (long + (1 - long) * MILD).to(tokens.weights.dtype).unsqueeze(1)
    return shares(tokens.powered(power), mask)


def log_odds(found: Terms, calibration: WordCalibration) -> Terms:
    """The log-odds of words that are true of the picture against likely ones that are not, from their evidence."""
    return calibration.slope * (found - calibration.zero)


def strength(found: Terms, tokens: TokenWeights, mask: Bool[Tensor, "pairs tokens"]) -> Float[Tensor, " pairs"]:
    """The mean evidence of a caption's words, each as far as it can be judged: the input of `belonging`."""
    return total(found * shares(tokens.powered(1.0), mask))


def belonging(
    found: Terms, tokens: TokenWeights, mask: Bool[Tensor, "pairs tokens"], calibration: WordCalibration
) -> Float[Tensor, " pairs"]:
    """How far a caption belongs to its picture rather than to any other one, from 0 to 1."""
    return torch.sigmoid((strength(found, tokens, mask) - calibration.center) / calibration.width)


def doubt_terms(found: Terms, tokens: TokenWeights, calibration: WordCalibration) -> Terms:
    """How doubtful each word is, counted once, as far as the encoder can tell."""
    short = (SURE - log_odds(found, calibration)).clamp_min(0)
    return torch.where(tokens.new, tokens.powered(2.0) * short, torch.zeros_like(short))


def information_terms(found: Terms, tokens: TokenWeights) -> Terms:
    """Each token's share of the information of its caption, in spreads over background pictures."""
    weights = torch.where(tokens.new, tokens.powered(MILD), torch.zeros_like(found))
    variance = total((weights * tokens.spreads).square())
    return weights * found / variance.clamp_min(torch.finfo(found.dtype).tiny).sqrt().unsqueeze(1)
