"""Benchmark items, their images, and the registry row of a benchmark."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from msdscore.errors import InputError, RowError, unknown_name
from msdscore.rows.images import StoredImage

Image = Path | StoredImage
Kind = Literal["pairs", "rated", "battles"]
Winner = Literal["a", "b", "tie"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An image with a caption that should score higher than another.

    `votes` are the numbers of votes for the positive and the negative, if known.
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
        """The candidate captions, in the order of the score columns."""
        return (self.positive, self.negative)


@dataclass(frozen=True, slots=True)
class Rated:
    """An image with one caption and its human ratings, one per judge.

    `system` wrote the caption; `scales` are other ratings by name, such as precision and recall.
    """

    id: str
    image: Image
    caption: str
    ratings: tuple[float, ...]
    references: tuple[str, ...] = ()
    subset: str = ""
    system: str = ""
    scales: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def captions(self) -> tuple[str, ...]:
        """The single candidate caption."""
        return (self.caption,)


@dataclass(frozen=True, slots=True)
class Battle:
    """An image with captions of two systems and the human choice between them.

    `winner` is None without a judgement; `verdict` is the label in the file; `aspects` are other questions with
    their answers: 2 (first much better), 1, 0 (equal), −1, −2.
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
    aspects: Mapping[str, int] = field(default_factory=dict, hash=False)
    references: tuple[str, ...] = ()

    @property
    def captions(self) -> tuple[str, ...]:
        """The candidate captions, in the order of the score columns."""
        return (self.caption_a, self.caption_b)


Item = Pair | Rated | Battle
ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True, slots=True)
class ItemSet(Generic[ItemT]):
    """Items of a benchmark; `notes` counts the rows that its rules exclude or decide at random, by description."""

    items: tuple[ItemT, ...]
    notes: Mapping[str, int] = field(default_factory=dict)
    draws: int = 1  # draws of references that the protocol averages over

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", {note: count for note, count in self.notes.items() if count})

    def __len__(self) -> int:
        return len(self.items)


_DEFAULT_FUNCTIONS: dict[str, dict[str, str]] = {
    "pairs": {"credits": "pairs:strict"},
    "rated": {"statistics": "ratings:composite"},
    "battles": {"figures": "battles:caparena", "credits": "battles:caparena_credits"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The registry row of a benchmark: description, files, reader and evaluation.

    `reader`, `rows`, `figures`, `credits` and `statistics` are "module:function" strings, imported when used. `rows`
    reads the rows form (`NAME.jsonl`); `rows_name` is the word in its file name, by default the benchmark's name.
    Figures are means of `credits`, one value per item, those of subsets first, or `statistics` of the items if they are
    not means; two metrics are compared by the same. `figures` replaces the means of the credits. A row without any of
    the three is evaluated by its kind: accuracy, correlations, or agreement and Elo. `counting` describes the
    evaluation in words; `protocols` are its variants, the default first. `long`
    marks paragraph-length captions, for which the paper uses more components. `domain` is the kind of images if they
    are not everyday photographs; a result reports whether its encoder was trained on them. `baselines` are metrics
    that every run computes in addition to those requested.
    """

    name: str
    kind: Kind
    reader: str
    title: str = ""
    licence: str = "unknown"
    size: str = "unknown"
    source: str = ""
    files: tuple[str, ...] = ()
    citation: str = ""
    figures: str = ""
    rows: str = ""
    rows_name: str = ""
    credits: str = ""
    statistics: str = ""
    counting: str = ""
    baselines: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ("official", "authors")
    long: bool = False
    domain: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _DEFAULT_FUNCTIONS:
            raise unknown_name(f"kind of benchmark {self.name}", self.kind, _DEFAULT_FUNCTIONS)
        if not (self.figures or self.credits or self.statistics):
            for name, function in _DEFAULT_FUNCTIONS[self.kind].items():
                object.__setattr__(self, name, f"msdscore_lab.benchmarks.protocols.{function}")
        object.__setattr__(self, "title", self.title or self.name)


def image_key(image: Image) -> str:
    """Return a unique key of an image: its path, or file and row of a table."""
    return "/".join(_parts(image))


def image_names(images: Iterable[Image]) -> dict[str, str]:
    """Return a short unique name for every image, by key: its file name, preceded by as many folders as necessary.

    >>> shown = image_names([Path("data/val/1.jpg"), Path("data/test/1.jpg"), Path("data/val/2.jpg")])
    >>> list(shown.values())
    ['val/1.jpg', 'test/1.jpg', '2.jpg']
    """
    parts = {image_key(image): _parts(image) for image in images}
    depth = dict.fromkeys(parts, 1)
    while True:
        names = {key: "/".join(path_parts[-depth[key] :]) for key, path_parts in parts.items()}
        counts = Counter(names.values())
        clashes = [key for key, name in names.items() if counts[name] > 1 and depth[key] < len(parts[key])]
        if not clashes:
            return names
        depth |= {key: depth[key] + 1 for key in clashes}


def _parts(image: Image) -> tuple[str, ...]:
    # The row number is part of the key: two rows of a table can have the same name.
    return image.parts if isinstance(image, Path) else (*image.file.parts, str(image.row), image.name)


def image_source(image: Image) -> Path | bytes:
    """Return the source of an image: its path, or the encoded bytes from a Parquet file."""
    return image if isinstance(image, Path) else image.read()


def source_or_empty(image: Image) -> Path | bytes:
    """Return the source of an image; empty bytes if its table has none, which the pipeline reports as unreadable."""
    try:
        return image_source(image)
    except RowError:
        return b""


def clusters(items: Iterable[Item]) -> NDArray[np.str_]:
    """Return the cluster of every item for resampling: its image."""
    return np.array([image_key(item.image) for item in items], dtype=np.str_)


def image_ring(items: Iterable[Item], seed: int) -> list[Image]:
    """Return the distinct images, shuffled by `seed`; in the wrong-image control, each replaces the one before it.

    The order depends only on the short names, not on the location of the files.
    """
    distinct = {image_key(item.image): item.image for item in items}
    names = image_names(distinct.values())
    ordered = sorted(distinct, key=lambda key: names[key])
    return [distinct[ordered[index]] for index in np.random.default_rng(seed).permutation(len(ordered))]


def wrong_image_by_key(items: Iterable[Item], seed: int) -> dict[str, Image]:
    """Return the wrong image of every image, by key, for the control that scores captions with the wrong image.

    Each image is replaced by the next one in a shuffled ring whose file exists. No item gets the right image, all items
    of one image get the same wrong image, and every image is used. If files are missing, the control is computed on
    the same items as the figure.
    """
    ring = image_ring(items, seed)
    if len(ring) < 2:
        raise InputError(f"the wrong-image control needs at least 2 different images, got {len(ring)}")
    # Images stored in a table always exist.
    available = [not isinstance(image, Path) or image.is_file() for image in ring]
    usable = available if sum(available) > 1 else [True] * len(ring)
    wrong_images_by_key: dict[str, Image] = {}
    for position, image in enumerate(ring):
        others = (index % len(ring) for index in range(position + 1, position + len(ring)))
        wrong_images_by_key[image_key(image)] = next(ring[other] for other in others if usable[other])
    return wrong_images_by_key


def wrong_images(items: Sequence[Item], seed: int) -> list[Image]:
    """Return the wrong image of every item."""
    by_key = wrong_image_by_key(items, seed)
    return [by_key[image_key(item.image)] for item in items]
