"""What a benchmark is: its items, the pictures they point to, and the row that describes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from msdscore.benchmarks.stored import StoredImage
from msdscore.errors import InputError

Image = Path | StoredImage
Kind = Literal["pairs", "rated", "battles"]
Winner = Literal["a", "b", "tie"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A picture with a caption that should score higher than another.

    `votes` holds how many people chose the positive and the negative, where the benchmark says so.
    """

    id: str
    image: Image
    positive: str
    negative: str
    subset: str = ""
    references: tuple[str, ...] = ()
    votes: tuple[int, ...] = ()

    @property
    def captions(self) -> tuple[str, ...]:
        """The candidates to score, in the order of the score columns."""
        return (self.positive, self.negative)


@dataclass(frozen=True, slots=True)
class Rated:
    """A picture with one caption and what people thought of it, one rating a judge."""

    id: str
    image: Image
    caption: str
    ratings: tuple[float, ...]
    references: tuple[str, ...] = ()
    subset: str = ""

    @property
    def captions(self) -> tuple[str, ...]:
        """The one candidate to score."""
        return (self.caption,)


@dataclass(frozen=True, slots=True)
class Aspect:
    """One question of a battle and its answer: 2 (first much better), 1, 0 (equal), −1, −2."""

    name: str
    preference: int


@dataclass(frozen=True, slots=True)
class Battle:
    """A picture with captions of two systems and people's choice between them.

    `winner` is None where nobody judged; `verdict` keeps the label as it stands in the file.
    """

    id: str
    image: Image
    caption_a: str
    caption_b: str
    winner: Winner | None
    system_a: str
    system_b: str
    level: str = ""
    subset: str = ""
    verdict: str = ""
    aspects: tuple[Aspect, ...] = ()
    references: tuple[str, ...] = ()

    @property
    def captions(self) -> tuple[str, ...]:
        """The candidates to score, in the order of the score columns."""
        return (self.caption_a, self.caption_b)


Item = Pair | Rated | Battle
ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True, slots=True)
class Note:
    """How many rows a reader left out, or decided by seed, and which: results show it."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Reading(Generic[ItemT]):
    """What a reader found: the items, and notes on the rows that the benchmark's own rules treat apart."""

    items: tuple[ItemT, ...]
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that anybody may fetch: from where, to which place under the benchmark's folder, and its SHA-256."""

    url: str
    place: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The registry row of a benchmark: what it is, what must lie where, who reads it and who counts.

    `reader`, `figures` and `credits` are "module:function" strings, imported when used; `credits` gives one value
    an item, by which two metrics are compared (empty: the figures are correlations). `protocols` names the ways
    of counting, the default first. `downloads` are files that can be fetched and checked.
    """

    name: str
    title: str
    kind: Kind
    reader: str
    figures: str
    licence: str
    size: str
    source: str
    files: tuple[str, ...]
    citation: str
    credits: str = ""
    protocols: tuple[str, ...] = ("official", "authors")
    downloads: tuple[Download, ...] = ()


def image_name(image: Image) -> str:
    """The file name of a picture, by which pictures are told apart: folders are spelled in several ways.

    >>> image_name(Path("Flicker8k_Dataset/1.jpg")) == image_name(Path("Flickr8k_Dataset/1.jpg"))
    True
    """
    return image.name


def picture(image: Image) -> Path | bytes:
    """What to hand to a picture reader: the path, or the encoded bytes where a Parquet file holds them."""
    return image if isinstance(image, Path) else image.read()


def clusters(items: Iterable[Item]) -> NDArray[np.str_]:
    """The picture name of every item: resampling whole pictures keeps items of one picture together."""
    return np.array([image_name(item.image) for item in items], dtype=np.str_)


def picture_ring(items: Iterable[Item], seed: int) -> list[Image]:
    """Every picture once, shuffled by `seed`: in the wrong-image control each meets the items of the one before it."""
    distinct = {image_name(item.image): item.image for item in items}
    names = sorted(distinct)
    return [distinct[names[place]] for place in np.random.default_rng(seed).permutation(len(names))]


def wrong_images(items: Sequence[Item], seed: int) -> list[Image]:
    """Another picture of the same benchmark for every item, to show what the text alone gives away.

    Pictures stand in a ring and each is replaced by the next, so that no item meets its own picture, all items of
    one picture meet the same stranger, and every picture is used.
    """
    ring = picture_ring(items, seed)
    if len(ring) < 2:
        raise InputError(f"the wrong-image control needs at least 2 different pictures, got {len(ring)}")
    stranger = {image_name(own): other for own, other in zip(ring, [*ring[1:], ring[0]], strict=True)}
    return [stranger[image_name(item.image)] for item in items]
