"""The samples of a batch: a view of each image, captions, hard negatives, and the words of all its captions."""

import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import TypeVar

import numpy as np
from PIL import Image

from msdscore.errors import ConfigError, ImageError, InputError
from msdscore.io.images import open_image
from msdscore.text.words import content_words, each_word, stem
from msdscore_lab.align.data.negatives import class_weights, make_negatives
from msdscore_lab.align.processes import World
from msdscore_lab.align.recipe import Recipe, SampleSpec
from msdscore_lab.align.repeatable import draw, epoch_order, stream
from msdscore_lab.edits import words_of
from msdscore_lab.pairs import Pairs, TrainingPair, image_content

_MAX_FAILURES = 100  # consecutive unreadable images before an error is raised
_PREFETCH = 2  # batches read before they are needed
_CACHED_PAIRS = 1 << 16  # pairs whose words are cached
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_ASPECTS = (0.8, 1.25)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One pair as a training step uses it; `image` is None if its features are cached."""

    item: int
    view: int
    image: Image.Image | None
    captions: tuple[str, ...]
    choices: tuple[int, ...]  # indices into the captions of the pair
    negatives: tuple[tuple[str, ...], ...]  # of each caption
    words: frozenset[str]  # stems of the content words of all captions of the image


class SampleReader:
    """Draws samples; every choice depends only on (seed, epoch, pair), so that any step can be repeated."""

    def __init__(self, pairs: Pairs, recipe: Recipe, *, cached: Collection[int] | None = None) -> None:
        self.pairs, self.recipe = pairs, recipe
        self.bad: dict[int, str] = {}  # errors of pairs whose image could not be read
        # Indices of the pairs whose features are cached; None: images are read.
        self._cached = cached
        # The words of a pair are the same in every epoch.
        self._words = lru_cache(_CACHED_PAIRS)(self._find_words)
        self._banned = lru_cache(_CACHED_PAIRS)(words_of)
        by_rule = recipe.loss.uses_negatives and recipe.sample.negative_source != "supplied"
        self._weights = class_weights(text for pair in pairs.items for text in pair.captions) if by_rule else {}

    def sample(self, item: int, epoch: int) -> Sample:
        """Return the sample of a pair; a pair with an unreadable image is replaced by the next readable one.

        Raises:
            InputError: If too many images in a row cannot be read.
        """
        seed, spec = self.recipe.seed, self.recipe.sample
        for index in (offset % len(self.pairs) for offset in range(item, item + _MAX_FAILURES)):
            view = draw(seed, "view", epoch, index) % spec.views
            try:
                if self._cached is not None and index not in self._cached:
                    raise ImageError(f"pair {index} could not be read when features were cached")
                image = self.views(index, [view])[0] if self._cached is None else None
                break
            except ImageError as error:
                self.bad[index] = str(error)
        else:
            raise InputError(f"{_MAX_FAILURES} consecutive images cannot be read, the last one: {self.bad[index]}")
        pair = self.pairs.items[index]
        positions = range(len(pair.captions))
        distinct_choices = stream(seed, "caption", epoch, index).sample(positions, min(spec.captions, len(positions)))
        choices = tuple(distinct_choices[offset % len(distinct_choices)] for offset in range(spec.captions))
        captions = tuple(pair.captions[choice] for choice in choices)
        negatives = tuple(
            self._negatives(pair, caption, stream(seed, "negatives", epoch, index, offset))
            for offset, caption in enumerate(captions)
        )
        return Sample(index, view, image, captions, choices, negatives, self._words(pair))

    def views(self, item: int, views: Iterable[int]) -> list[Image.Image]:
        """Return views of the image of a pair.

        Raises:
            ImageError: If it cannot be read.
        """
        pair = self.pairs.items[item]
        image = open_image(image_content(pair.image))
        return [make_view(image, self.recipe.sample, pair.captions, item=item, view=view) for view in views]

    def _find_words(self, pair: TrainingPair) -> frozenset[str]:
        if not self.recipe.loss.word:
            return frozenset()
        # A tower that reads only content words selects them itself, so all words of a caption are used.
        use_all = self.recipe.text.words == "content"
        words = (each_word(caption) if use_all else content_words(caption) for caption in pair.captions)
        return frozenset(stem(word) for caption_words in words for word in caption_words)

    def _negatives(self, pair: TrainingPair, caption: str, rng: Random) -> tuple[str, ...]:
        spec = self.recipe.sample
        if not self.recipe.loss.uses_negatives:
            return ()
        negatives = rng.sample(pair.negatives, min(spec.negatives, len(pair.negatives)))
        if spec.negative_source == "rules":
            negatives = []
        missing = spec.negatives - len(negatives)
        if missing and spec.negative_source != "supplied":
            negatives += make_negatives(caption, self._banned(pair.captions), missing, rng, weights=self._weights)
        return tuple(negatives)


def make_view(image: Image.Image, spec: SampleSpec, captions: Sequence[str], *, item: int, view: int) -> Image.Image:
    """Return an augmented view of an image: cropped, mirrored, with other contrast; view 0 is the image itself.

    Views do not depend on the seed, which only selects among them: runs with different seeds share cached features.
    """
    if view == 0:
        return image
    rng = stream(0, "crop", item, view)
    area, aspect = rng.uniform(spec.crop, 1.0), rng.uniform(*_ASPECTS)
    width, height = min(1.0, (area * aspect) ** 0.5), min(1.0, (area / aspect) ** 0.5)
    left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    image_width, image_height = image.size
    box = (left * image_width, top * image_height, (left + width) * image_width, (top + height) * image_height)
    pixels = (int(box[0]), int(box[1]), max(int(box[2]), int(box[0]) + 1), max(int(box[3]), int(box[1]) + 1))
    crop = image.crop(pixels)
    mirrored = rng.random() < 0.5
    crop = _adjust_light(
        crop, rng.uniform(-spec.contrast, spec.contrast), rng.uniform(-spec.brightness, spec.brightness)
    )
    if spec.flip and mirrored and not mentions_side(captions):
        return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return crop


def mentions_side(captions: Sequence[str]) -> bool:
    """Return whether a caption mentions left or right, so that its image must not be mirrored."""
    return any(_SIDES.search(caption) for caption in captions)


def _adjust_light(image: Image.Image, contrast: float, brightness: float) -> Image.Image:
    """Scale distances from the mean by 1 + `contrast` and the mean itself by 1 + `brightness`."""
    if not contrast and not brightness:
        return image
    pixels = np.asarray(image.convert("RGB"))
    mean = float(pixels.mean())
    table = np.rint((np.arange(256) - mean) * (1 + contrast) + mean * (1 + brightness)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(table[pixels])


def check_batch(batch: int, pairs: int, world: World) -> None:
    """Check the batch size.

    Raises:
        ConfigError: If there are not enough pairs, or the batch cannot be divided among the processes.
    """
    if batch > pairs:
        raise ConfigError(f"train.batch is {batch} but there are only {pairs} pairs; reduce it")
    if batch % world.size:
        raise ConfigError(f"train.batch {batch} cannot be divided among {world.size} processes; use a multiple")


def read_batches(
    reader: SampleReader, *, start: int, stop: int, workers: int, world: World
) -> Generator[list[Sample], None, None]:
    """Yield this process's samples of batches `start` to `stop` in order, prefetched by threads.

    The pairs of a batch depend only on its number; an incomplete last batch of an epoch is dropped.
    Threads, not worker processes: decoding releases the GIL, and images need not be copied between
    processes.
    """
    recipe, blocks, batch = reader.recipe, reader.pairs.blocks, reader.recipe.train.batch
    order_of = lru_cache(1)(partial(epoch_order, blocks, seed=recipe.seed, window=recipe.sample.window))
    share, per_epoch = batch // world.size, len(reader.pairs) // batch

    def jobs(number: int) -> list[Callable[[], Sample]]:
        epoch, index = divmod(number, per_epoch)
        first = index * batch + world.rank * share
        return [partial(reader.sample, int(item), epoch) for item in order_of(epoch=epoch)[first : first + share]]

    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            yield from ordered_results(pool, map(jobs, range(start, stop)), ahead=_PREFETCH)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def ordered_results(
    pool: ThreadPoolExecutor, groups: Iterable[Iterable[Callable[[], T]]], *, ahead: int
) -> Generator[list[T], None, None]:
    """Yield the results of groups of jobs, group by group, while threads work on the next `ahead` groups."""
    waiting: deque[list[Future[T]]] = deque()
    for jobs in groups:
        waiting.append([pool.submit(job) for job in jobs])
        if len(waiting) > ahead:
            yield [future.result() for future in waiting.popleft()]
    for futures in waiting:
        yield [future.result() for future in futures]
