"""FOIL: a COCO caption against the same caption with one wrong word."""

from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from msdscore.benchmarks.base import ItemSet, Note, Pair, image_key
from msdscore.benchmarks.readers.composite import coco_captions
from msdscore.benchmarks.readers.files import field, find, folder, read_json, tidy

GET = "https://foilunitn.github.io (foilv1.0_test_2017.json)"


def read(root: Path, *, sample: Literal["all", "one-per-image"] = "all", seed: int = 0) -> ItemSet[Pair]:
    """Every original caption with each of its foils, or one such pair per image by `seed` (CLIPScore's way).

    Annotations that share an `id` belong together: one original, one or more foils. References are the
    image's other COCO captions, where `captions_val2014.json` lies under `root`.
    """
    path = find(root, "foilv1.0_test_2017.json", "foil/foilv1.0_test_2017.json", get=GET)
    found = read_json(path)
    names = {row["id"]: row["file_name"] for row in found.get("images", ())}
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in field(found, "annotations", where=str(path)):
        groups[field(row, "id", where=str(path))].append(row)
    images, references = folder(root, "val2014", "coco/val2014", "images/val2014"), coco_captions(root)
    pairs = [pair for group in groups.values() for pair in _pairs(group, names, images, references)]
    single = sum(1 for group in groups.values() if not _whole(group))
    notes = (Note("captions left out: not one original with a foil", single),) if single else ()
    return ItemSet(tuple(pairs if sample == "all" else _one_each(pairs, seed)), notes)


def _whole(group: list[dict[str, Any]]) -> bool:
    originals = sum(not row["foil"] for row in group)
    return originals == 1 and len(group) > 1


def _pairs(
    group: list[dict[str, Any]], names: dict[int, str], images: Path, references: dict[int, list[str]]
) -> list[Pair]:
    if not _whole(group):
        return []
    original = next(row for row in group if not row["foil"])
    number = int(original["image_id"])
    image = images / names.get(number, f"COCO_val2014_{number:012d}.jpg")
    positive = tidy(original["caption"])
    others = tuple(text for text in references.get(number, ()) if text != positive)
    foils = [tidy(row["caption"]) for row in group if row["foil"]]
    return [
        Pair(f"{original['id']}/{k}", image, positive, negative, references=others) for k, negative in enumerate(foils)
    ]


def _one_each(pairs: list[Pair], seed: int) -> list[Pair]:
    by_image: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_image[image_key(pair.image)].append(pair)
    rng = np.random.default_rng(seed)
    return [group[rng.integers(len(group))] for group in by_image.values()]
