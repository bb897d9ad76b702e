"""Parts and the whole of a run: numbers of chunks as tables, then the input's rows in order with their numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.engine.plan import Chunk, image_name
from msdscore.errors import RowError
from msdscore.io.hashing import text_key
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.files import is_json
from msdscore.io.outputs.run import Run
from msdscore.io.outputs.tables import MergedRows, conform, unified
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import NUMBERS, Numbers, soften
from msdscore.scoring.score import COLUMNS

TABLE_ROWS = 8192  # of one table of the output
KEPT_BYTES = 256 << 20  # of tables that are kept while their types are found; of more the input is read once again
SOFTENED_ROWS = 1 << 16  # whose candidate sets are worked on at once
MIXED = "its group holds several pictures, so its Soft-MSD compares captions of different pictures"
Keys = np.ndarray[Any, np.dtype[np.int64]]
COUNTS = ("length", "windows")
_KEPT = "input_"  # put before the name of an input column that is called as one of ours


@dataclass(frozen=True, slots=True)
class Naming:
    """How columns are called in the output: ours with a prefix, the input's as they are.

    An input column that is called as one of ours keeps its values under another name.

    >>> Naming().given("msd"), Naming(prefix="mini_").given("msd"), Naming(prefix="mini_").added("msd")
    ('input_msd', 'msd', 'mini_msd')
    """

    prefix: str = ""
    taken: frozenset[str] = frozenset()  # the input's own names, where the format tells

    def added(self, name: str) -> str:
        """The name of one of our columns."""
        return self.prefix + name

    def given(self, name: str) -> str:
        """The name of an input column."""
        if not name.startswith(self.prefix) or name.removeprefix(self.prefix) not in COLUMNS:
            return name
        new = _KEPT + name
        while new in self.taken:
            new = _KEPT + new
        return new

    def renamed(self) -> dict[str, str]:
        """The input columns that are called otherwise in the output."""
        return {name: self.given(name) for name in sorted(self.taken) if self.given(name) != name}


def part_table(chunk: Chunk, scored: Sequence[Numbers | RowError]) -> pa.Table:
    """Numbers or reasons of one chunk's rows, with their keys in the input and those of candidate set and picture.

    Rows that cannot be scored have neither numbers nor a reason: the input says why.
    """
    rows, none = (*chunk.rows, *chunk.unusable), [None] * len(chunk.unusable)
    pictures = [*(text_key(image_name(row)) for row in chunk.rows), *(0 for _ in none)]
    groups = [
        picture if row.group is None else text_key(f"group {row.group}")
        for row, picture in zip(rows, pictures, strict=True)
    ]
    warnings = ["; ".join(_warnings(row, one)) or None for row, one in zip(chunk.rows, scored, strict=True)]
    errors = [str(one) if isinstance(one, RowError) else None for one in scored]
    columns: dict[str, pa.Array] = {
        "row": pa.array([row.index for row in rows], pa.int64()),
        "key": pa.array([row.key for row in rows], pa.int64()),
        "group": pa.array(groups, pa.int64()),
        "picture": pa.array(pictures, pa.int64()),
        "warnings": pa.array([*warnings, *none], pa.string()),
        "error": pa.array([*errors, *none], pa.string()),
    }
    for name in NUMBERS:
        values = [getattr(one, name) if isinstance(one, Numbers) else None for one in scored]
        columns[name] = pa.array([*values, *none], pa.int32() if name in COUNTS else pa.float64())
    return pa.table(columns)


def _warnings(row: Row, scored: Numbers | RowError) -> tuple[str, ...]:
    """What is to be said of a scored row: what its input warns of, then what scoring does."""
    if isinstance(scored, RowError):
        return ()
    return (*(() if row.warning is None else (row.warning,)), *scored.warnings)


def assemble(
    source: RowSource, run: Run, config: MSDConfig, naming: Naming
) -> Iterator[pa.Table] | Iterator[MergedRows]:
    """The output's tables: every input row in order, its own columns first, then what scoring adds."""
    found = _collect(run, config)

    def merged() -> Iterator[MergedRows]:
        return _merged(source, found, naming)

    if is_json(run.output.suffix):
        return merged()
    return _tables(merged, _renamed_schema(source, naming), typed=source.schema is not None)


def _tables(merged: Callable[[], Iterator[MergedRows]], schema: pa.Schema | None, *, typed: bool) -> Iterator[pa.Table]:
    """Arrow tables of one type; where the input has no types, they are found by a pass over it."""
    if typed:
        yield from (rows.to_arrow(schema) for rows in merged())
        return
    schemas: list[pa.Schema] = []
    kept: list[pa.Table] | None = []
    for rows in merged():
        table = rows.to_arrow(schema)
        schemas.append(table.schema)
        if kept is not None:
            kept = [*kept, table] if sum(one.nbytes for one in (*kept, table)) <= KEPT_BYTES else None
    common = unified(schemas)
    again = (rows.to_arrow(schema) for rows in merged()) if kept is None else iter(kept)
    yield from (conform(table, common) for table in again)


def _renamed_schema(source: RowSource, naming: Naming) -> pa.Schema | None:
    if source.schema is None and source.columns is None:
        return None
    given = source.schema or pa.schema([pa.field(name, pa.string()) for name in source.columns or ()])
    own = [] if source.id_name in given.names else [pa.field("id", pa.string())]
    return pa.schema([*own, *(pa.field(naming.given(entry.name), entry.type) for entry in given)])


@dataclass(frozen=True, slots=True)
class _Found:
    """All numbers of a run by row; NaN where there are none."""

    keys: Keys  # of the rows that were scored
    numbers: dict[str, np.ndarray[Any, np.dtype[np.float64]]]
    warnings: dict[int, str]
    errors: dict[int, str]


def _collect(run: Run, config: MSDConfig) -> _Found:
    """Numbers of all parts in the order of the input, with uncertainty and Soft-MSD of each candidate set."""
    total = sum(len(part) for part in run.tables(["row"]))
    keys = np.full(total, -1, dtype=np.int64)
    numbers = {name: np.full(total, np.nan) for name in (*NUMBERS, "uncertainty", "soft_msd")}
    group, picture = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    texts: dict[str, dict[int, str]] = {"warnings": {}, "error": {}}
    for part in run.tables():
        rows = part.column("row").to_numpy()
        keys[rows] = part.column("key").to_numpy()
        group[rows], picture[rows] = part.column("group").to_numpy(), part.column("picture").to_numpy()
        for name in NUMBERS:
            numbers[name][rows] = part.column(name).to_numpy()
        for name, known in texts.items():
            values = zip(rows.tolist(), part.column(name).to_pylist(), strict=True)
            known |= {row: text for row, text in values if text}
    good = np.flatnonzero(~np.isnan(numbers["msd"]))
    for rows in whole_sets(group, good, most=SOFTENED_ROWS):
        similarity, divergence, information = (
            numbers[name][rows].tolist() for name in ("similarity", "divergence", "information")
        )
        softened = soften(similarity, divergence, information, group[rows].tolist(), config)
        numbers["uncertainty"][rows], numbers["soft_msd"][rows] = softened
    for row in in_mixed_sets(group, picture, good):
        texts["warnings"][row] = "; ".join(filter(None, [texts["warnings"].get(row), MIXED]))
    return _Found(keys, numbers, texts["warnings"], texts["error"])


def whole_sets(group: Keys, rows: Keys, *, most: int) -> Iterator[Keys]:
    """The rows in pieces that split no candidate set, of at most so many rows unless a set itself has more.

    >>> [piece.tolist() for piece in whole_sets(np.array([7, 5, 7, 5, 9]), np.arange(5), most=3)]
    [[1, 3], [0, 2, 4]]
    """
    ordered = rows[np.argsort(group[rows], kind="stable")]
    ends = [*(np.flatnonzero(np.diff(group[ordered])) + 1).tolist(), len(ordered)]
    start = 0
    for end, following in pairwise([*ends, ends[-1] + most + 1]):
        if following - start > most and end > start:
            yield ordered[start:end]
            start = end


def in_mixed_sets(group: Keys, picture: Keys, rows: Keys) -> list[int]:
    """The rows whose candidate set holds captions of several pictures."""
    pairs = np.unique(np.stack([group[rows], picture[rows]]), axis=1)
    sets, counts = np.unique(pairs[0], return_counts=True)
    mixed: list[int] = rows[np.isin(group[rows], sets[counts > 1])].tolist()
    return mixed


def _merged(source: RowSource, found: _Found, naming: Naming) -> Iterator[MergedRows]:
    """The input's rows with their numbers; refused where they are not the rows that were scored."""
    stream, count = source.read(), 0
    while rows := list(islice(stream, TABLE_ROWS)):
        if [row.key for row in rows] != found.keys[count : count + len(rows)].tolist():
            raise source.changed()
        count += len(rows)
        yield MergedRows(_given(rows, source.id_name, naming), _added(rows, found, naming))
    if count < len(found.keys):
        raise source.changed()
    if not count:
        yield MergedRows([], _added([], found, naming))


def _given(rows: Sequence[Row], id_name: str, naming: Naming) -> list[Mapping[str, Any]]:
    """The rows as they came, with an id where the input has none."""
    given = [{naming.given(name): value for name, value in row.columns.items()} for row in rows]
    if any(id_name in row.columns for row in rows):
        return list(given)
    return [{"id": row.id, **values} for row, values in zip(rows, given, strict=True)]


def _added(rows: Sequence[Row], found: _Found, naming: Naming) -> pa.Table:
    """What scoring adds to some rows."""
    places = np.array([row.index for row in rows], dtype=np.int64)
    return pa.table({naming.added(name): _column(name, rows, places, found) for name in COLUMNS})


def _column(name: str, rows: Sequence[Row], places: Keys, found: _Found) -> pa.Array:
    if name == "warnings":
        return pa.array([found.warnings.get(row.index) for row in rows], pa.string())
    if name == "error":
        return pa.array([row.error or found.errors.get(row.index) for row in rows], pa.string())
    values = found.numbers[name][places]
    column = pa.array(values, mask=np.isnan(values))
    return column.cast(pa.int32()) if name in COUNTS else column
