"""DocENT: art students' choices between two descriptions, on mistakes, omissions and overall quality."""

from collections import Counter
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Aspect, Battle, Image, ItemSet, Winner
from msdscore.benchmarks.readers.files import find_all, folder, missing
from msdscore.errors import InputError
from msdscore.io.parquet_images import StoredImage, read_columns, stored_images

ASPECTS = ("mistakes", "omissions", "overall_quality")
GET = "https://huggingface.co/datasets/amitha/docent-eval-coarse (pictures: amitha/docent)"
_LABELS = {
    "1_much_better": 2,
    "1_slightly_better": 1,
    "equal": 0,
    "2_slightly_better": -1,
    "2_much_better": -2,
}
_TEXTS = ("uuid", "model1", "model2", "model1_generation", "model2_generation", "reference")


def read(root: Path, *, split: str = "") -> ItemSet[Battle]:
    """The coarse judgements of a split; images lie in the Parquet files of `docent/`, or in `images/`.

    Without `split` it is `test`, or `coarse`: the name of the coarse judgements where both kinds lie in one folder.
    """
    names = (split,) if split else ("test", "coarse")
    places = [place for name in names for place in _places(name)]
    files = find_all(root, *places)
    if not files:
        raise missing(root, places[0], places[-1], get=GET)
    stored = stored_images(
        find_all(root, "docent/**/*.parquet", "images/**/*.parquet", "images_parquet/**/*.parquet"), "uuid"
    )
    images = folder(root, "images")
    seen: Counter[str] = Counter()
    return ItemSet(tuple(battle for file in files for battle in _battles(file, stored, images, seen)))


def _places(split: str) -> list[str]:
    folders = ("docent-eval-coarse", "coarse", "coarse_annotations", "docent-eval")
    return [*(f"{name}/**/{split}-*.parquet" for name in folders), f"data/{split}-*.parquet", f"{split}-*.parquet"]


def _battles(file: Path, stored: dict[str, StoredImage], images: Path, seen: Counter[str]) -> list[Battle]:
    table = read_columns(file, _TEXTS + ASPECTS)
    battles = []
    for number in range(len(table["uuid"])):
        row = {name: column[number] for name, column in table.items()}
        uuid = str(row["uuid"]).strip()
        image: Image = stored.get(uuid) or images / f"{uuid}.jpg"
        battles.append(_battle(f"{file} row {number}", f"{uuid}:{seen[uuid]}", row, image))
        seen[uuid] += 1
    return battles


def _battle(where: str, identity: str, row: dict[str, Any], image: Image) -> Battle:
    aspects = tuple(Aspect(name, _preference(row[name], f"{where} {name}")) for name in ASPECTS)
    return Battle(
        id=identity,
        image=image,
        caption_a=row["model1_generation"],
        caption_b=row["model2_generation"],
        winner=_winner(aspects[-1].preference),
        system_a=row["model1"],
        system_b=row["model2"],
        verdict=row["overall_quality"],
        aspects=aspects,
        references=(row["reference"],) if row["reference"] else (),
    )


def _preference(label: object, where: str) -> int:
    if label not in _LABELS:
        raise InputError(f"{where}: expected one of {', '.join(_LABELS)}, got {label!r}")
    return _LABELS[str(label)]


def _winner(preference: int) -> Winner:
    if preference == 0:
        return "tie"
    return "a" if preference > 0 else "b"
