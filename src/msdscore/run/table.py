"""Tables of a run: numbers of every part, then all rows in order with their numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from msdscore.core.evidence import reading
from msdscore.errors import RowError
from msdscore.io.hashing import source_key, text_key
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.files import is_json
from msdscore.io.outputs.run import Run
from msdscore.io.outputs.tables import MergedRows, conform, unified
from msdscore.io.tar import TarImage
from msdscore.run.plan import Part, Scored
from msdscore.scoring.config import Form
from msdscore.scoring.measurement import NUMBERS, Numbers, soften
from msdscore.scoring.score import ALL_COLUMNS, columns_of

TABLE_ROWS = 8192  # of one table of the output
KEPT_BYTES = 256 << 20  # of tables that are kept while their types are found; of more the input is read once again
SOFTENED_ROWS = 1 << 16  # whose candidate sets are worked on at once
MIXED = "its group holds several images, so its Soft-MSD compares captions of different images"
Keys = np.ndarray[Any, np.dtype[np.int64]]
COUNTS = ("length", "windows")
KEPT = "input_"  # put before the name of an input column that is called as one of ours


@dataclass(frozen=True, slots=True)
class Naming:
    """How columns are called in the output: ours with a prefix, the input's as they are.

    An input column that is called as one of ours keeps its values under another name.

    >>> Naming().given("msd"), Naming(prefix="mini_").given("msd"), Naming(prefix="mini_").added("msd")
    ('input_msd', 'msd', 'mini_msd')
    """

    prefix: str = ""
    taken: frozenset[str] = frozenset()  # the input's own names

    def added(self, name: str) -> str:
        """The name of one of our columns."""
        return self.prefix + name

    def given(self, name: str) -> str:
        """The name of an input column."""
        if not name.startswith(self.prefix) or name.removeprefix(self.prefix) not in ALL_COLUMNS:
            return name
        new = KEPT + name
        while new in self.taken:
            new = KEPT + new
        return new

    def renamed(self) -> dict[str, str]:
        """The input columns that are called otherwise in the output."""
        return {name: self.given(name) for name in sorted(self.taken) if self.given(name) != name}


def part_table(part: Part, scored: Scored, *, words: bool = False) -> pa.Table:
    """Numbers or reasons of a part's rows, with their keys in the input and those of candidate set and image.

    Rows that cannot be scored have neither numbers nor a reason: the input says why. With `words` the least supported
    words are kept.
    """
    rows, none = (*part.rows, *part.unusable), [None] * len(part.unusable)
    images = [*map(_image_key, part.rows), *(0 for _ in none)]
    groups = [
        image if row.group is None else text_key(f"group {row.group}") for row, image in zip(rows, images, strict=True)
    ]
    warnings = ["; ".join(_warnings(row, result)) or None for row, result in zip(part.rows, scored, strict=True)]
    errors = [str(result) if isinstance(result, RowError) else None for result in scored]
    columns: dict[str, pa.Array] = {
        "row": pa.array([row.index for row in rows], pa.int64()),
        "key": pa.array(part.row_keys or [0] * len(rows), pa.int64()),
        "group": pa.array(groups, pa.int64()),
        "image": pa.array(images, pa.int64()),
        "warnings": pa.array([*warnings, *none], pa.string()),
        "error": pa.array([*errors, *none], pa.string()),
    }
    if words:
        worst = [list(result.worst) if isinstance(result, Numbers) else None for result in scored]
        columns["words"] = pa.array([*worst, *none], pa.list_(pa.string()))
    for name in NUMBERS:
        values = [getattr(result, name) if isinstance(result, Numbers) else None for result in scored]
        columns[name] = pa.array([*values, *none], pa.int32() if name in COUNTS else pa.float64())
    return pa.table(columns)


def _image_key(row: Row) -> int:
    """A number that rows of one image share: its place in the tar, else a hash of its name."""
    assert row.image is not None, "rows without an image have an error and are not scored"
    return row.image.offset if isinstance(row.image, TarImage) else text_key(source_key(row.image))


def _warnings(row: Row, scored: Numbers | RowError) -> tuple[str, ...]:
    """What is to be said of a scored row: what its input warns of, then what scoring does."""
    if isinstance(scored, RowError):
        return ()
    return scored.warnings if row.warning is None else (row.warning, *scored.warnings)


def collect(parts: Iterable[pa.Table], form: Form, *, total: int | None = None) -> pa.Table:
    """One table of all rows in order: their `key`, `words` where they were kept, then the columns that scoring adds.

    Uncertainty and Soft-MSD come from each candidate set. With `total` rows there may be some that no part holds; they
    are null.
    """
    table = pa.concat_tables(parts)
    count = len(table) if total is None else total
    place = np.full(count, -1, dtype=np.int64)
    place[table["row"].to_numpy()] = np.arange(len(table))
    table = table.take(pa.array(place, mask=place < 0))
    group, image = (table[name].fill_null(0).to_numpy() for name in ("group", "image"))
    similarity, msd, match = (table[name].to_numpy() for name in ("similarity", "msd", "match"))
    good = np.flatnonzero(~np.isnan(msd))
    softened = np.full((2, count), np.nan)
    for rows in whole_sets(group, good, most=SOFTENED_ROWS):
        softened[:, rows] = soften(similarity[rows].tolist(), msd[rows].tolist(), group[rows].tolist(), form)
    is_mixed = np.isin(np.arange(count), in_mixed_sets(group, image, good))
    mixed = pc.binary_join_element_wise(table["warnings"], MIXED, "; ", null_handling="skip")
    added = {
        "uncertainty": pa.array(softened[0], from_pandas=True),
        "soft_msd": pa.array(softened[1], from_pandas=True),
        "reading": pa.array([None if np.isnan(value) else reading(value) for value in match.tolist()], pa.string()),
        "warnings": pc.if_else(pa.array(is_mixed), mixed, table["warnings"]),
    }
    names = (*(name for name in ("key", "words") if name in table.column_names), *columns_of(form.columns))
    return pa.table({name: added[name] if name in added else table[name] for name in names})


def whole_sets(group: Keys, rows: Keys, *, most: int) -> Iterator[Keys]:
    """Split rows without splitting a candidate set, at most so many rows together unless a set itself has more.

    >>> [rows.tolist() for rows in whole_sets(np.array([7, 5, 7, 5, 9]), np.arange(5), most=3)]
    [[1, 3], [0, 2, 4]]
    """
    ordered = rows[np.argsort(group[rows], kind="stable")]
    ends = [*(np.flatnonzero(np.diff(group[ordered])) + 1).tolist(), len(ordered)]
    start = 0
    for end, following in pairwise([*ends, ends[-1] + most + 1]):
        if following - start > most and end > start:
            yield ordered[start:end]
            start = end


def in_mixed_sets(group: Keys, image: Keys, rows: Keys) -> Keys:
    """The rows whose candidate set holds captions of several images."""
    pairs = np.unique(np.stack([group[rows], image[rows]]), axis=1)
    sets, counts = np.unique(pairs[0], return_counts=True)
    mixed: Keys = rows[np.isin(group[rows], sets[counts > 1])]
    return mixed


def output_tables(source: RowSource, run: Run, form: Form, naming: Naming) -> Iterator[pa.Table] | Iterator[MergedRows]:
    """The output's tables: every input row in order, its own columns first, then what scoring adds.

    Raises:
        RunError: the input's rows are not those that were scored.
    """
    scores = collect(run.tables(), form)

    def merged() -> Iterator[MergedRows]:
        return _merged(source, scores, naming)

    if is_json(run.output.suffix):
        return merged()
    return _typed(merged, _renamed_schema(source, naming), given=source.schema is not None)


def _typed(merged: Callable[[], Iterator[MergedRows]], schema: pa.Schema | None, *, given: bool) -> Iterator[pa.Table]:
    """Arrow tables of one type; where the input has no types, they are found by a pass over it."""
    if given:
        yield from (rows.to_arrow(schema) for rows in merged())
        return
    schemas: list[pa.Schema] = []
    kept: list[pa.Table] | None = []
    for rows in merged():
        table = rows.to_arrow(schema)
        schemas.append(table.schema)
        if kept is not None:
            kept = [*kept, table] if sum(part.nbytes for part in (*kept, table)) <= KEPT_BYTES else None
    common = unified(schemas)
    again = (rows.to_arrow(schema) for rows in merged()) if kept is None else iter(kept)
    yield from (conform(table, common) for table in again)


def _renamed_schema(source: RowSource, naming: Naming) -> pa.Schema | None:
    if source.schema is None and source.columns is None:
        return None
    given = source.schema or pa.schema([pa.field(name, pa.string()) for name in source.columns or ()])
    own = [] if source.id_name in given.names else [pa.field("id", pa.string())]
    return pa.schema([*own, *(pa.field(naming.given(entry.name), entry.type) for entry in given)])


def _merged(source: RowSource, scores: pa.Table, naming: Naming) -> Iterator[MergedRows]:
    """The input's rows with their numbers; refused where they are not the rows that were scored."""
    stream, start = source.read(), 0
    while (rows := list(islice(stream, TABLE_ROWS))) or not start:
        added = scores.slice(start, len(rows))
        if [row.key for row in rows] != added["key"].to_pylist():
            raise source.changed()
        added = with_reasons(added.drop_columns(["key"]), [row.error for row in rows])
        yield MergedRows(
            _given(rows, source, naming), added.rename_columns(list(map(naming.added, added.column_names)))
        )
        start += len(rows)
        if not rows:
            break
    if start < len(scores):
        raise source.changed()


def with_reasons(scores: pa.Table, reasons: Sequence[str | None]) -> pa.Table:
    """Scores with the reasons of rows that were not even tried among their errors."""
    errors = pc.coalesce(pa.chunked_array([pa.array(reasons, pa.string())]), scores["error"])
    return scores.set_column(scores.column_names.index("error"), "error", errors)


def _given(rows: Sequence[Row], source: RowSource, naming: Naming) -> list[Mapping[str, Any]]:
    """The rows as they came; a row without an id has its number there."""
    name = naming.given(source.id_name)
    as_number = _has_numbers(rows, source)
    given: list[Mapping[str, Any]] = []
    for row in rows:
        values = {naming.given(column): value for column, value in row.columns.items()}
        if not row.has_id and as_number is not None:
            number = {name: row.index if as_number else row.id}
            values = values | number if name in values else number | values
        given.append(values)
    return given


def _has_numbers(rows: Sequence[Row], source: RowSource) -> bool | None:
    """Whether the ids of rows are numbers; None where the input's own type holds neither numbers nor text."""
    if source.schema is None or source.id_name not in source.schema.names:
        ids = [row.columns[source.id_name] for row in rows if row.has_id]
        return bool(ids) and all(type(value) is int for value in ids)
    kind = source.schema.field(source.id_name).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return False
    return True if pa.types.is_floating(kind) or kind in (pa.int64(), pa.uint64(), pa.int32(), pa.uint32()) else None
