"""SugarCrepe: a COCO caption against a minimally changed one, in seven subsets."""

from collections.abc import Sequence
from pathlib import Path

from msdscore.benchmarks.base import ItemSet, Pair
from msdscore.benchmarks.readers.files import chosen, field, find, folder, read_json

SUBSETS = (
    "replace_obj",
    "replace_att",
    "replace_rel",
    "swap_obj",
    "swap_att",
    "add_obj",
    "add_att",
)
GET = "https://github.com/RAIVNLab/sugar-crepe (folder data)"


def read(root: Path, *, subsets: str | Sequence[str] = SUBSETS) -> ItemSet[Pair]:
    """The pairs of the released `SUBSET.json` files. Keys have gaps and become ids."""
    wanted = chosen("subset", subsets, SUBSETS)
    images = folder(root, "val2017", "images/val2017", "coco/images/val2017", "data/coco/images/val2017")
    return ItemSet(tuple(pair for name in wanted for pair in _subset(root, name, images)))


def _subset(root: Path, name: str, images: Path) -> list[Pair]:
    path = find(root, f"{name}.json", f"data/{name}.json", get=GET)
    pairs = []
    for key, row in read_json(path).items():
        where = f"{path} key {key}"
        image = images / field(row, "filename", where=where)
        positive, negative = (field(row, f, where=where) for f in ("caption", "negative_caption"))
        pairs.append(Pair(f"{name}/{key}", image, positive, negative, subset=name))
    return pairs
