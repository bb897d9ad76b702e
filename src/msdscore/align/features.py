"""Features of the frozen towers for one step's samples, and the batch that the loss reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.align.data.formats import Pairs
from msdscore.align.data.samples import Sample
from msdscore.core.embeddings import unit, widen
from msdscore.encoders.aligned.towers import ImageTower, TextTower
from msdscore.encoders.base import Features, TokenLayout, prepare_all
from msdscore.errors import ConfigError
from msdscore.io.hashing import text_key
from msdscore.text.words import stem, words_at

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Frozen features of a step's samples, and what the terms of the loss need beside them.

    Captions lie image by image, the same number of each.
    """

    images: Features | None  # None where the image network is trained too
    texts: Features
    negatives: Features | None
    negative_owner: Int[Tensor, " negatives"]  # the caption of every hard negative
    captions: tuple[str, ...]
    items: Int[Tensor, " batch"]
    token_words: Int[Tensor, "captions points"]  # a number for the word of every token
    image_words: Int[Tensor, "batch words"]  # numbers of the words of all captions of an image; -1: padding
    sentences: Float[Tensor, "captions dim"] | None = None  # frozen sentence vectors, where a term grades relevance
    references: Float[Tensor, "batch dim"] | None = None  # their mean over all captions of each image

    @property
    def each(self) -> int:
        """Captions per image."""
        return len(self.texts) // len(self.items)


class TowerFeatures:
    """Features computed when they are needed; the towers read `chunk` items at once."""

    def __init__(self, image: ImageTower, text: TextTower, chunk: int) -> None:
        self.image, self.text, self.chunk = image, text, chunk

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""
        images = [sample.image for sample in samples if sample.image is not None]
        return join_features(
            [self.image.features(prepare_all(self.image, part)) for part in chunks(images, self.chunk)]
        )

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""
        return self.encode([caption for sample in samples for caption in sample.captions])

    def encode(self, texts: Sequence[str]) -> Features:
        """Features of any texts."""
        return join_features([self.text.features(part) for part in chunks(texts, self.chunk)])


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Split items into runs of `size`; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def join_features(parts: Sequence[Features]) -> Features:
    """Concatenate batches, padded to the longest item."""
    if len(parts) == 1:
        return parts[0]
    wholes = [part.whole for part in parts if part.whole is not None]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    width = max(part.mask.shape[1] for part in parts)
    return Features(
        torch.cat([widen(part.points, width) for part in parts]),
        torch.cat([widen(part.mask, width) for part in parts]),
        torch.cat(pooled) if pooled else None,
        tuple(layout for part in parts for layout in part.layout),
        join_features(wholes) if wholes else None,
    )


def token_layouts(features: Features) -> tuple[TokenLayout, ...]:
    """The layouts of captions."""
    return tuple(layout for layout in features.layout if isinstance(layout, TokenLayout))


def make_batch(
    samples: Sequence[Sample],
    source: TowerFeatures,
    *,
    device: torch.device,
    references: Float[Tensor, "pairs dim"] | None = None,
) -> TrainingBatch:
    """Run the frozen towers over samples; nothing in the result has a history."""
    images, texts = source.images(samples), source.texts(samples)
    captions = tuple(caption for sample in samples for caption in sample.captions)
    negatives = [own for sample in samples for own in sample.negatives]
    owned = [(row, text) for row, own in enumerate(negatives) for text in own]
    words = [
        [stem(word) for word in words_at(caption, layout.spans)]
        for caption, layout in zip(captions, token_layouts(texts), strict=True)
    ]
    items = torch.tensor([sample.item for sample in samples], device=device)
    return TrainingBatch(
        images=images,
        texts=texts,
        negatives=source.encode([text for _, text in owned]) if owned else None,
        negative_owner=torch.tensor([row for row, _ in owned], dtype=torch.int64, device=device),
        captions=captions,
        items=items,
        token_words=_numbers(words, device, width=texts.mask.shape[1]),
        image_words=_numbers([sorted(sample.words) for sample in samples], device),
        sentences=None if references is None else sentence_vectors(texts),
        references=None if references is None else references[items],
    )


def _numbers(rows: Sequence[Sequence[str]], device: torch.device, *, width: int = 1) -> Int[Tensor, "rows width"]:
    wide = max(width, *map(len, rows)) if rows else width
    keys = [[*map(text_key, row), *[-1] * (wide - len(row))] for row in rows]
    return torch.tensor(keys, dtype=torch.int64, device=device)


def sentence_vectors(texts: Features) -> Float[Tensor, "captions dim"]:
    """Unit sentence vectors of captions, by the frozen text tower alone.

    Raises:
        ConfigError: the tower gives none.
    """
    if texts.pooled is None:
        raise ConfigError("loss.relevance needs a text tower that gives sentence vectors; this one gives none")
    return unit(texts.pooled.float())


@torch.no_grad()
def image_references(pairs: Pairs, tower: TextTower, *, chunk: int) -> Float[Tensor, "pairs dim"]:
    """The mean sentence vector of all captions of every image: products with it are mean cosines."""
    captions = (caption for pair in pairs.items for caption in pair.captions)
    parts = []
    while texts := list(islice(captions, chunk)):
        parts.append(sentence_vectors(tower.features(texts)))
    vectors = torch.cat(parts)
    sizes = torch.tensor([len(pair.captions) for pair in pairs.items], device=vectors.device)
    owner = torch.arange(len(pairs), device=vectors.device).repeat_interleave(sizes)
    sums = vectors.new_zeros(len(pairs), vectors.shape[1]).index_add(0, owner, vectors)
    return sums / sizes.unsqueeze(1)
