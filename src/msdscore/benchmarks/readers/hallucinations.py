"""Captions with marked inventions: HAT, by people and word by word, and long captions marked by CHAIR's rule."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Image, ItemSet, Note, Rated
from msdscore.benchmarks.readers.files import field, find, locate, missing, read_json, tidy
from msdscore.benchmarks.readers.rows import find_rows, read_lines

GET_HAT = "https://github.com/DavidMChan/aloha (data/hat-trainval.json)"
GET_LONG = "your captioner and CHAIR (https://github.com/LisaAnne/Hallucination)"
CLEAN, INVENTS = 1.0, 0.0
_FOLDERS = ("val2014", "train2014", "coco/val2014", "coco/train2014", "images")


@dataclass(frozen=True, slots=True)
class MarkedCaption:
    """A caption whose inventions are known: words split at spaces (HAT), or object classes by name (CHAIR).

    `words` holds (word, invented); `present` and `absent` are object classes that the caption names.
    """

    id: str
    image: Image
    caption: str
    words: tuple[tuple[str, bool], ...] = ()
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


def read_hat(root: Path) -> ItemSet[Rated]:
    """HAT: captions of COCO images, rated 1 where no word is invented and 0 where one is."""
    return _rated(read_hat_words(root))


def read_long(root: Path) -> ItemSet[Rated]:
    """Long captions of several systems, rated 1 where no named object is absent and 0 where one is."""
    return read_long_rows(_long_file(root))


def read_long_rows(path: Path) -> ItemSet[Rated]:
    """The same from a rows file with `hallucinated` and `objects`."""
    return ItemSet(tuple(
        Rated(line.id, line.image, tidy(line.get("caption")), (INVENTS if line.get("hallucinated") else CLEAN,),
              line.references, line.subset, str(line.fields.get("system", "")))
        for line in read_lines(path)
    ))  # fmt: skip


def read_hat_words(root: Path) -> list[MarkedCaption]:
    """HAT's captions with the words that people marked."""
    path = find(root, "hat-trainval.json", "data/hat-trainval.json", "*hat*.json", get=GET_HAT)
    return [_marked(root, path, number, row) for number, row in enumerate(read_json(path, list))]


def read_long_words(root: Path) -> list[MarkedCaption]:
    """Long captions with the objects that they name, present and absent."""
    found = []
    for line in read_lines(_long_file(root)):
        absent = tuple(map(str, line.get("hallucinated")))
        present = tuple(name for name in map(str, line.get("objects")) if name not in absent)
        found.append(MarkedCaption(line.id, line.image, str(line.get("caption")), present=present, absent=absent))
    return found


def _long_file(root: Path) -> Path:
    path = find_rows(root, "long")
    if path is None:
        raise missing(root, "long.jsonl", get=GET_LONG)
    return path


def _marked(root: Path, path: Path, number: int, row: dict[str, Any]) -> MarkedCaption:
    where = f"{path} row {number}"
    words = tuple((str(word), bool(invented)) for word, invented in field(row, "grounding", where=where))
    image = locate(root, str(field(row, "image_path", where=where)), *_FOLDERS)
    key = str(row.get("sample_id", number))
    references = tuple(tidy(text) for text in row.get("references") or ())
    return MarkedCaption(
        f"{key}:{number}", image, str(field(row, "caption", where=where)), words, references=references
    )


def _rated(captions: list[MarkedCaption]) -> ItemSet[Rated]:
    """Captions with a rating; those without a marked or unmarked word cannot be told and are left out."""
    items = tuple(
        Rated(
            marked.id,
            marked.image,
            tidy(marked.caption),
            (INVENTS if any(invented for _, invented in marked.words) else CLEAN,),
            marked.references,
        )
        for marked in captions
        if marked.words
    )
    bare = len(captions) - len(items)
    return ItemSet(items, (Note("captions left out: no word is marked", bare),) if bare else ())
