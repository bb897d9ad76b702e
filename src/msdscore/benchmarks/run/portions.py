"""The order of a benchmark's work: pictures in the ring of the wrong-image control, a few at a time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msdscore.benchmarks.base import Image, Item, picture_key, picture_ring

PORTION_PICTURES = 64  # decoded at once; what a crash can cost at most


@dataclass(frozen=True, slots=True)
class Portion:
    """Items of a few pictures: `owner[k]` is the number of the own picture of `items[k]`, `stranger[k]` the wrong one.

    Without a control `stranger` is empty.
    """

    number: int
    pictures: tuple[Image, ...]
    items: tuple[int, ...]
    owner: tuple[int, ...]
    stranger: tuple[int, ...]


def portions(items: Sequence[Item], *, seed: int, control: bool, size: int = PORTION_PICTURES) -> Iterator[Portion]:
    """All items in portions of `size` pictures.

    Neighbours in the ring are each other's strangers, so a portion needs one picture beyond its own.
    """
    ring = picture_ring(items, seed)
    by_picture: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        by_picture[picture_key(item.image)].append(number)
    for start in range(0, len(ring), size):
        yield _portion(start // size, ring, slice(start, start + size), by_picture, control=control)


def _portion(
    number: int, ring: list[Image], span: slice, by_picture: dict[str, list[int]], *, control: bool
) -> Portion:
    own = ring[span]
    pairs = [(place, item) for place, image in enumerate(own) for item in by_picture[picture_key(image)]]
    owner = tuple(place for place, _ in pairs)
    closed = len(own) == len(ring)
    beyond = [] if closed or not control else [ring[(span.start + len(own)) % len(ring)]]
    stranger = tuple((place + 1) % (len(own) + len(beyond)) for place in owner) if control else ()
    return Portion(number, (*own, *beyond), tuple(item for _, item in pairs), owner, stranger)
