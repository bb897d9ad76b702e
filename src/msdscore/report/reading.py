"""A scored file as columns: numbers, captions, errors, and what else its rows hold."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES
from msdscore.io.inputs.formats import open_records
from msdscore.io.outputs.manifest import RUN_NOTES
from msdscore.scoring.measurement import UNTOLD
from msdscore.scoring.results import COLUMNS

Floats = npt.NDArray[np.float64]
NUMBERS = tuple(name for name in COLUMNS if name not in ("warnings", "error"))
SYSTEM_NAMES = ("system", "captioner", "model")
_PICTURE_KEYS = (*IMAGE_NAMES, "image_id")
_CELL = 200  # characters of another column that the page shows


@dataclass(frozen=True, slots=True)
class Results:
    """A scored file, column by column; a number that is missing is NaN, a text that is missing is empty."""

    name: str
    signature: str
    ids: tuple[str, ...]
    captions: tuple[str, ...]
    pictures: tuple[str, ...]  # what tells pictures apart: a path or an id
    errors: tuple[str, ...]
    systems: tuple[str, ...] | None
    numbers: Mapping[str, Floats]
    others: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.ids)


def read_results(path: Path) -> Results:
    """Read a file that `msdscore score` wrote."""
    with ExitStack() as stack:
        records = open_records(path, format=None, until=stack)
        rows = [record.values for record in records.read()]
    names = list(dict.fromkeys([*(records.columns or ()), *(name for row in rows for name in row)]))
    lacking = [name for name in ("msd", "coverage", "support") if name not in names]
    if lacking:
        found = ", ".join(names) or "none"
        raise InputError(
            f"{path}: expected a scored file with {', '.join(lacking)}; found: {found}; run msdscore score"
        )
    caption, picture, system = (_first(names, known) for known in (CAPTION_NAMES, _PICTURE_KEYS, SYSTEM_NAMES))
    used = {"id", caption, system, *COLUMNS} - {"warnings"}
    return Results(
        name=path.name,
        signature=signature_of(path),
        ids=tuple(_text(row.get("id", number)) for number, row in enumerate(rows)),
        captions=_texts(rows, caption),
        pictures=_texts(rows, picture),
        errors=_texts(rows, "error"),
        systems=None if system is None else _texts(rows, system),
        numbers=_numbers(rows, names),
        others={name: tuple(text[:_CELL] for text in _texts(rows, name)) for name in names if name not in used},
    )


def _numbers(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Floats]:
    """The columns of numbers; those that no row has, because the bank could not tell them, are left out."""
    found = {name: np.array([_number(row.get(name)) for row in rows]) for name in NUMBERS if name in names}
    return {name: values for name, values in found.items() if name not in UNTOLD or not np.isnan(values).all()}


def signature_of(path: Path) -> str:
    """The signature that a Parquet file carries in its schema, or that lies beside the others; empty if none does."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        found = (pq.read_schema(path).metadata or {}).get(b"msdscore", b"").decode()
        if found:
            return str(found)
    sidecar = path.with_name(path.name + RUN_NOTES)
    try:
        manifest = json.loads(sidecar.read_text(encoding="utf-8"))["manifest"]
        return str(manifest["signature"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _texts(rows: Sequence[Mapping[str, Any]], name: str | None) -> tuple[str, ...]:
    return tuple("" if name is None else _text(row.get(name)) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a stored picture: its path tells it apart
        value = value.get("path")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
