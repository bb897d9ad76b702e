"""Batches of resident training: nothing is read, decoded or tokenised during training."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float, Int
from msdscore.core.embeddings import unit
from msdscore.errors import ConfigError
from msdscore_lab.align.batches import TrainingBatch
from msdscore_lab.align.repeatable import draw
from msdscore_lab.pairs import Pairs
from msdscore_torch.aligned.lite2_images import Lite2Images
from msdscore_torch.aligned.minilm import MiniLMTexts
from msdscore_torch.tensors import Features
from train_mini.images import OnProgress, ResidentImages, decoded_images
from train_mini.prepare import prepare_texts, train_pairs
from train_mini.recipe import MiniRecipe
from train_mini.sampling import Pools, grouped_order, nearest, step_texts
from train_mini.texts import TextPool, TokenRows
from train_mini.words import Labels, alike_words, caption_words, word_labels

_READ = 4096  # captions per batch of the text tower before the run
_WIDTH = 48  # tokens of them

MiniTowers = tuple[Lite2Images, MiniLMTexts]


@dataclass(frozen=True, slots=True)
class OwnedTexts:
    """Texts about images of a batch."""

    texts: Features
    words: Int[Tensor, "texts points"]  # the word id of every token; negative: unknown
    owner: Int[Tensor, " texts"]  # the image of each, by its index in the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentBatch(TrainingBatch):
    """A batch with labels of every word in every image; groups of similar images are contiguous."""

    negatives: Features | None  # hard negatives
    negative_owner: Int[Tensor, " negatives"]  # the caption of each
    token_words: Int[Tensor, "captions points"]  # the word id of every token
    sentences: Float[Tensor, "captions dim"]  # frozen sentence vectors
    references: Float[Tensor, "batch dim"]  # their mean over all captions of each image
    pixels: Float[Tensor, "batch 3 side side"] | None  # values from 0 to 255, if the image network is trained too
    labels: Labels  # 1 present, 0 absent, −1 unsure
    counts: Float[Tensor, " words"]  # images whose captions have each word
    group: int
    by_rule: tuple[OwnedTexts, ...]  # hard negatives, short and long texts: some of their words are false
    machine: OwnedTexts | None  # captions by a machine, if any image has one
    classes: Features  # names of all classes of objects
    objects: Bool[Tensor, "batch classes"]
    annotated: Bool[Tensor, " batch"]  # whose objects are known


@dataclass(frozen=True, slots=True)
class ResidentBatches:
    """Batches of images and texts on the device; each is a pure function of the seed and its number."""

    recipe: MiniRecipe
    towers: MiniTowers
    images: ResidentImages
    pools: Pools
    labels: Labels
    counts: Float[Tensor, " words"]  # images whose captions have each word
    references: Float[Tensor, "images dim"]
    train: Int[Tensor, " positions"]  # the image at every position of an epoch
    near: npt.NDArray[np.int64]  # positions in `train`, nearest first
    objects: Bool[Tensor, "images classes"]
    annotated: Bool[Tensor, " images"]  # whose objects are known
    bad: Mapping[int, str]

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return len(self.train) // self.recipe.train.batch

    def batches(self, start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        """Yield batches by number, from `start` up to `stop`."""
        size, order, known = self.recipe.train.batch, np.zeros(0, dtype=np.int64), -1
        for number in range(start, stop):
            epoch, index = divmod(number, self.per_epoch)
            if epoch != known:
                order, known = self._order(epoch), epoch
            positions = torch.from_numpy(order[index * size : (index + 1) * size]).to(self.train.device)
            yield self._batch(self.train[positions], number)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        seed, group = self.recipe.seed, self.recipe.sample.group
        if group == 1:
            return np.random.default_rng([seed, epoch]).permutation(len(self.train))
        order = grouped_order(self.near, self.train.cpu().numpy(), group=group, seed=seed, epoch=epoch)
        # Images outside of groups: some others are repeated, so that every epoch has the same number of batches.
        return np.resize(order, self.per_epoch * self.recipe.train.batch)

    @torch.no_grad()
    def _batch(self, items: Int[Tensor, " batch"], number: int) -> ResidentBatch:
        spec, loss, tuned, image = self.recipe.sample, self.recipe.loss, self.recipe.train.tune, self.towers[0]
        generator = torch.Generator(items.device).manual_seed(draw(self.recipe.seed, "batch", number))
        pixels = self.images.views(items, spec, size=image.side, generator=generator)
        drawn = step_texts(self.pools, items, spec, generator=generator)
        texts, token_words = self._read(drawn.captions)
        negatives = OwnedTexts(*self._read(drawn.negative), drawn.negative_owner // 2)
        short = OwnedTexts(*self._read(drawn.short), drawn.short_owner)
        long = OwnedTexts(*self._read(drawn.long), drawn.long_owner)
        has_negatives, has_machine = len(drawn.negative_owner) > 0, len(drawn.machine_owner) > 0
        return ResidentBatch(
            images=None if tuned else image.see(pixels),
            pixels=pixels if tuned else None,
            texts=texts,
            negatives=negatives.texts if has_negatives else None,
            negative_owner=drawn.negative_owner,
            captions=(),
            items=items,
            token_words=token_words,
            sentences=sentence_vectors(texts),
            references=self.references[items],
            labels=self.labels[items],
            counts=self.counts,
            group=spec.group,
            by_rule=(short, long, *((negatives,) if has_negatives else ())),
            machine=OwnedTexts(*self._read(drawn.machine), drawn.machine_owner)
            if loss.over_machine and has_machine
            else None,
            classes=self._read(drawn.classes)[0],
            objects=self.objects[items],
            annotated=self.annotated[items],
        )

    def _read(self, rows: TokenRows) -> tuple[Features, Int[Tensor, "texts content"]]:
        return read_rows(self.towers[1], rows)


def open_resident(
    recipe: MiniRecipe,
    pairs: Pairs,
    towers: MiniTowers,
    *,
    workers: int,
    cache: Path | None,
    on_progress: OnProgress | None = None,
) -> ResidentBatches:
    """Decode all images, prepare all texts and move both to the device.

    Raises:
        ConfigError: If there are fewer images than in a batch.
    """
    image, text = towers
    pairs = train_pairs(pairs, recipe.sample)
    prepared = prepare_texts(pairs, recipe, text, cache=cache)
    side = recipe.sample.stored or image.side
    decoded = decoded_images(pairs, side=side, workers=workers, cache=cache, on_progress=on_progress)
    times = [0 if item in decoded.bad else pair.times for item, pair in enumerate(pairs.items)]
    train = np.repeat(np.arange(len(pairs)), times)
    if len(train) < recipe.train.batch:
        raise ConfigError(f"train.batch is {recipe.train.batch} but there are only {len(train)} pairs; make it smaller")
    pools = Pools(**{kind: TextPool(flat, text) for kind, flat in prepared.texts.items()})
    device, facts = text.device, prepared.facts
    references, numbers = _references(pools.captions, text, len(pairs)), torch.from_numpy(train).to(device)
    words = len(facts.counts)
    alike = alike_words(pools.captions, text.network.words.weight, words=words, limit=recipe.sample.alike)
    return ResidentBatches(
        recipe=recipe,
        towers=towers,
        images=ResidentImages(torch.from_numpy(decoded.pixels).to(device), torch.from_numpy(prepared.sided).to(device)),
        pools=pools,
        labels=word_labels(caption_words(pools.captions, len(pairs), words), facts, alike),
        counts=torch.from_numpy(facts.counts).to(device).float(),
        references=references,
        train=numbers,
        near=nearest(references[numbers], numbers),
        objects=torch.from_numpy(facts.objects).to(device),
        annotated=torch.from_numpy(facts.annotated).to(device),
        bad=decoded.bad,
    )


def read_rows(tower: MiniLMTexts, rows: TokenRows) -> tuple[Features, Int[Tensor, "texts content"]]:
    """Return features of texts, and the word id of every token on their local path."""
    short = rows.trimmed()
    positions, mask, words = short.content_positions()
    return tower.read(short.ids, short.mask, positions, mask), words


def sentence_vectors(texts: Features) -> Float[Tensor, "captions dim"]:
    """Return unit sentence vectors of captions, by the frozen text tower."""
    assert texts.pooled is not None, "the text tower of mini has sentence vectors"
    return unit(texts.pooled.float())


@torch.no_grad()
def _references(captions: TextPool, tower: MiniLMTexts, images: int) -> Float[Tensor, "images dim"]:
    """Return the mean sentence vector of all captions of every image."""
    parts = []
    for index in torch.arange(len(captions), device=tower.device).split(_READ):
        parts.append(sentence_vectors(read_rows(tower, captions.rows(index, _WIDTH))[0]))
    vectors = torch.cat(parts)
    sums = vectors.new_zeros(images, vectors.shape[1]).index_add(0, captions.owners, vectors)
    return sums / captions.counts.clamp_min(1).unsqueeze(1)
