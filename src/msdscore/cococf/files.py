"""COCO-CF on disk, in the authors' schema: `coco_cf_easy.json` and `coco_cf_hard.json`, with the change recorded."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from msdscore.benchmarks.readers.files import field, read_json
from msdscore.cococf.build import Built, CounterfactualPair
from msdscore.cococf.changes import SPLITS, Split
from msdscore.errors import InputError
from msdscore.version import __version__


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """A row of a COCO-CF file; `subset`, `source` and spans are empty in files that do not record the change."""

    image: str
    positive: str
    negative: str
    split: str
    subset: str = ""
    source: str = ""
    positive_spans: tuple[tuple[int, int], ...] = ()
    negative_spans: tuple[tuple[int, int], ...] = ()


def split_name(split: Split) -> str:
    """The file of a split."""
    return f"coco_cf_{split}.json"


def contents(built: Built, made_from: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a benchmark by name."""
    return {split_name(split): _dump(_document(built, split, made_from)) for split in SPLITS}


def read_written(paths: Sequence[Path]) -> list[WrittenPair]:
    """The rows of COCO-CF files, ours or the authors'; a folder stands for the files of both splits in it."""
    files = [
        file for path in paths for file in ([path / split_name(one) for one in SPLITS] if path.is_dir() else [path])
    ]
    found: list[WrittenPair] = []
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected the folder that msdscore cococf build wrote")
        content = read_json(file, (dict, list))
        rows = field(content, "data", where=str(file)) if isinstance(content, dict) else content
        split = next((one for one in get_args(Split) if one in file.stem), "")
        found += [_written(row, split, f"{file} row {number}") for number, row in enumerate(rows)]
    if not found:
        raise InputError(f"{files[0]}: expected pairs of captions, got none")
    return found


def written(pair: CounterfactualPair) -> WrittenPair:
    """A pair as its file holds it."""
    made = pair.made
    return WrittenPair(
        pair.picture.name, made.positive, made.negative, pair.split, made.subset, pair.source, made.positive_spans,
        made.negative_spans,
    )  # fmt: skip


def _document(built: Built, split: Split, made_from: Mapping[str, Any]) -> dict[str, Any]:
    pairs = built.of(split)
    meta = {
        "gen_captions": dict(sorted(Counter(pair.source for pair in pairs).items())),
        "subsets": dict(sorted(Counter(pair.made.subset for pair in pairs).items())),
        "split": split,
        "settings": asdict(built.settings),
        "made_from": dict(made_from),
        "version": __version__,
    }
    return {"meta": meta, "data": [_row(number, pair) for number, pair in enumerate(pairs)]}


def _row(number: int, pair: CounterfactualPair) -> dict[str, Any]:
    made = pair.made
    change = {
        "action": made.action,
        "kind": made.kind,
        "removed": list(made.removed),
        "inserted": list(made.inserted),
        "caption_spans": [list(span) for span in made.positive_spans],
        "negative_spans": [list(span) for span in made.negative_spans],
    }
    return {
        "id": f"{pair.split}/{number}",
        "image_id": pair.picture.number,
        "image_path": pair.picture.name,
        "caption": made.positive,
        "negative_caption": made.negative,
        "captioner": pair.source,
        "subset": made.subset,
        "change": change,
    }


def _written(row: dict[str, Any], split: str, where: str) -> WrittenPair:
    image = str(field(row, "image_path", where=where))
    change = row.get("change") or {}
    spans = [tuple((int(a), int(b)) for a, b in change.get(f"{one}_spans", ())) for one in ("caption", "negative")]
    return WrittenPair(
        image,
        str(field(row, "caption", where=where)),
        str(field(row, "negative_caption", "neg_caption", where=where)),
        split,
        str(row.get("subset", "")),
        str(row.get("captioner", "")),
        *spans,
    )


def _dump(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
