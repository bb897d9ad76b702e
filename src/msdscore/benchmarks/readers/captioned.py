"""RSICD and ROCOv2, which have captions only: a picture's own caption against one of another picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msdscore.benchmarks.base import Image, Note, Pair, Reading
from msdscore.benchmarks.readers.files import find_all, missing, tidy
from msdscore.errors import InputError
from msdscore.io.parquet_images import StoredImage, read_columns

GET_RSICD = "https://huggingface.co/datasets/arampacha/rsicd (folder data)"
GET_ROCOV2 = "https://huggingface.co/datasets/eltorio/ROCOv2-radiology (folder data; non-commercial licence)"
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Captioned:
    """A picture with all its captions."""

    id: str
    image: Image
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaptionColumns:
    """The columns that name a picture and hold its caption, or its list of captions."""

    name: str
    captions: str


def read_rsicd(root: Path, *, split: str = "test", seed: int = 0) -> Reading[Pair]:
    """RSICD, remote sensing: one pair per picture of a split (train, valid or test), drawn by `seed`."""
    return read_split(root, split, CaptionColumns("filename", "captions"), seed=seed, get=GET_RSICD)


def read_rocov2(root: Path, *, split: str = "test", seed: int = 0) -> Reading[Pair]:
    """ROCOv2, radiology: one pair per picture of a split (train, validation or test), drawn by `seed`."""
    return read_split(root, split, CaptionColumns("image_id", "caption"), seed=seed, get=GET_ROCOV2)


def read_split(root: Path, split: str, columns: CaptionColumns, *, seed: int, get: str) -> Reading[Pair]:
    """One pair a picture of a split that lies as Parquet files in the layout of Hugging Face datasets."""
    places = (f"data/{split}-*.parquet", f"{split}-*.parquet", f"**/{split}/*.parquet")
    files = find_all(root, *places)
    if not files:
        raise missing(root, *places[:2], get=get)
    entries = [entry for file in files for entry in _entries(file, columns)]
    usable = [entry for entry in entries if entry.captions]
    bare = len(entries) - len(usable)
    notes = (Note("pictures left out: no caption", bare),) if bare else ()
    return Reading(tuple(draw_pairs(usable, seed)), notes)


def draw_pairs(entries: Sequence[Captioned], seed: int) -> list[Pair]:
    """One pair a picture: its first caption, and a caption of another picture that none of its own equals.

    >>> sea, sky = (Captioned(n, Path(n), (f"the {n}",)) for n in ("sea", "sky"))
    >>> [(pair.positive, pair.negative) for pair in draw_pairs([sea, sky], seed=0)]
    [('the sea', 'the sky'), ('the sky', 'the sea')]
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for own, entry in enumerate(entries):
        first, *rest = entry.captions
        pairs.append(Pair(entry.id, entry.image, first, _stranger(entries, own, rng), references=tuple(rest)))
    return pairs


def _entries(file: Path, columns: CaptionColumns) -> list[Captioned]:
    table = read_columns(file, (columns.name, columns.captions))
    entries = []
    for row, (name, found) in enumerate(zip(table[columns.name], table[columns.captions], strict=True)):
        texts = [found] if isinstance(found, str) else found or []
        captions = tuple(tidy(text) for text in texts if text and tidy(text))
        path = Path(str(name))
        entries.append(Captioned(path.stem, StoredImage(path.name, file, row), captions))
    return entries


def _stranger(entries: Sequence[Captioned], own: int, rng: np.random.Generator) -> str:
    known = {caption.lower() for caption in entries[own].captions}
    for _ in range(_TRIES):
        other = entries[int(rng.integers(len(entries)))]
        caption = other.captions[int(rng.integers(len(other.captions)))]
        if other.id != entries[own].id and caption.lower() not in known:
            return caption
    raise InputError(
        f"no caption of another picture was found for {entries[own].id} in {_TRIES} draws; "
        "expected several pictures with different captions"
    )
