"""Training pairs: pictures with their captions, from every data format, indexed but not loaded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError
from msdscore.io.parquet_images import StoredImage
from msdscore.io.tar import TarImage

Picture: TypeAlias = Path | StoredImage | TarImage  # where a training picture lies


@dataclass(frozen=True, slots=True)
class TrainingPair:
    """One picture with all its captions, and more where the data supplies it."""

    picture: Picture
    captions: tuple[str, ...]
    negatives: tuple[str, ...] = ()  # hard ones, wrong on purpose
    machine: tuple[str, ...] = ()  # captions by a model: likely, not sure
    objects: tuple[str, ...] | None = None  # names of annotated classes; None: not annotated
    name: str = ""  # of the picture, as its row gives it
    times: int = 1  # how often an epoch of a resident run shows it


@dataclass(frozen=True, slots=True)
class Skip:
    """One row of the input that gives no pair, and why."""

    reason: str


Found = TrainingPair | Skip


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of an input; `blocks[i]` numbers the shard or row group of pair i."""

    items: tuple[TrainingPair, ...]
    blocks: npt.NDArray[np.int64]
    fingerprint: str
    skipped: int = 0
    reasons: tuple[str, ...] = field(default=())  # of the first skipped rows

    def __len__(self) -> int:
        return len(self.items)

    def take(self, numbers: Sequence[int]) -> "Pairs":
        """Some of the pairs, with a fingerprint of their own."""
        items = tuple(self.items[number] for number in numbers)
        blocks = self.blocks[np.array(numbers, dtype=np.int64)]
        return Pairs(items, blocks, _fingerprint(items), self.skipped, self.reasons)


_REASONS = 5


def collect(found: Iterable[Found], *, source: str) -> Pairs:
    """Pairs of an input; rows of the same picture become one pair, so that no caption is its picture's negative.

    Raises:
        InputError: there is no pair at all.
    """
    merged: dict[Picture, TrainingPair] = {}
    reasons: list[str] = []
    skipped = 0
    for item in found:
        if isinstance(item, Skip):
            skipped += 1
            reasons += [item.reason] if len(reasons) < _REASONS else []
        else:
            merged[item.picture] = _join(merged.get(item.picture), item)
    if not merged:
        why = f"; first reason: {reasons[0]}" if reasons else ""
        raise InputError(f"{source}: no picture with a caption among {skipped} rows{why}")
    items = tuple(merged.values())
    return Pairs(items, _blocks(items), _fingerprint(items), skipped, tuple(reasons))


def checked(pair: TrainingPair) -> Found:
    """The pair with the texts that hold something, or the reason why there is none."""
    texts = _texts(pair.captions)
    if not texts:
        return Skip(f"{picture_name(pair.picture)}: no caption")
    return replace(pair, captions=texts, negatives=_texts(pair.negatives), machine=_texts(pair.machine))


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(value.strip() for value in values if isinstance(value, str) and value.strip())


def picture_content(picture: Picture) -> Path | bytes:
    """The path of a file, or the bytes of a picture kept elsewhere.

    Raises:
        ImageError: there are no bytes.
    """
    return picture if isinstance(picture, Path) else picture.read()


def _join(first: TrainingPair | None, second: TrainingPair) -> TrainingPair:
    if first is None:
        return second
    known = [objects for objects in (first.objects, second.objects) if objects is not None]
    return TrainingPair(
        first.picture,
        _all(first.captions, second.captions),
        _all(first.negatives, second.negatives),
        _all(first.machine, second.machine),
        _all(*known) if known else None,
        first.name or second.name,
        max(first.times, second.times),
    )


def _all(*parts: tuple[str, ...]) -> tuple[str, ...]:
    """Different texts of all parts, in order."""
    return tuple(dict.fromkeys(text for part in parts for text in part))


def _blocks(items: Sequence[TrainingPair]) -> npt.NDArray[np.int64]:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(_block(item.picture), len(numbers)) for item in items], dtype=np.int64)


def _block(picture: Picture) -> object:
    if isinstance(picture, StoredImage):
        return picture.file, picture.group
    return picture.path if isinstance(picture, TarImage) else picture


def _fingerprint(items: Sequence[TrainingPair]) -> str:
    """A hash of names and captions in order; folders may move."""
    digest = blake2b(digest_size=16)
    for item in items:
        name = item.name or picture_name(item.picture)
        for text in (name, *item.captions, *item.negatives, *item.machine, *(item.objects or ())):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def picture_name(picture: Picture) -> str:
    """A name of a picture that stays when folders move."""
    if isinstance(picture, StoredImage):
        return f"{picture.file.name}:{picture.row}"
    return f"{picture.path.name}:{picture.offset}" if isinstance(picture, TarImage) else picture.name
