r"""What a caption omits and what it invents: two directed divergences, kept as one term per point.

.. math::
    \text{coverage} = \sum_i c_i,\quad c_i = \tfrac{1}{N}(\log P_{img}(x_i) - \log P_{txt}(x_i)),\qquad
    \text{support} = \sum_j s_j,\quad s_j = \tfrac{1}{M}(\log P_{txt}(y_j) - \log P_{img}(y_j))

The formulas are here; `schedule` applies them to many pairs.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from msdscore.core.mixture import Mixture
from msdscore.core.sphere import counts


@dataclass(frozen=True, slots=True)
class Divergence:
    """Terms per patch and per token of every pair; the score is their sum, the explanation is the terms.

    The mixtures, one per image and one per text, are kept so that an explanation can say where a density comes from.
    """

    coverage_terms: Float[Tensor, "pairs patches"]
    support_terms: Float[Tensor, "pairs tokens"]
    image_mixtures: Mixture
    text_mixtures: Mixture

    @property
    def coverage(self) -> Float[Tensor, " pairs"]:
        """KL(image‖text): what the caption omits."""
        return total(self.coverage_terms)

    @property
    def support(self) -> Float[Tensor, " pairs"]:
        """KL(text‖image): what the caption invents."""
        return total(self.support_terms)


def share(
    difference: Float[Tensor, "batch points"], mask: Bool[Tensor, "batch points"]
) -> Float[Tensor, "batch points"]:
    """Differences of log densities as terms of a mean over the real points; padding is zero."""
    size = counts(mask).clamp_min(1).unsqueeze(1)
    return (difference / size).masked_fill(~mask, 0.0)


def total(terms: Float[Tensor, "batch points"]) -> Float[Tensor, " batch"]:
    """The sum of each row, made by adding halves of the row.

    A library's sum may take another order for another batch or device. Here the order is fixed: the width is a power
    of two, and a wider row only adds zeros, so the same terms have the same sum, bit for bit, in any batch and on any
    device.

    >>> import torch
    >>> total(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([7.])
    """
    width = 1 << max(terms.shape[1] - 1, 0).bit_length()
    rest = pad(terms, (0, width - terms.shape[1]))
    while rest.shape[1] > 1:
        half = rest.shape[1] // 2
        rest = rest[:, :half] + rest[:, half:]
    return rest.squeeze(1)
