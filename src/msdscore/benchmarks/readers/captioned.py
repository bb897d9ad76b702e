"""RSICD and ROCOv2, which have captions only: an image's own caption against one of another image."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from msdscore.benchmarks.base import Image, ItemSet, Pair, noted
from msdscore.benchmarks.readers.files import all_tidy, find_all, missing
from msdscore.errors import InputError, unknown_name
from msdscore.io.parquet_images import StoredImage, read_columns

GET_RSICD = "https://huggingface.co/datasets/arampacha/rsicd (folder data)"
GET_ROCOV2 = "https://huggingface.co/datasets/eltorio/ROCOv2-radiology (folder data; non-commercial licence)"
_TRIES = 100
Negatives = Literal["easy", "hard"]


@dataclass(frozen=True, slots=True)
class CaptionedImage:
    """An image with all its captions."""

    id: str
    image: Image
    captions: tuple[str, ...]


def read_rsicd(root: Path, *, split: str = "test", seed: int = 0, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """RSICD, remote sensing: one pair per image of a split (train, valid or test), drawn by `seed`."""
    return draw_pairs(_read_split(root, split, "filename", "captions", get=GET_RSICD), seed, negatives)


def read_rocov2(root: Path, *, split: str = "test", seed: int = 0) -> ItemSet[Pair]:
    """ROCOv2, radiology: one pair per image of a split (train, validation or test), drawn by `seed`."""
    return draw_pairs(_read_split(root, split, "image_id", "caption", get=GET_ROCOV2), seed)


def _read_split(root: Path, split: str, names: str, captions: str, *, get: str) -> list[CaptionedImage]:
    """The images of a split in Parquet files, by their columns of names and of captions (one, or a list)."""
    patterns = (f"data/{split}-*.parquet", f"{split}-*.parquet", f"**/{split}/*.parquet")
    files = find_all(root, *patterns)
    if not files:
        raise missing(root, *patterns[:2], get=get)
    entries = []
    for file in files:
        table = read_columns(file, (names, captions))
        for row, (name, content) in enumerate(zip(table[names], table[captions], strict=True)):
            texts = all_tidy([content] if isinstance(content, str) else [text for text in content or () if text])
            image = StoredImage(Path(str(name)).name, file, row)
            entries.append(CaptionedImage(Path(str(name)).stem, image, tuple(filter(None, texts))))
    return entries


def draw_pairs(entries: Sequence[CaptionedImage], seed: int, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """One pair per image: its first caption, and a caption of another image that none of its own equals.

    Hard negatives come from images of the same scene class, which is what the file name has before its last
    underscore (`airport_12.jpg`); an image that is alone in its class is left out and counted.

    >>> sea, sky = (CaptionedImage(n, Path(n), (f"the {n}",)) for n in ("sea", "sky"))
    >>> [(pair.positive, pair.negative) for pair in draw_pairs([sea, sky], seed=0).items]
    [('the sea', 'the sky'), ('the sky', 'the sea')]
    """
    if negatives not in get_args(Negatives):
        raise unknown_name("kind of negatives", negatives, get_args(Negatives))
    usable = [entry for entry in entries if entry.captions]
    others: dict[str, list[CaptionedImage]] = defaultdict(list)
    scenes = [Path(entry.image.name).stem.rpartition("_")[0] if negatives == "hard" else "" for entry in usable]
    for entry, scene in zip(usable, scenes, strict=True):
        others[scene].append(entry)
    rng = np.random.default_rng(seed)
    pairs = []
    for entry, scene in zip(usable, scenes, strict=True):
        stranger = _stranger(others[scene], entry, rng)
        if stranger is not None:
            first, *rest = entry.captions
            pairs.append(Pair(entry.id, entry.image, first, stranger, references=tuple(rest)))
        elif negatives == "easy":
            raise InputError(
                f"no caption of another image was found for {entry.id} in {_TRIES} draws; "
                "expected several images with different captions"
            )
    left_out = {
        "images left out: no caption": len(entries) - len(usable),
        "images left out: no other caption in their scene class": len(usable) - len(pairs),
    }
    return ItemSet(tuple(pairs), noted(left_out))


def _stranger(pool: Sequence[CaptionedImage], own: CaptionedImage, rng: np.random.Generator) -> str | None:
    known = {caption.lower() for caption in own.captions}
    for _ in range(_TRIES):
        other = pool[int(rng.integers(len(pool)))]
        caption = other.captions[int(rng.integers(len(other.captions)))]
        if other.id != own.id and caption.lower() not in known:
            return caption
    return None
