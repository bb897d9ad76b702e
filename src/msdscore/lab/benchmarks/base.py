"""What a benchmark is: its items, the images they point to, and the row that describes it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from msdscore.errors import InputError, RowError, unknown_name
from msdscore.io.parquet_images import StoredImage

Image = Path | StoredImage
Kind = Literal["pairs", "rated", "battles"]
Winner = Literal["a", "b", "tie"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An image with a caption that should score higher than another.

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
    """An image with one caption and what people thought of it, one rating per judge.

    `system` wrote the caption; `scales` has further ratings of it by name, such as precision and recall. Items of one
    `group`, such as the images generated from one prompt, are compared with each other and resampled together.
    """

    id: str
    image: Image
    caption: str
    ratings: tuple[float, ...]
    references: tuple[str, ...] = ()
    subset: str = ""
    system: str = ""
    scales: tuple["Scale", ...] = ()
    group: str = ""

    @property
    def captions(self) -> tuple[str, ...]:
        """The one candidate to score."""
        return (self.caption,)


@dataclass(frozen=True, slots=True)
class Scale:
    """One named rating of a caption."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Aspect:
    """One question of a battle and its answer: 2 (first much better), 1, 0 (equal), −1, −2."""

    name: str
    preference: int


@dataclass(frozen=True, slots=True)
class Battle:
    """An image with captions of two systems and people's choice between them.

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


def noted(counts: Mapping[str, int]) -> tuple[Note, ...]:
    """A note for every count that is not 0."""
    return tuple(Note(what, count) for what, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class ItemSet(Generic[ItemT]):
    """What a reader found: the items, and notes on the rows that the benchmark's own rules treat apart."""

    items: tuple[ItemT, ...]
    notes: tuple[Note, ...] = ()
    draws: int = 1  # how many draws of references the protocol averages

    def __len__(self) -> int:
        return len(self.items)


_COUNTING: dict[str, dict[str, str]] = {
    "pairs": {"figures": "pairs:strict", "credits": "pairs:strict_credits"},
    "rated": {"statistics": "ratings:composite"},
    "battles": {"figures": "battles:caparena", "credits": "battles:caparena_credits"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The registry row of a benchmark: what it is, what must lie where, who reads it and who counts.

    `reader`, `rows`, `figures`, `credits` and `statistics` are "module:function" strings, imported when used. `rows`
    reads the rows form (`NAME.jsonl`), `rows_name` is the word of its file name where that is not the benchmark's.
    Two metrics are compared by `credits`, one value per item, or by `statistics` of the items where figures are no
    means. `counting` says in words how scores become figures; `protocols` names the ways, the default first. A row
    without `figures` and `statistics` is counted as its kind: accuracy, correlations, or agreement and Elo. `long`
    marks captions of a paragraph, for which the paper has more components. `domain` names images other than everyday
    photographs; a result says if its encoder was not trained for them.
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
    protocols: tuple[str, ...] = ("official", "authors")
    long: bool = False
    domain: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _COUNTING:
            raise unknown_name(f"kind of benchmark {self.name}", self.kind, _COUNTING)
        if not (self.figures or self.statistics):
            for name, function in _COUNTING[self.kind].items():
                object.__setattr__(self, name, f"msdscore.lab.benchmarks.protocols.{function}")
        object.__setattr__(self, "title", self.title or self.name)


def image_key(image: Image) -> str:
    """What tells an image apart from all others: its whole path, or the row that holds it."""
    return "/".join(_parts(image))


def image_names(images: Iterable[Image]) -> dict[str, str]:
    """By key a short name for every image: its file name, after as many folders as tell it apart from the others.

    >>> shown = image_names([Path("data/val/1.jpg"), Path("data/test/1.jpg"), Path("data/val/2.jpg")])
    >>> list(shown.values())
    ['val/1.jpg', 'test/1.jpg', '2.jpg']
    """
    parts = {image_key(image): _parts(image) for image in images}
    depth = dict.fromkeys(parts, 1)
    while True:
        named = {key: "/".join(own[-depth[key] :]) for key, own in parts.items()}
        often = Counter(named.values())
        clash = [key for key, name in named.items() if often[name] > 1 and depth[key] < len(parts[key])]
        if not clash:
            return named
        depth |= {key: depth[key] + 1 for key in clash}


def _parts(image: Image) -> tuple[str, ...]:
    # Rows of a table are told apart by their number: two of them may bear one name.
    return image.parts if isinstance(image, Path) else (*image.file.parts, str(image.row), image.name)


def image_source(image: Image) -> Path | bytes:
    """What to hand to an image reader: the path, or the encoded bytes where a Parquet file holds them."""
    return image if isinstance(image, Path) else image.read()


def source_or_empty(image: Image) -> Path | bytes:
    """The source of an image; no bytes where its table has none, so that the pipeline reports it as unreadable."""
    try:
        return image_source(image)
    except RowError:
        return b""


def clusters(items: Iterable[Item]) -> NDArray[np.str_]:
    """The image, or the group, of every item: resampling whole images keeps items of one image together."""
    return np.array(list(map(cluster, items)), dtype=np.str_)


def cluster(item: Item) -> str:
    """The key of what an item is resampled and limited with: its group if it has one, else its image."""
    return (item.group if isinstance(item, Rated) else "") or image_key(item.image)


def image_ring(items: Iterable[Item], seed: int) -> list[Image]:
    """Every image once, shuffled by `seed`: in the wrong-image control each meets the items of the one before it.

    The order depends on the short names alone, so that it is the same wherever the files lie.
    """
    distinct = {image_key(item.image): item.image for item in items}
    names = image_names(distinct.values())
    ordered = sorted(distinct, key=lambda key: names[key])
    return [distinct[ordered[at]] for at in np.random.default_rng(seed).permutation(len(ordered))]


def stranger_of(items: Iterable[Item], seed: int) -> dict[str, Image]:
    """By the key of an image its stand-in in the wrong-image control, which shows what the text alone gives away.

    Images stand in a ring and each is replaced by the next that is there, so that no item meets its own image, all
    items of one image meet the same stranger, and every image is used. Where files are missing, the control so
    rests on the same items as the figure beside it. Images of one prompt are not strangers of each other.
    """
    items = tuple(items)
    ring = image_ring(items, seed)
    if len(ring) < 2:
        raise InputError(f"the wrong-image control needs at least 2 different images, got {len(ring)}")
    there = [not isinstance(image, Path) or image.is_file() for image in ring]  # a row of a table is there
    usable = there if sum(there) > 1 else [True] * len(ring)
    prompts: dict[str, set[str]] = defaultdict(set)
    for item in items:
        prompts[image_key(item.image)].add(cluster(item))
    own = [prompts[image_key(image)] for image in ring]
    strangers: dict[str, Image] = {}
    for at, image in enumerate(ring):
        others = (place % len(ring) for place in range(at + 1, at + len(ring)))
        found = next((other for other in others if usable[other] and own[other].isdisjoint(own[at])), None)
        if found is None:
            raise InputError("the wrong-image control needs images of at least 2 prompts, got one")
        strangers[image_key(image)] = ring[found]
    return strangers


def wrong_images(items: Sequence[Item], seed: int) -> list[Image]:
    """The stranger of every item's image."""
    strangers = stranger_of(items, seed)
    return [strangers[image_key(item.image)] for item in items]


def stamp(image: Image) -> str:
    """What changes when an image is put in the place of another: size and time of its file; empty without a file."""
    try:
        state = (image if isinstance(image, Path) else image.file).stat()
    except OSError:
        return ""
    return f"{state.st_size}-{state.st_mtime_ns}"
