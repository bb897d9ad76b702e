"""Composite: captions of Flickr8k, Flickr30k and COCO images, rated 1 to 5 for correctness."""

import csv
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import ItemSet, Note, Rated
from msdscore.benchmarks.readers.files import field, find, find_optional, folder, read_json, tidy
from msdscore.benchmarks.readers.flickr8k import read_tokens, stem
from msdscore.errors import InputError

GET = "https://imagesdg.wordpress.com (AMT exports of Composite), or composite.json of FLEUR"
_FILES = {"flickr8k": "8k", "flickr30k": "30k", "coco": "coco"}
_FOLDERS = {
    "flickr8k": ("Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k"),
    "flickr30k": ("flickr30k-images", "flickr30k_images", "flickr30k"),
    "coco": ("val2014", "coco/val2014"),
}
_MOST_TEXTS = 4


def read(root: Path) -> ItemSet[Rated]:
    """The ratings of `composite.json`, or of the three `…_correctness.csv` exports (separator ;).

    References are read where their files lie beside it; the rated caption itself is never among them.
    """
    packed = find_optional(root, "composite.json")
    counted = _from_json(packed) if packed else _from_exports(root)
    references, seen, items = _references(root), Counter[str](), []
    for source, image, caption, rating in counted[0]:
        key = f"{source}/{stem(image)}"
        name = image if Path(image).suffix else f"{image}.jpg"
        others = tuple(r for r in references.get(key, ()) if r != caption)
        place = folder(root, *_FOLDERS[source]) / Path(name).name
        items.append(Rated(f"{key}:{seen[key]}", place, caption, (rating,), others, subset=source))
        seen[key] += 1
    return ItemSet(tuple(items), counted[1])


_Row = tuple[str, str, str, float]


def _from_json(path: Path) -> tuple[list[_Row], tuple[Note, ...]]:
    rows = []
    for source, entries in read_json(path).items():
        if source not in _FILES:
            raise InputError(f"{path}: expected the sources {', '.join(_FILES)}, got {source!r}")
        for number, entry in enumerate(entries):
            where = f"{path} {source} row {number}"
            image, caption, human = (field(entry, f, where=where) for f in ("image", "caption", "human"))
            rows.append((source, str(image), tidy(caption), float(human)))
    return rows, ()


def _from_exports(root: Path) -> tuple[list[_Row], tuple[Note, ...]]:
    rows: list[_Row] = []
    unusable = 0
    for source, short in _FILES.items():
        path = find(root, f"{short}_correctness.csv", f"AMT_eval/{short}_correctness.csv", get=GET)
        for record in csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=";"):
            found = _rated(record)
            # The exports end in rows without an image.
            image = str(record.get("Input.image_url") or "").rsplit("/", 1)[-1]
            unusable += not (found and image)
            rows += [(source, image, caption, rating) for caption, rating in found if image]
    notes = (Note("export rows left out: no picture or no rating", unusable),) if unusable else ()
    return rows, notes


def _rated(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    found = []
    for k in range(1, _MOST_TEXTS + 1):
        caption, answer = record.get(f"Input.text{k}"), str(record.get(f"Answer.Q{k}Answer") or "").strip()
        if caption and answer.replace(".", "", 1).isdigit():
            found.append((tidy(caption), float(answer)))
    return found


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")  # the encoding of spreadsheet exports


def _references(root: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for source, name in (("flickr8k", "Flickr8k.token.txt"), ("flickr30k", "results_20130124.token")):
        path = find_optional(root, name, f"*/{name}")
        if path is not None:
            for image, captions in read_tokens(path)[1].items():
                found[f"{source}/{image}"] = tuple(tidy(caption) for caption in captions)
    for image_id, captions in coco_captions(root).items():
        found[f"coco/COCO_val2014_{image_id:012d}"] = tuple(captions)
    return found


def coco_captions(root: Path) -> dict[int, list[str]]:
    """COCO val2014 captions by image id, or nothing where the annotation file does not lie under `root`."""
    path = find_optional(root, "captions_val2014.json", "annotations/captions_val2014.json")
    captions: dict[int, list[str]] = {}
    if path is not None:
        for row in field(read_json(path), "annotations", where=str(path)):
            captions.setdefault(int(row["image_id"]), []).append(tidy(row["caption"]))
    return captions
