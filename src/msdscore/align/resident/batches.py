"""The batches of a resident run: nothing is read, decoded or tokenised while it trains."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.align.data.pairs import Pairs
from msdscore.align.features.batch import (
    ClassTexts,
    Graded,
    MachineTexts,
    MadeTexts,
    TrainingBatch,
    WordLabels,
    sentence_vectors,
)
from msdscore.align.recipe import Recipe
from msdscore.align.repeatable import draw
from msdscore.align.resident.pictures import ResidentPictures, Tell, squares
from msdscore.align.resident.prepare import PreparedTexts, prepare_texts, train_pairs
from msdscore.align.resident.sampling import Pools, StepTexts, grouped_order, nearest, step_texts
from msdscore.align.resident.texts import TextPool, TokenRows
from msdscore.align.resident.towers import DeviceImages, DeviceTexts
from msdscore.align.resident.words import Labels, alike_words, held_words, word_labels
from msdscore.encoders.aligned.towers.base import Features
from msdscore.errors import ConfigError

_READ = 4096  # captions that the text tower reads at once before the run
_WIDTH = 48  # tokens of them


@dataclass(frozen=True, slots=True)
class ResidentBatches:
    """Batches whose pictures and texts lie on the device; each is a pure function of the seed and its number."""

    recipe: Recipe
    towers: tuple[DeviceImages, DeviceTexts]
    pictures: ResidentPictures
    pools: Pools
    labels: Labels
    counts: Float[Tensor, " words"]  # pictures that hold each word
    references: Float[Tensor, "pictures dim"]
    train: Int[Tensor, " places"]  # the picture at every place of an epoch
    near: npt.NDArray[np.int64]  # places in `train`, nearest first
    objects: Bool[Tensor, "pictures classes"]
    annotated: Bool[Tensor, " pictures"]  # whose objects are known
    bad: Mapping[int, str]

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return len(self.train) // self.recipe.train.batch

    @property
    def classes(self) -> int:
        """Classes of objects that have labels."""
        return self.objects.shape[1]

    @property
    def words(self) -> int:
        """Words that have labels."""
        return self.labels.shape[1]

    def batches(self, start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        """Batches by number, from `start` to before `stop`."""
        size, order, known = self.recipe.train.batch, np.zeros(0, dtype=np.int64), -1
        for number in range(start, stop):
            epoch, index = divmod(number, self.per_epoch)
            if epoch != known:
                order, known = self._order(epoch), epoch
            places = torch.from_numpy(order[index * size : (index + 1) * size]).to(self.train.device)
            yield self._batch(self.train[places], number)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        seed, group = self.recipe.seed, self.recipe.sample.group
        if group == 1:
            return np.random.default_rng([seed, epoch]).permutation(len(self.train))
        order = grouped_order(self.near, self.train.cpu().numpy(), group=group, seed=seed, epoch=epoch)
        # Pictures that filled no group: some are shown again, so that every epoch has as many batches.
        return np.resize(order, self.per_epoch * self.recipe.train.batch)

    @torch.no_grad()
    def _batch(self, items: Int[Tensor, " batch"], number: int) -> TrainingBatch:
        spec, image = self.recipe.sample, self.towers[0]
        generator = torch.Generator(items.device).manual_seed(draw(self.recipe.seed, "batch", number))
        pixels = self.pictures.views(items, spec, size=image.side, generator=generator)
        drawn = step_texts(self.pools, items, spec, generator=generator)
        texts, token_words = self._read(drawn.captions)
        negatives, negative_words = self._read(drawn.negative)
        made = tuple(
            MadeTexts(*self._read(rows), owner)
            for rows, owner in ((drawn.short, drawn.short_owner), (drawn.long, drawn.long_owner))
        )
        classes = ClassTexts(self._read(drawn.classes)[0], self.objects[items], self.annotated[items])
        evidence = WordLabels(self.labels[items], self.counts, made, negative_words, classes, spec.group)
        return TrainingBatch(
            images=None if self.recipe.train.tune else image.see(pixels),
            pixels=pixels if self.recipe.train.tune else None,
            texts=texts,
            negatives=negatives if len(drawn.negative_owner) else None,
            negative_owner=drawn.negative_owner,
            captions=(),
            items=items,
            token_words=token_words,
            picture_words=items.new_zeros(len(items), 0),
            graded=Graded(sentence_vectors(texts), self.references[items]),
            evidence=evidence,
            machine=self._machine(drawn) if self.recipe.loss.over_machine else None,
        )

    def _machine(self, drawn: StepTexts) -> MachineTexts | None:
        """Machines' captions, where any picture of the batch has one."""
        if not len(drawn.machine_owner):
            return None
        return MachineTexts(self._read(drawn.machine)[0], drawn.machine_owner)

    def _read(self, rows: TokenRows) -> tuple[Features, Int[Tensor, "texts kept"]]:
        return read_rows(self.towers[1], rows)


def open_resident(
    recipe: Recipe,
    pairs: Pairs,
    towers: tuple[DeviceImages, DeviceTexts],
    *,
    workers: int,
    cache: Path | None,
    tell: Tell | None = None,
) -> ResidentBatches:
    """Decode all pictures, prepare all texts and bring both to the device.

    Raises:
        ConfigError: there are fewer pictures than a batch holds.
    """
    image, text = towers
    pairs = train_pairs(pairs, recipe.sample)
    prepared = prepare_texts(pairs, recipe, text, cache=cache)
    decoded = squares(pairs, side=recipe.sample.stored or image.side, workers=workers, cache=cache, tell=tell)
    times = [0 if item in decoded.bad else pair.times for item, pair in enumerate(pairs.items)]
    train = np.repeat(np.arange(len(pairs)), times)
    if len(train) < recipe.train.batch:
        raise ConfigError(f"train.batch is {recipe.train.batch} but there are only {len(train)} pairs; make it smaller")
    pools = _pools(prepared, text)
    device = text.device
    references, numbers = _references(pools.captions, text, len(pairs)), torch.from_numpy(train).to(device)
    words = len(prepared.facts.counts)
    alike = alike_words(pools.captions, text.embeddings, words=words, limit=recipe.sample.alike)
    return ResidentBatches(
        recipe=recipe,
        towers=towers,
        pictures=ResidentPictures(
            torch.from_numpy(decoded.pixels).to(device), torch.from_numpy(prepared.sided).to(device)
        ),
        pools=pools,
        labels=word_labels(held_words(pools.captions, len(pairs), words), prepared.facts, alike),
        counts=torch.from_numpy(prepared.facts.counts).to(device).float(),
        references=references,
        train=numbers,
        near=nearest(references[numbers], numbers),
        objects=torch.from_numpy(prepared.facts.objects).to(device),
        annotated=torch.from_numpy(prepared.facts.annotated).to(device),
        bad=decoded.bad,
    )


def read_rows(tower: DeviceTexts, rows: TokenRows) -> tuple[Features, Int[Tensor, "texts kept"]]:
    """Features of some texts, and the number of the word of every token on their local path."""
    short = rows.trimmed()
    content = short.content_places()
    return tower.read(short.ids, short.mask, content.places, content.mask), content.words


def _pools(prepared: PreparedTexts, tower: DeviceTexts) -> Pools:
    return Pools(**{kind: TextPool(flat, tower) for kind, flat in prepared.texts.items()})


@torch.no_grad()
def _references(captions: TextPool, tower: DeviceTexts, pictures: int) -> Float[Tensor, "pictures dim"]:
    """The mean sentence vector of all captions of every picture."""
    parts = []
    for index in torch.arange(len(captions), device=tower.device).split(_READ):
        parts.append(sentence_vectors(read_rows(tower, captions.rows(index, _WIDTH))[0]))
    vectors = torch.cat(parts)
    sums = vectors.new_zeros(pictures, vectors.shape[1]).index_add(0, captions.owners, vectors)
    return sums / captions.counts.clamp_min(1).unsqueeze(1)
