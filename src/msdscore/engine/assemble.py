"""Parts and the whole of a run: numbers of chunks as tables, then the input's rows in order with their numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.engine.plan import Chunk, image_name
from msdscore.errors import RowError
from msdscore.io.hashing import text_key
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.run import Run
from msdscore.io.outputs.tables import conform, table_from_columns, unified
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import NUMBERS, Numbers, soften
from msdscore.scoring.results import COLUMNS

TABLE_ROWS = 8192  # of one table of the output
MIXED = "its group holds several pictures, so its Soft-MSD compares captions of different pictures"
Keys = np.ndarray[Any, np.dtype[np.int64]]
_COUNTS = ("length", "windows")


def part_table(chunk: Chunk, scored: Sequence[Numbers | RowError]) -> pa.Table:
    """Numbers or reasons of one chunk's rows, with their places in the input and keys of candidate set and picture."""
    groups = [text_key(image_name(row) if row.group is None else f"group {row.group}") for row in chunk.rows]
    columns: dict[str, pa.Array] = {
        "row": pa.array([row.index for row in chunk.rows], pa.int64()),
        "group": pa.array(groups, pa.int64()),
        "picture": pa.array([text_key(image_name(row)) for row in chunk.rows], pa.int64()),
        "warnings": pa.array(
            ["; ".join(one.warnings) or None if isinstance(one, Numbers) else None for one in scored], pa.string()
        ),
        "error": pa.array([str(one) if isinstance(one, RowError) else None for one in scored], pa.string()),
    }
    for name in NUMBERS:
        values = [getattr(one, name) if isinstance(one, Numbers) else None for one in scored]
        columns[name] = pa.array(values, pa.int32() if name in _COUNTS else pa.float64())
    return pa.table(columns)


def assemble(source: RowSource, run: Run, config: MSDConfig) -> Iterator[pa.Table]:
    """The output's tables: every input row in order, its own columns first, then what scoring adds."""
    found = _collect(run, source.count(), config)
    schema = unified([table.schema for table in _tables(source, found)]) if source.schema is None else None
    for table in _tables(source, found):
        yield table if schema is None else conform(table, schema)


@dataclass(frozen=True, slots=True)
class _Found:
    """All numbers of a run by row; NaN where there are none."""

    numbers: dict[str, np.ndarray[Any, np.dtype[np.float64]]]
    warnings: dict[int, str]
    errors: dict[int, str]


def _collect(run: Run, total: int, config: MSDConfig) -> _Found:
    """Numbers of all parts in the order of the input, with uncertainty and Soft-MSD of each candidate set."""
    numbers = {name: np.full(total, np.nan) for name in (*NUMBERS, "uncertainty", "soft_msd")}
    group, picture = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    texts: dict[str, dict[int, str]] = {"warnings": {}, "error": {}}
    for part in run.tables():
        rows = part.column("row").to_numpy()
        group[rows], picture[rows] = part.column("group").to_numpy(), part.column("picture").to_numpy()
        for name in NUMBERS:
            numbers[name][rows] = part.column(name).to_numpy()
        for name, known in texts.items():
            values = zip(rows.tolist(), part.column(name).to_pylist(), strict=True)
            known |= {row: text for row, text in values if text}
    good = np.flatnonzero(~np.isnan(numbers["msd"]))
    similarity, divergence = numbers["similarity"][good].tolist(), numbers["divergence"][good].tolist()
    numbers["uncertainty"][good], numbers["soft_msd"][good] = soften(
        similarity, divergence, group[good].tolist(), config
    )
    for row in _mixed(group, picture, good):
        texts["warnings"][row] = "; ".join(filter(None, [texts["warnings"].get(row), MIXED]))
    return _Found(numbers, texts["warnings"], texts["error"])


def _mixed(group: Keys, picture: Keys, rows: Keys) -> list[int]:
    """The rows whose candidate set holds captions of several pictures."""
    pairs = np.unique(np.stack([group[rows], picture[rows]]), axis=1)
    sets, counts = np.unique(pairs[0], return_counts=True)
    mixed: list[int] = rows[np.isin(group[rows], sets[counts > 1])].tolist()
    return mixed


def _tables(source: RowSource, found: _Found) -> Iterator[pa.Table]:
    stream = source.read()
    while rows := list(islice(stream, TABLE_ROWS)):
        yield _table(rows, source.schema, found)
    if not source.count():
        yield _table([], source.schema, found)


def _table(rows: Sequence[Row], schema: pa.Schema | None, found: _Found) -> pa.Table:
    """Some rows of the output; added columns replace columns of the same name."""
    given = table_from_columns([row.columns for row in rows], schema)
    kept = {name: given.column(name) for name in given.column_names if name not in COLUMNS}
    # Not added to `given`: where no row could be read it has no columns, and so no length.
    if "id" not in kept:
        kept = {"id": pa.array([row.id for row in rows], pa.string()), **kept}
    places = np.array([row.index for row in rows], dtype=np.int64)
    return pa.table(kept | {name: _added(name, rows, places, found) for name in COLUMNS})


def _added(name: str, rows: Sequence[Row], places: np.ndarray[Any, np.dtype[np.int64]], found: _Found) -> pa.Array:
    if name == "warnings":
        return pa.array([found.warnings.get(row.index) for row in rows], pa.string())
    if name == "error":
        return pa.array([row.error or found.errors.get(row.index) for row in rows], pa.string())
    values = found.numbers[name][places]
    column = pa.array(values, mask=np.isnan(values))
    return column.cast(pa.int32()) if name in _COUNTS else column
