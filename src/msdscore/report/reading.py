"""A scored file as columns: numbers, captions, errors, and what else its rows hold."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError
from msdscore.io.inputs.columns import IMAGE_NAMES, ColumnNames, first_of
from msdscore.io.inputs.formats import open_records
from msdscore.io.outputs.manifest import RUN_NOTES
from msdscore.run.table import Naming
from msdscore.scoring.score import ALL_COLUMNS, OPTIONAL

Floats = npt.NDArray[np.float64]
NUMBERS = tuple(name for name in ALL_COLUMNS if name not in ("reading", "warnings", "error"))
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
    run = run_facts(path)
    with ExitStack() as stack:
        records = open_records(path, format=None, until=stack)
        rows = [_unprefixed(record.values, run.prefix) for record in records.read()]
    columns = _unprefixed(dict.fromkeys(records.columns or ()), run.prefix)
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    lacking = [name for name in ("msd", "similarity") if name not in names]
    if lacking:
        found = ", ".join(names) or "none"
        raise InputError(
            f"{path}: expected a scored file with {', '.join(lacking)}; found: {found}; run msdscore score"
        )
    caption, system = run.columns.caption_in(names), first_of(names, SYSTEM_NAMES)
    picture = run.columns.image_in(names) or first_of(names, _PICTURE_KEYS)
    used = {"id", caption, system, *ALL_COLUMNS} - {"warnings"}
    return Results(
        name=path.name,
        signature=signature_of(path) or run.signature,
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
    return {name: values for name, values in found.items() if name not in OPTIONAL or not np.isnan(values).all()}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the run metadata beside a scored file says; empty where there is none."""

    signature: str = ""
    prefix: str = ""  # of the columns that scoring added
    columns: ColumnNames = field(default_factory=ColumnNames)
    source: Path | None = None  # the file that was scored, if it is still there
    fingerprint: str = ""  # of its content


def run_facts(path: Path) -> RunFacts:
    """Read the run metadata beside a scored file."""
    try:
        notes = json.loads(path.with_name(path.name + RUN_NOTES).read_text(encoding="utf-8"))
        manifest, source = notes["manifest"], notes.get("source")
        found = Path(source) if source and source != "-" else None
        return RunFacts(
            signature=str(manifest["signature"]),
            prefix=manifest.get("prefix", ""),
            columns=ColumnNames(**manifest.get("columns", {})),
            source=found if found and found.exists() else None,
            fingerprint=manifest.get("input", ""),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return RunFacts()


def _unprefixed(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A row with our columns under their plain names; the input's columns of these names get other ones."""
    naming = Naming(prefix)
    ours = {naming.added(name): name for name in ALL_COLUMNS}
    plain = Naming()
    return {ours.get(name) or (plain.given(name) if prefix else name): value for name, value in row.items()}


def signature_of(path: Path) -> str:
    """The signature that a Parquet file carries in its schema; empty if none does."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        found = (pq.read_schema(path).metadata or {}).get(b"msdscore", b"").decode()
        if found:
            return str(found)
    return ""


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
