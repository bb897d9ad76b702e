"""What one step sees of each pair: a view of the picture, captions, hard negatives, the picture's words."""

from collections.abc import Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

from PIL import Image

from msdscore.align.data.negatives import all_words, class_weights, make_negatives
from msdscore.align.data.pairs import Pairs, TrainingPair, picture_content
from msdscore.align.data.views import make_view, pick_view
from msdscore.align.recipe import Recipe
from msdscore.align.repeatable import epoch_order, stream
from msdscore.encoders.text.words import content_words, every_word, stem
from msdscore.errors import ConfigError, ImageError, InputError
from msdscore.io.images import open_image

_IN_A_ROW = 100  # pictures that may fail one after the other before the data is given up
_AHEAD = 2  # batches read before they are needed
_REMEMBERED = 1 << 16  # pairs whose words are kept


@dataclass(frozen=True, slots=True)
class Sample:
    """One pair as a step sees it; `picture` is None where its features are cached."""

    item: int
    view: int
    picture: Image.Image | None
    captions: tuple[str, ...]
    choices: tuple[int, ...]  # numbers of the captions among the pair's own
    negatives: tuple[tuple[str, ...], ...]  # of each caption
    words: frozenset[str]  # stems of the words of all captions of the picture that can be seen


@dataclass(slots=True)
class BadPictures:
    """Pictures that could not be read, by number of the pair; a run reports them and goes on."""

    reasons: dict[int, str] = field(default_factory=dict)


class SampleReader:
    """Draws samples; every choice depends on (seed, epoch, pair) alone, so any step can be made again."""

    def __init__(self, pairs: Pairs, recipe: Recipe, *, cached: Collection[int] | None = None) -> None:
        self.pairs, self.recipe = pairs, recipe
        self.bad = BadPictures()
        # Numbers of the pairs whose features are cached; None: pictures are read.
        self._cached = cached
        # The same for every epoch: what a pair says is read once.
        self._words = lru_cache(_REMEMBERED)(self._find_words)
        self._banned = lru_cache(_REMEMBERED)(all_words)
        by_rule = recipe.loss.wants_negatives and recipe.sample.negative_source != "supplied"
        self._weights = class_weights(text for pair in pairs.items for text in pair.captions) if by_rule else {}

    def sample(self, item: int, epoch: int) -> Sample:
        """The sample of a pair; a pair whose picture is bad gives place to the next one that is not.

        Raises:
            InputError: too many pictures in a row cannot be read.
        """
        for number in (place % len(self.pairs) for place in range(item, item + _IN_A_ROW)):
            view = pick_view(self.recipe.sample, seed=self.recipe.seed, epoch=epoch, item=number)
            try:
                picture = self._picture(number, view)
            except ImageError as error:
                self.bad.reasons[number] = str(error)
                continue
            return self._made(number, view, picture, epoch)
        raise InputError(f"{_IN_A_ROW} pictures in a row cannot be read, the last one: {self.bad.reasons[number]}")

    def open(self, item: int) -> Image.Image:
        """The picture of a pair, decoded.

        Raises:
            ImageError: it cannot be read.
        """
        return open_image(picture_content(self.pairs.items[item].picture))

    def view(self, picture: Image.Image, item: int, view: int) -> Image.Image:
        """One view of a decoded picture."""
        captions = self.pairs.items[item].captions
        return make_view(picture, self.recipe.sample, captions, item=item, view=view)

    def _picture(self, item: int, view: int) -> Image.Image | None:
        if self._cached is None:
            return self.view(self.open(item), item, view)
        if item not in self._cached:
            raise ImageError(f"pair {item} could not be read when features were cached")
        return None

    def _made(self, item: int, view: int, picture: Image.Image | None, epoch: int) -> Sample:
        pair, wanted = self.pairs.items[item], self.recipe.sample.captions
        numbers = list(range(len(pair.captions)))
        drawn = stream(self.recipe.seed, "caption", epoch, item).sample(numbers, min(wanted, len(numbers)))
        choices = tuple(drawn[place % len(drawn)] for place in range(wanted))
        captions = tuple(pair.captions[choice] for choice in choices)
        negatives = tuple(
            self._negatives(pair, caption, stream(self.recipe.seed, "negatives", epoch, item, place))
            for place, caption in enumerate(captions)
        )
        return Sample(item, view, picture, captions, choices, negatives, self._words(pair))

    def _find_words(self, pair: TrainingPair) -> frozenset[str]:
        if not self.recipe.loss.word:
            return frozenset()
        # A tower that reads content words alone has its own list: then every word counts that it lets through.
        chosen = every_word if self.recipe.text.words == "content" else content_words
        return frozenset(stem(word) for caption in pair.captions for word in chosen(caption))

    def _negatives(self, pair: TrainingPair, caption: str, chance: Random) -> tuple[str, ...]:
        spec = self.recipe.sample
        if not self.recipe.loss.wants_negatives:
            return ()
        given = chance.sample(pair.negatives, min(spec.negatives, len(pair.negatives)))
        if spec.negative_source == "rules":
            given = []
        missing = spec.negatives - len(given)
        if missing and spec.negative_source != "supplied":
            given += make_negatives(caption, self._banned(pair.captions), missing, chance, weights=self._weights)
        return tuple(given)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which pairs every batch holds: a pure function of the batch's number."""

    pairs: int
    batch: int  # over all processes
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch > self.pairs:
            raise ConfigError(f"train.batch is {self.batch} but there are only {self.pairs} pairs; make it smaller")
        if self.batch % self.world:
            raise ConfigError(
                f"train.batch {self.batch} cannot be shared by {self.world} processes; make it a multiple"
            )

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch; the rest of the pairs waits for the next order."""
        return self.pairs // self.batch

    def own(self, index: int) -> slice:
        """The part of an epoch's order that this process reads for batch `index` of the epoch."""
        share = self.batch // self.world
        start = index * self.batch + self.rank * share
        return slice(start, start + share)


def read_batches(
    reader: SampleReader, plan: BatchPlan, *, start: int, stop: int, workers: int
) -> Generator[list[Sample], None, None]:
    """Samples of batches `start` to `stop`, read ahead by threads, always in order."""
    recipe = reader.recipe
    with ThreadPoolExecutor(max(1, workers)) as pool:
        waiting: list[list[Future[Sample]]] = []
        order, known = None, -1
        try:
            for number in range(start, stop):
                epoch, index = divmod(number, plan.per_epoch)
                if epoch != known or order is None:
                    blocks = reader.pairs.blocks
                    order = epoch_order(blocks, seed=recipe.seed, epoch=epoch, window=recipe.sample.window)
                    known = epoch
                waiting.append([pool.submit(reader.sample, int(item), epoch) for item in order[plan.own(index)]])
                if len(waiting) > _AHEAD:
                    yield [future.result() for future in waiting.pop(0)]
            for futures in waiting:
                yield [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
