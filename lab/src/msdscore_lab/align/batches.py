"""The batches of a run: samples of the data, and their features by the frozen towers."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from msdscore.core.arrays import Int
from msdscore.core.embeddings import widen
from msdscore.encoders.base import prepare_all
from msdscore.errors import ConfigError, ImageError, InputError
from msdscore.io.images import open_image
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.repeatable import epoch_order, stream
from msdscore_lab.pairs import Pairs, image_content
from msdscore_torch.aligned.towers import ImageTower, TextTower
from msdscore_torch.tensors import Features

Towers = tuple[ImageTower, TextTower]
Item = TypeVar("Item")
_MAX_FAILURES = 100  # consecutive unreadable images before an error is raised
_PREFETCH = 2  # batches read before they are needed


@dataclass(frozen=True, slots=True)
class Sample:
    """One pair as a training step uses it."""

    item: int
    image: Image.Image
    captions: tuple[str, ...]


class SampleReader:
    """Draws samples; every choice depends only on (seed, epoch, pair), so that any step can be repeated."""

    def __init__(self, pairs: Pairs, recipe: Recipe) -> None:
        self.pairs, self.recipe = pairs, recipe
        self.bad: dict[int, str] = {}  # errors of pairs whose image could not be read

    def sample(self, item: int, epoch: int) -> Sample:
        """Return the sample of a pair; a pair with an unreadable image is replaced by the next readable one.

        Raises:
            InputError: If too many images in a row cannot be read.
        """
        for index in (offset % len(self.pairs) for offset in range(item, item + _MAX_FAILURES)):
            try:
                image = open_image(image_content(self.pairs.items[index].image))
                break
            except ImageError as error:
                self.bad[index] = str(error)
        else:
            raise InputError(f"{_MAX_FAILURES} consecutive images cannot be read, the last one: {self.bad[index]}")
        captions, count = self.pairs.items[index].captions, self.recipe.sample.captions
        choices = stream(self.recipe.seed, "caption", epoch, index).sample(captions, min(count, len(captions)))
        return Sample(index, image, tuple(choices[offset % len(choices)] for offset in range(count)))


def check_batch(batch: int, pairs: int) -> None:
    """Raise `ConfigError` if there are not enough pairs for a batch."""
    if batch > pairs:
        raise ConfigError(f"train.batch is {batch} but there are only {pairs} pairs; reduce it")


def read_batches(reader: SampleReader, *, start: int, stop: int, workers: int) -> Generator[list[Sample], None, None]:
    """Yield the samples of batches `start` to `stop` in order, prefetched by threads.

    The pairs of a batch depend only on its number; an incomplete last batch of an epoch is dropped.
    Threads, not worker processes: decoding releases the GIL, and images need not be copied between
    processes.
    """
    recipe, blocks, batch = reader.recipe, reader.pairs.blocks, reader.recipe.train.batch
    order_of = lru_cache(1)(partial(epoch_order, blocks, seed=recipe.seed, window=recipe.sample.window))
    per_epoch = len(reader.pairs) // batch

    def jobs(number: int) -> list[Callable[[], Sample]]:
        epoch, index = divmod(number, per_epoch)
        items = order_of(epoch=epoch)[index * batch : (index + 1) * batch]
        return [partial(reader.sample, int(item), epoch) for item in items]

    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            yield from _in_order(pool, map(jobs, range(start, stop)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, groups: Iterable[Iterable[Callable[[], Sample]]]
) -> Generator[list[Sample], None, None]:
    """Yield the results of groups of jobs, group by group, while threads work on the next groups."""
    waiting: deque[list[Future[Sample]]] = deque()
    for jobs in groups:
        waiting.append([pool.submit(job) for job in jobs])
        if len(waiting) > _PREFETCH:
            yield [future.result() for future in waiting.popleft()]
    for futures in waiting:
        yield [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Frozen features of a step's samples; captions are ordered by image, the same number per image."""

    images: Features | None  # None if the image network is trained too
    texts: Features
    captions: tuple[str, ...]
    items: Int[Tensor, " batch"]

    @property
    def captions_per_image(self) -> int:
        """The number of captions per image."""
        return len(self.texts) // len(self.items)


def make_batch(samples: Sequence[Sample], towers: Towers, *, chunk: int) -> TrainingBatch:
    """Run the frozen towers over samples, without gradients, in batches of `chunk` items."""
    image, text = towers
    captions = tuple(caption for sample in samples for caption in sample.captions)
    images = [prepare_all(image.prepare, [sample.image for sample in part]) for part in chunks(samples, chunk)]
    return TrainingBatch(
        images=_joined([image.features(part) for part in images]),
        texts=_joined([text.features(part) for part in chunks(captions, chunk)]),
        captions=captions,
        items=torch.tensor([sample.item for sample in samples], device=image.device),
    )


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Split items into batches of `size`; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _joined(parts: Sequence[Features]) -> Features:
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
        _joined(wholes) if wholes else None,
    )
