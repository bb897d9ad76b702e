"""COCO-CF: a generated COCO caption against its counterfactual edit, in an easy and a hard split."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Image, ItemSet, Note, Pair
from msdscore.benchmarks.readers.files import chosen, field, find, find_all, folder, read_json
from msdscore.io.parquet_images import stored_images

SPLITS = ("easy", "hard")
GET = "the MSD-Score authors: the file is not released"


def read(root: Path, *, splits: str | Sequence[str] = SPLITS, images: str = "", by: str = "split") -> ItemSet[Pair]:
    """The pairs of `coco_cf_SPLIT.json`: a list of rows, or {"data": rows, "meta": …}.

    A caption that begins with "ERROR:" is a failed generation, and its row is left out and counted. `images` is another
    folder of the images, or of Parquet files that hold them (`*.images*.parquet`). With `by=change` the parts are the
    changes that the rows record (`easy/replace_obj`), with `by=captioner` the sources of the captions.
    """
    pairs, failed, part = [], 0, _PARTS[chosen("way to part", by, _PARTS)[0]]
    place = _places(root, images)
    for split in chosen("split", splits, SPLITS):
        name = f"coco_cf_{split}.json"
        path = find(root, name, f"coco_cf/{name}", f"data/coco_cf/{name}", get=GET)
        content = read_json(path, (list, dict))
        rows = field(content, "data", where=str(path)) if isinstance(content, dict) else content
        kept = _split(path, split, rows, place, part)
        failed += len(rows) - len(kept)
        pairs += kept
    notes = (Note("failed generations left out", failed),) if failed else ()
    return ItemSet(tuple(pairs), notes)


_PARTS = {"split": "", "change": "subset", "captioner": "captioner"}
ImageFinder = Callable[[Path], Image]


def _places(root: Path, images: str) -> ImageFinder:
    """Where the image of a name lies."""
    home = Path(images) if images else folder(root, "val2017", "images/val2017", "data/images/val2017")
    stored = stored_images(find_all(home, "*.images*.parquet"), "file_name") if images else {}
    return lambda image: stored.get(image.name) or (image if image.is_file() else home / image.name)


def _split(path: Path, split: str, rows: list[dict[str, Any]], place: ImageFinder, part: str) -> list[Pair]:
    seen: Counter[str] = Counter()
    pairs = []
    for number, row in enumerate(rows):
        where = f"{path} row {number}"
        positive = field(row, "caption", where=where)
        negative = field(row, "negative_caption", "neg_caption", where=where)
        image = Path(field(row, "image_path", where=where))
        key = str(row.get("image_id", image.stem))
        if not any(str(text).startswith("ERROR:") for text in (positive, negative)):
            subset = f"{split}/{field(row, part, where=where)}" if part else split
            pairs.append(Pair(f"{split}/{key}:{seen[key]}", place(image), positive, negative, subset=subset))
        seen[key] += 1
    return pairs
