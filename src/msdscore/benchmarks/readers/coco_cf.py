"""COCO-CF: a generated COCO caption against its counterfactual edit, in an easy and a hard split."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Note, Pair, Reading
from msdscore.benchmarks.readers.files import chosen, field, find, folder, read_json

SPLITS = ("easy", "hard")
GET = "the MSD-Score authors: the file is not released"


def read(root: Path, *, splits: str | Sequence[str] = SPLITS) -> Reading[Pair]:
    """The pairs of `coco_cf_SPLIT.json`: a list of rows, or {"data": rows, "meta": …}.

    A caption that begins with "ERROR:" is a failed generation, and its row is left out and counted.
    """
    pairs, failed = [], 0
    images = folder(root, "val2017", "images/val2017", "data/images/val2017")
    for split in chosen("split", splits, SPLITS):
        name = f"coco_cf_{split}.json"
        path = find(root, name, f"coco_cf/{name}", f"data/coco_cf/{name}", get=GET)
        blob = read_json(path)
        rows = blob["data"] if isinstance(blob, dict) and "data" in blob else blob
        kept = _split(path, split, rows, images)
        failed += len(rows) - len(kept)
        pairs += kept
    notes = (Note("failed generations left out", failed),) if failed else ()
    return Reading(tuple(pairs), notes)


def _split(path: Path, split: str, rows: list[dict[str, Any]], images: Path) -> list[Pair]:
    seen: Counter[str] = Counter()
    pairs = []
    for number, row in enumerate(rows):
        where = f"{path} row {number}"
        positive = field(row, "caption", where=where)
        negative = field(row, "negative_caption", "neg_caption", where=where)
        image = Path(field(row, "image_path", where=where))
        place = image if image.is_file() else images / image.name
        key = str(row.get("image_id", image.stem))
        if not any(str(text).startswith("ERROR:") for text in (positive, negative)):
            identity = f"{split}/{key}:{seen[key]}"
            pairs.append(Pair(identity, place, positive, negative, subset=split))
        seen[key] += 1
    return pairs
