"""The order of a benchmark's work: images in the ring of the wrong-image control, a few at a time."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msdscore.benchmarks.base import Image, Item, image_key, image_ring, stranger_of

PORTION_IMAGES = 64  # decoded at once; what a crash can cost at most


@dataclass(frozen=True, slots=True)
class Portion:
    """Items of a few images: `owner[k]` is the number of the own image of `items[k]`, `stranger[k]` the wrong one.

    Without a control `stranger` is empty.
    """

    images: tuple[Image, ...]
    items: tuple[int, ...]
    owner: tuple[int, ...]
    stranger: tuple[int, ...]


def portions(
    items: Sequence[Item],
    *,
    seed: int,
    control: bool,
    size: int = PORTION_IMAGES,
    chosen: Collection[int] | None = None,
) -> Iterator[Portion]:
    """All items, or the `chosen` ones by number, in portions of `size` images and their strangers.

    Neighbours in the ring are each other's strangers, so that a portion needs few images beyond its own.
    """
    by_image: dict[str, list[int]] = defaultdict(list)
    for number in range(len(items)) if chosen is None else sorted(chosen):
        by_image[image_key(items[number].image)].append(number)
    strangers = stranger_of(items, seed) if control else {}
    ring = [image for image in image_ring(items, seed) if image_key(image) in by_image]
    for start in range(0, len(ring), size):
        yield _portion(ring[start : start + size], by_image, strangers)


def _portion(own: list[Image], by_image: Mapping[str, list[int]], strangers: Mapping[str, Image]) -> Portion:
    images = {image_key(image): image for image in own}
    images |= {image_key(other): other for other in (strangers[key] for key in list(images) if strangers)}
    place = {key: number for number, key in enumerate(images)}
    pairs = [(image_key(image), item) for image in own for item in by_image[image_key(image)]]
    return Portion(
        tuple(images.values()),
        tuple(item for _, item in pairs),
        tuple(place[key] for key, _ in pairs),
        tuple(place[image_key(strangers[key])] for key, _ in pairs) if strangers else (),
    )
