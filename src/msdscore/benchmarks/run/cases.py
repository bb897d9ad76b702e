"""One portion made ready for all metrics at once: pictures decoded, everything encoded, all pairs measured once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from msdscore.benchmarks.base import Image, Item, picture, picture_key, picture_names
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
    def pictures(self) -> bool:
        """Whether pictures have to be read at all."""
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
    """The cases of a portion without pictures and vectors; `references` are those of each picture of the portion."""
    mine = [items[number] for number in portion.items]
    names = picture_names(item.image for item in items)
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
        pictures=(None,) * len(portion.pictures),
        owner=owner,
        group=owner + len(portion.pictures) * control,
        control=control,
        references=(*(item.references for item in mine), *wrong),
        whole=whole,
        names=tuple(names[picture_key(image)] for image in portion.pictures),
    )


def fill(bare: Cases, portion: Portion, wants: Wants, pipeline: Pipeline | None) -> FilledCases:
    """Decode and encode what the metrics want."""
    if not wants.pictures:
        return FilledCases(bare, {})
    if pipeline is None:
        seen = _read_all(portion.pictures, open_image)
        pictures = tuple(None if isinstance(found, RowError) else found for found in seen)
        return FilledCases(replace(bare, pictures=pictures), _image_errors(portion, seen))
    decoded = _read_all(portion.pictures, lambda source: pipeline.decode([source], keep=wants.pixels)[0])
    pictures = tuple(found.picture if isinstance(found, Decoded) else None for found in decoded)
    errors = _image_errors(portion, decoded)
    vectors, unread = make_vectors(bare, decoded, pipeline, mixtures=wants.mixtures)
    for place, row in enumerate(bare.captions[: len(portion.items)].tolist()):
        reasons = [unread[number] for number in row if number in unread]
        errors |= {place: reasons[0]} if reasons and place not in errors else {}
    return FilledCases(replace(bare, pictures=pictures, vectors=vectors), errors)


def _image_errors(portion: Portion, seen: Sequence[object]) -> dict[int, str]:
    """The reasons of items whose picture could not be read, by their place in the portion."""
    reasons = {number: str(found) for number, found in enumerate(seen) if isinstance(found, RowError)}
    return {place: reasons[owner] for place, owner in enumerate(portion.owner) if owner in reasons}


def _read_all(images: Sequence[Image], decode: Callable[[Path | bytes], Seen | RowError]) -> list[Seen | RowError]:
    """Read pictures side by side, those inside tables in the order they lie there."""

    def where(number: int) -> tuple[str, int]:
        image = images[number]
        return (str(image.file), image.row) if isinstance(image, StoredImage) else ("", number)

    def read(number: int) -> Seen | RowError:
        try:
            return decode(picture(images[number]))
        except RowError as error:
            return error

    order = sorted(range(len(images)), key=where)
    with ThreadPoolExecutor(_DECODERS) as pool:
        found = dict(zip(order, pool.map(read, order), strict=True))
    return [found[number] for number in range(len(images))]
