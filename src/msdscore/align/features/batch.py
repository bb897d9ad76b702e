"""The frozen features of one step's samples, and what the terms of the loss must know beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.align.data.pairs import Pairs
from msdscore.align.data.samples import Sample
from msdscore.align.features.live import FeatureSource, token_layouts
from msdscore.core.sphere import unit
from msdscore.encoders.aligned.towers.base import Features, TextTower
from msdscore.encoders.text.words import stem, words_at
from msdscore.errors import ConfigError
from msdscore.io.hashing import text_key


@dataclass(frozen=True, slots=True)
class Graded:
    """Frozen sentence vectors: of the captions, and their mean over all captions of each picture."""

    sentences: Float[Tensor, "captions dim"]
    references: Float[Tensor, "batch dim"]


@dataclass(frozen=True, slots=True)
class MadeTexts:
    """Texts by rule about the pictures of a batch, some of whose words are false."""

    texts: Features
    words: Int[Tensor, "texts points"]  # the number of every token's word; negative: none that is known
    owner: Int[Tensor, " texts"]


@dataclass(frozen=True, slots=True)
class MachineTexts:
    """Captions by a machine of some pictures of a batch."""

    texts: Features
    owner: Int[Tensor, " texts"]  # the picture of each, by its place in the batch


@dataclass(frozen=True, slots=True)
class ClassTexts:
    """Names of all classes of objects, and which of them the pictures of a batch show; only the names are local."""

    texts: Features
    objects: Bool[Tensor, "batch classes"]
    annotated: Bool[Tensor, " batch"]


@dataclass(frozen=True, slots=True)
class WordLabels:
    """What is known of every word in every picture of a batch; similar pictures lie side by side in groups."""

    labels: Int[Tensor, "batch words"]  # 1 present, 0 absent, −1 not sure
    counts: Float[Tensor, " words"]  # pictures that hold each word
    made: tuple[MadeTexts, ...]
    negative_words: Int[Tensor, "negatives points"]
    classes: ClassTexts
    group: int


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Frozen features of a step's samples, and what the terms must know beside them.

    Captions lie picture by picture, as many of each.
    """

    images: Features | None  # None where the image network is trained too: then `pixels`
    texts: Features
    negatives: Features | None
    negative_owner: Int[Tensor, " negatives"]  # the caption of every hard negative
    captions: tuple[str, ...]
    items: Int[Tensor, " batch"]
    token_words: Int[Tensor, "captions points"]  # a number for the word of every token
    picture_words: Int[Tensor, "batch words"]  # numbers of the words of all captions of a picture; -1: padding
    graded: Graded | None = None
    evidence: WordLabels | None = None
    machine: MachineTexts | None = None
    pixels: Float[Tensor, "batch 3 side side"] | None = None  # values from 0 to 255

    @property
    def each(self) -> int:
        """Captions of a picture."""
        return len(self.texts) // len(self.items)


def make_batch(
    samples: Sequence[Sample],
    source: FeatureSource,
    *,
    device: torch.device,
    references: Float[Tensor, "pairs dim"] | None = None,
) -> TrainingBatch:
    """Run the frozen towers over some samples; nothing in the result has a history."""
    images, texts = source.images(samples), source.texts(samples)
    captions = tuple(caption for sample in samples for caption in sample.captions)
    owned = [(row, text) for row, own in enumerate(_own_negatives(samples)) for text in own]
    words = [
        [stem(word) for word in words_at(caption, layout.spans)]
        for caption, layout in zip(captions, token_layouts(texts), strict=True)
    ]
    items = torch.tensor([sample.item for sample in samples], device=device)
    return TrainingBatch(
        images=images,
        texts=texts,
        negatives=source.negatives([text for _, text in owned]) if owned else None,
        negative_owner=torch.tensor([row for row, _ in owned], dtype=torch.int64, device=device),
        captions=captions,
        items=items,
        token_words=_numbers(words, device, width=texts.local.mask.shape[1]),
        picture_words=_numbers([sorted(sample.words) for sample in samples], device),
        graded=None if references is None else Graded(sentence_vectors(texts), references[items]),
    )


def _own_negatives(samples: Sequence[Sample]) -> list[tuple[str, ...]]:
    return [own for sample in samples for own in sample.negatives]


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
