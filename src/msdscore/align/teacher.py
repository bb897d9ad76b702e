"""What frozen sentence vectors say of every picture: the reference that graded relevance is measured by."""

from collections.abc import Sequence
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.align.pairs import Pairs
from msdscore.core.sphere import unit
from msdscore.encoders.towers import Features, TextTower
from msdscore.errors import ConfigError


def sentence_vectors(texts: Features) -> Float[Tensor, "captions dim"]:
    """Unit sentence vectors of captions, by the frozen text tower alone.

    Raises:
        ConfigError: the tower gives none.
    """
    if texts.pooled is None:
        raise ConfigError("loss.relevance needs a text tower that gives sentence vectors; this one gives none")
    return unit(texts.pooled.float())


@torch.no_grad()
def picture_references(pairs: Pairs, tower: TextTower, *, chunk: int) -> Float[Tensor, "pairs dim"]:
    """The mean sentence vector of all captions of every picture: products with it are mean cosines."""
    counts = [len(pair.captions) for pair in pairs.items]
    captions = (caption for pair in pairs.items for caption in pair.captions)
    parts = []
    while texts := list(islice(captions, chunk)):
        parts.append(sentence_vectors(tower.features(texts)))
    return _means(torch.cat(parts), counts)


def _means(vectors: Float[Tensor, "captions dim"], counts: Sequence[int]) -> Float[Tensor, "pairs dim"]:
    sizes = torch.tensor(counts, device=vectors.device)
    owner = torch.arange(len(counts), device=vectors.device).repeat_interleave(sizes)
    sums = vectors.new_zeros(len(counts), vectors.shape[1]).index_add(0, owner, vectors)
    return sums / sizes.unsqueeze(1)
