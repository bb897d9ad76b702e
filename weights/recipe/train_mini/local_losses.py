"""Losses on local vectors as pure functions: the best patches of tokens, words, and divergences of mixtures."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float, Int
from msdscore.core.mixture import FitSettings, Mixture, fit, log_density
from msdscore.encoders.base import Embeddings
from msdscore_lab.align.objective import Scalar, Table

_MASKED = -1e9  # finite, because the gradient of a row of -inf is NaN
MAX_TABLE_SIZE = 1 << 27  # maximum number of token-to-patch similarities in memory


def token_table(images: Embeddings, tokens: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens batch"]:
    r"""Best patch of each image for each token, :math:`\max_i x_i \cdot y_j` over the real patches.

    On CUDA products are computed in bfloat16, with gradients of the maxima only.
    """
    table: Tensor = _BestPatch.apply(tokens, images.points, images.mask)  # type: ignore[no-untyped-call]
    return table


class _BestPatch(torch.autograd.Function):
    """The best patch of every image for every token; only the maxima are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, points: Tensor, mask: Tensor) -> Tensor:
        dtype = torch.bfloat16 if tokens.is_cuda else tokens.dtype
        patches, padding = points.to(dtype).flatten(0, 1).mT, (~mask).flatten()
        values, winners = [], []
        for part in tokens.to(dtype).split(_tokens_per_part(mask)):
            best = (part @ patches).masked_fill_(padding, -torch.inf).unflatten(1, mask.shape).max(dim=2)
            values.append(best.values)
            winners.append(best.indices.to(torch.int16))
        ctx.save_for_backward(tokens, points, torch.cat(winners))
        return torch.cat(values).to(tokens.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        tokens, points, winners = ctx.saved_tensors
        dtype = torch.bfloat16 if tokens.is_cuda else tokens.dtype
        patches, points_grad = points.to(dtype).flatten(0, 1), torch.zeros_like(points).flatten(0, 1)
        tokens_grad, rows = torch.empty_like(tokens), _tokens_per_part(points[..., 0])
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            table = gradients[0].new_zeros(*winners[part].shape, points.shape[1], dtype=dtype)
            table.scatter_(2, winners[part].long().unsqueeze(2), gradients[0][part].to(dtype).unsqueeze(2))
            flat = table.flatten(1)
            tokens_grad[part] = (flat @ patches).to(tokens.dtype)
            points_grad += (flat.mT @ tokens[part].to(dtype)).to(points.dtype)
        return tokens_grad, points_grad.view_as(points), None


def _tokens_per_part(patches: Tensor) -> int:
    """Return the number of tokens whose similarities to all patches fit in memory."""
    return max(1, MAX_TABLE_SIZE // max(1, patches.numel()))


def caption_table(
    table: Float[Tensor, "tokens images"], mask: Bool[Tensor, "batch points"]
) -> Float[Tensor, "images batch"]:
    """Similarity of each image and caption: the mean over the caption's tokens."""
    owner = mask.nonzero()[:, 0]
    sums = table.new_zeros(mask.shape[0], table.shape[1]).index_add(0, owner, table)
    return (sums / mask.sum(dim=1, keepdim=True).clamp_min(1)).mT


def word_loss(
    table: Float[Tensor, "tokens batch"],
    owner: Int[Tensor, " tokens"],
    absent: Bool[Tensor, "tokens batch"],
    scale: Scalar,
) -> Scalar:
    """Contrastive loss of a word's image against images without the word, and of an image's words against absent ones.

    `absent[t, b]` is True if no caption of image b has the word of token t; a pair that is neither present nor absent
    is ignored, since the word may be visible there.
    """
    logits = table * scale
    own_logits = logits.gather(1, owner.unsqueeze(1))
    over_images = torch.cat([own_logits, logits.masked_fill(~absent, _MASKED)], dim=1)
    to_images = over_images.logsumexp(dim=1) - own_logits.squeeze(1)
    # The absent words of an image are the same for all its words, so that one sum is sufficient.
    rest = logits.masked_fill(~absent, _MASKED).logsumexp(dim=0)[owner]
    to_words = torch.logaddexp(own_logits.squeeze(1), rest) - own_logits.squeeze(1)
    return (to_images.mean() + to_words.mean()) / 2


def fit_mixtures(side: Embeddings, settings: FitSettings) -> Mixture:
    """Fit one mixture per item, differentiable through all EM iterations."""
    # The keys seed random initialisation; farthest-first initialisation does not use them.
    keys = torch.zeros(len(side), dtype=torch.int64, device=side.points.device)
    return fit(side.points, side.mask, keys, settings)


def kl_tables(
    images: Embeddings, texts: Embeddings, image_mix: Mixture, text_mix: Mixture, *, stride: int = 1
) -> tuple[Table, Table]:
    """Negative support and coverage of every image and caption of a batch; coverage uses every `stride`-th patch."""
    patches = replace(images, points=images.points[:, ::stride], mask=images.mask[:, ::stride])
    return -_divergences(texts, text_mix, image_mix).mT, -_divergences(patches, image_mix, text_mix)


def densities(points: Float[Tensor, "points dim"], mixtures: Mixture) -> Float[Tensor, "points mixtures"]:
    """log P of every point under every mixture, without the shared normaliser."""
    count, components, dim = mixtures.means.shape
    cosines = points @ mixtures.means.reshape(count * components, dim).mT
    logits = mixtures.kappa * cosines + mixtures.log_weights.reshape(1, -1)
    return logits.unflatten(1, (count, components)).logsumexp(dim=2)


def _divergences(side: Embeddings, own_mixtures: Mixture, other_mixtures: Mixture) -> Float[Tensor, "own others"]:
    """Return the KL divergence of every item's mixture from all mixtures of the other side, on the item's points."""
    owner = side.mask.nonzero()[:, 0]
    other_density = densities(side.points[side.mask], other_mixtures)
    own_density = log_density(own_mixtures, side.points)[side.mask].unsqueeze(1)
    sums = other_density.new_zeros(len(side), len(other_mixtures)).index_add(0, owner, own_density - other_density)
    return sums / side.mask.sum(dim=1, keepdim=True).clamp_min(1)
