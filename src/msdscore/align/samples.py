"""What one step sees of each pair: a view of the picture, one caption, hard negatives, the picture's words."""

from collections.abc import Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from PIL import Image

from msdscore.align.draws import draw, epoch_order, stream
from msdscore.align.negatives import make_negatives
from msdscore.align.pairs import Pair, Pairs
from msdscore.align.pictures import PictureReader
from msdscore.align.recipe import Recipe
from msdscore.align.views import make_view, pick_view
from msdscore.encoders.content import content_words
from msdscore.errors import ConfigError, ImageError, InputError
from msdscore.io.images import open_image

_IN_A_ROW = 100  # pictures that may fail one after the other before the data is given up
_LENDERS = 4  # other captions that lend words to hard negatives
_AHEAD = 2  # batches read before they are needed


@dataclass(frozen=True, slots=True)
class Sample:
    """One pair as a step sees it; `picture` is None where its features are cached."""

    item: int
    view: int
    picture: Image.Image | None
    caption: str
    choice: int  # number of the caption among the pair's own
    negatives: tuple[str, ...]
    words: frozenset[str]  # content words of all captions of the picture


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
        self._reader = PictureReader(groups=2 * recipe.sample.window)

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
        return open_image(self._reader.read(self.pairs.items[item].picture))

    def view(self, picture: Image.Image, item: int, view: int) -> Image.Image:
        """One view of a decoded picture."""
        captions = self.pairs.items[item].captions
        return make_view(picture, self.recipe.sample, captions, seed=self.recipe.seed, item=item, view=view)

    def _picture(self, item: int, view: int) -> Image.Image | None:
        if self._cached is None:
            return self.view(self.open(item), item, view)
        if item not in self._cached:
            raise ImageError(f"pair {item} could not be read when features were cached")
        return None

    def _made(self, item: int, view: int, picture: Image.Image | None, epoch: int) -> Sample:
        pair = self.pairs.items[item]
        choice = draw(self.recipe.seed, "caption", epoch, item) % len(pair.captions)
        words = frozenset[str]()
        if self.recipe.loss.word:
            words = frozenset[str]().union(*map(content_words, pair.captions))
        negatives = self._negatives(pair, pair.captions[choice], item, epoch)
        return Sample(item, view, picture, pair.captions[choice], choice, negatives, words)

    def _negatives(self, pair: Pair, caption: str, item: int, epoch: int) -> tuple[str, ...]:
        spec, seed = self.recipe.sample, self.recipe.seed
        if not (spec.negatives and self.recipe.loss.negatives):
            return ()
        chance = stream(seed, "negatives", epoch, item)
        given = chance.sample(pair.negatives, min(spec.negatives, len(pair.negatives)))
        if spec.negative_source == "rules":
            given = []
        missing = spec.negatives - len(given)
        if missing and spec.negative_source != "supplied":
            lenders = [self.pairs.items[chance.randrange(len(self.pairs))].captions[0] for _ in range(_LENDERS)]
            given += make_negatives(caption, lenders, missing, chance)
        return tuple(given)


@dataclass(frozen=True, slots=True)
class Plan:
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
    reader: SampleReader, plan: Plan, *, start: int, stop: int, workers: int
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
