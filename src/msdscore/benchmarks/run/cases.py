"""One portion made ready for all metrics at once: images decoded, everything encoded, all pairs measured once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from msdscore.benchmarks.base import Image, Item, image_key, image_names, image_source
from msdscore.benchmarks.run.portions import Portion
from msdscore.benchmarks.run.vectors import make_vectors
from msdscore.errors import RowError
from msdscore.io.images import open_image
from msdscore.io.parquet_images import StoredImage
from msdscore.metrics.base import Cases, Metric
from msdscore.scoring.embedded import Decoded
from msdscore.scoring.pipeline import Pipeline

_DECODERS = 4
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Wants:
    """What the metrics of a run need between them."""

    encoder: bool
    mixtures: bool
    pixels: bool

    @property
    def images(self) -> bool:
        """Whether images have to be read at all."""
        return self.encoder or self.pixels

    @classmethod
    def of(cls, metrics: Sequence[Metric]) -> "Wants":
        """The union of their needs."""
        return cls(
            any(metric.needs("encoder") for metric in metrics),
            any(metric.needs("mixtures") for metric in metrics),
            any(metric.needs("pictures") for metric in metrics),
        )


@dataclass(frozen=True, slots=True)
class FilledCases:
    """A batch of the portion's items, then of their controls, with the reasons of items that cannot be scored."""

    batch: Cases
    errors: dict[int, str]  # by place in the portion


def text_cases(
    items: Sequence[Item], portion: Portion, references: dict[int, tuple[str, ...]], *, whole: bool
) -> Cases:
    """The cases of a portion without images and vectors; `references` are those of each image of the portion."""
    mine = [items[number] for number in portion.items]
    names = image_names(item.image for item in items)
    texts = tuple(dict.fromkeys(text for item in mine for text in item.captions))
    place = {text: number for number, text in enumerate(texts)}
    captions = np.array([[place[text] for text in item.captions] for item in mine], dtype=np.int64)
    turns = 2 if portion.stranger else 1
    owner = np.array([*portion.owner, *portion.stranger], dtype=np.int64)
    control = np.repeat([False, True], [len(mine), len(portion.stranger)])
    wrong = tuple(references.get(number, ()) for number in portion.stranger)
    return Cases(
        ids=tuple(item.id for item in mine) * turns,
        texts=texts,
        captions=np.tile(captions, (turns, 1)),
        images=(None,) * len(portion.images),
        owner=owner,
        group=owner + len(portion.images) * control,
        control=control,
        references=(*(item.references for item in mine), *wrong),
        whole=whole,
        names=tuple(names[image_key(image)] for image in portion.images),
    )


def fill(bare: Cases, portion: Portion, wants: Wants, pipeline: Pipeline | None) -> FilledCases:
    """Decode and encode what the metrics want."""
    if not wants.images:
        return FilledCases(bare, {})
    if pipeline is None:
        seen = _read_all(portion.images, open_image)
        images = tuple(None if isinstance(found, RowError) else found for found in seen)
        return FilledCases(replace(bare, images=images), _image_errors(portion, seen))
    decoded = _read_all(portion.images, lambda source: pipeline.decode([source], keep=wants.pixels)[0])
    images = tuple(found.picture if isinstance(found, Decoded) else None for found in decoded)
    errors = _image_errors(portion, decoded)
    vectors, unread = make_vectors(bare, decoded, pipeline, mixtures=wants.mixtures)
    for place, row in enumerate(bare.captions[: len(portion.items)].tolist()):
        reasons = [unread[number] for number in row if number in unread]
        errors |= {place: reasons[0]} if reasons and place not in errors else {}
    return FilledCases(replace(bare, images=images, vectors=vectors), errors)


def _image_errors(portion: Portion, seen: Sequence[object]) -> dict[int, str]:
    """The reasons of items whose image could not be read, by their place in the portion."""
    reasons = {number: str(found) for number, found in enumerate(seen) if isinstance(found, RowError)}
    return {place: reasons[owner] for place, owner in enumerate(portion.owner) if owner in reasons}


def _read_all(images: Sequence[Image], decode: Callable[[Path | bytes], Seen | RowError]) -> list[Seen | RowError]:
    """Read images side by side, those inside tables in the order they lie there."""

    def where(number: int) -> tuple[str, int]:
        image = images[number]
        return (str(image.file), image.row) if isinstance(image, StoredImage) else ("", number)

    def read(number: int) -> Seen | RowError:
        try:
            return decode(image_source(images[number]))
        except RowError as error:
            return error

    order = sorted(range(len(images)), key=where)
    with ThreadPoolExecutor(_DECODERS) as pool:
        found = dict(zip(order, pool.map(read, order), strict=True))
    return [found[number] for number in range(len(images))]
