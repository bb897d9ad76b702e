"""The order of a benchmark's work: pictures in the ring of the wrong-image control, a few at a time."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msdscore.benchmarks.base import Image, Item, picture_key, picture_ring, stranger_of

PORTION_PICTURES = 64  # decoded at once; what a crash can cost at most


@dataclass(frozen=True, slots=True)
class Portion:
    """Items of a few pictures: `owner[k]` is the number of the own picture of `items[k]`, `stranger[k]` the wrong one.

    Without a control `stranger` is empty.
    """

    pictures: tuple[Image, ...]
    items: tuple[int, ...]
    owner: tuple[int, ...]
    stranger: tuple[int, ...]


def portions(
    items: Sequence[Item],
    *,
    seed: int,
    control: bool,
    size: int = PORTION_PICTURES,
    chosen: Collection[int] | None = None,
) -> Iterator[Portion]:
    """All items, or the `chosen` ones by number, in portions of `size` pictures and their strangers.

    Neighbours in the ring are each other's strangers, so that a portion needs few pictures beyond its own.
    """
    by_picture: dict[str, list[int]] = defaultdict(list)
    for number in range(len(items)) if chosen is None else sorted(chosen):
        by_picture[picture_key(items[number].image)].append(number)
    strangers = stranger_of(items, seed) if control else {}
    ring = [image for image in picture_ring(items, seed) if picture_key(image) in by_picture]
    for start in range(0, len(ring), size):
        yield _portion(ring[start : start + size], by_picture, strangers)


def _portion(own: list[Image], by_picture: Mapping[str, list[int]], strangers: Mapping[str, Image]) -> Portion:
    pictures = {picture_key(image): image for image in own}
    pictures |= {picture_key(other): other for other in (strangers[key] for key in list(pictures) if strangers)}
    place = {key: number for number, key in enumerate(pictures)}
    pairs = [(picture_key(image), item) for image in own for item in by_picture[picture_key(image)]]
    return Portion(
        tuple(pictures.values()),
        tuple(item for _, item in pairs),
        tuple(place[key] for key, _ in pairs),
        tuple(place[picture_key(strangers[key])] for key, _ in pairs) if strangers else (),
    )
