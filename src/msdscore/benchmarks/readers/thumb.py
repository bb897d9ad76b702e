"""THumB 1.0: captions of COCO images by four systems and by people, rated for precision and recall."""

from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Image, ItemSet, Rated, Scale
from msdscore.benchmarks.readers.files import field, find, find_optional, locate, read_jsonl, tidy
from msdscore.benchmarks.readers.rows import read_lines

GET = "https://github.com/jungokasai/THumB (mscoco/mscoco_THumB-1.0.jsonl)"
HUMAN = "Human"
_FOLDERS = ("val2014", "coco/val2014", "images/val2014", "images")
_PENALTIES = (("Fl", "fluency"), ("Con", "conciseness"), ("Inc", "inclusive"))


def read(root: Path) -> ItemSet[Rated]:
    """The released file; references where `mscoco_references.json` lies beside it."""
    path = find(root, "mscoco_THumB-1.0.jsonl", "mscoco/mscoco_THumB-1.0.jsonl", get=GET)
    references = _references(find_optional(path.parent, "mscoco_references.json*"))
    items = []
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path} row {number}"
        image, segment = str(field(row, "image", where=where)), str(field(row, "seg_id", where=where))
        key = f"{segment}/{field(row, 'SYS', 'system', where=where)}"
        items.append(_rated(key, locate(root, image, *_FOLDERS), row, where, references.get(segment, ())))
    return ItemSet(tuple(items))


def _references(path: Path | None) -> dict[str, tuple[str, ...]]:
    """References by `seg_id`. The released file is JSON Lines despite its name."""
    if path is None:
        return {}
    rows = [(f"{path} row {number}", row) for number, row in enumerate(read_jsonl(path), start=1)]
    return {
        str(field(row, "seg_id", where=where)): tuple(tidy(text) for text in field(row, "refs", where=where))
        for where, row in rows
    }


def read_rows(path: Path) -> ItemSet[Rated]:
    """The rows form, with `system`, `precision`, `recall`, penalties and `human`."""
    if path.name.startswith("mscoco_THumB"):  # the released file is JSON Lines too
        return read(path.parent)
    return ItemSet(
        tuple(_rated(line.id, line.image, line.fields, line.where, line.references) for line in read_lines(path))
    )


def _rated(key: str, image: Image, row: dict[str, Any], where: str, references: tuple[str, ...]) -> Rated:
    precision, recall = (float(field(row, *names, where=where)) for names in (("P", "precision"), ("R", "recall")))
    penalties = sum(float(row.get(short, row.get(name, 0.0))) for short, name in _PENALTIES)
    total = float(row.get("human_score", row.get("human", (precision + recall) / 2 + penalties)))
    return Rated(
        id=key,
        image=image,
        caption=tidy(field(row, "hyp", "caption", where=where)),
        ratings=(total,),
        references=references,
        system=str(field(row, "SYS", "system", where=where)),
        scales=(Scale("precision", precision), Scale("recall", recall)),
    )
