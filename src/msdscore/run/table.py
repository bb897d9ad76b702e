"""Tables of a run: the numbers of each part, and the merged output with the columns of the input."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from msdscore.core.evidence import reading
from msdscore.errors import RowError, RunError
from msdscore.forms import references
from msdscore.forms.base import Form
from msdscore.forms.registry import columns_of
from msdscore.io.hashing import source_key, text_key
from msdscore.io.inputs.columns import first_of
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.files import JsonRows, conform, is_json, json_line, table_from_columns, text_in_csv, unified
from msdscore.io.outputs.shards import FAILED, SCORED
from msdscore.io.tar import TarImage
from msdscore.run.plan import Part, Scored
from msdscore.scoring.results import ALL_COLUMNS, COUNTS, NUMBERS, Numbers, soften
from msdscore.text.warnings import FORM_WARNINGS

TABLE_ROWS = 8192  # rows per table of the output
KEPT_BYTES = 256 << 20  # of input columns that stay in memory; more are in a temporary file
SOFTENED_ROWS = 1 << 16  # rows whose candidate sets are computed together
MIXED = "its group holds several images, so its Soft-MSD compares captions of different images"
Keys = np.ndarray[Any, np.dtype[np.int64]]
WORST = "worst_words"  # a list of the least supported words
KEPT = "input_"  # prefix of an input column with the name of an added one


@dataclass(frozen=True, slots=True)
class Naming:
    """Column names of the output: added columns have a prefix, input columns their names.

    An input column with the name of an added one is renamed.

    >>> Naming().given("msd"), Naming(prefix="mini_").given("msd")
    ('input_msd', 'msd')
    """

    prefix: str = ""
    taken: frozenset[str] = frozenset()  # names of the input columns

    def given(self, name: str) -> str:
        """Return the name of an input column in the output."""
        if not name.startswith(self.prefix) or name.removeprefix(self.prefix) not in (*ALL_COLUMNS, WORST):
            return name
        new = KEPT + name
        while new in self.taken:
            new = KEPT + new
        return new

    def renamed(self) -> dict[str, str]:
        """Return the input columns that have another name in the output."""
        return {name: self.given(name) for name in sorted(self.taken) if self.given(name) != name}


def part_table(part: Part, scored: Scored, *, words: bool = False) -> pa.Table:
    """Return numbers or errors of the rows of a part, their indices, and the keys of their candidate sets and images.

    Rows that could not be scored have no image. With `words` there is a column of the least supported words.
    """
    rows, none = (*part.rows, *part.unusable), [None] * len(part.unusable)
    # Shared by the rows of one image: its offset in the tar, else a hash of its name.
    keys = [image.offset if isinstance(image, TarImage) else text_key(source_key(image)) for image in part.images]
    images = [*(keys[image] if image >= 0 else None for image in part.owner), *none]
    groups = [
        image if row.group is None else text_key(f"group {row.group}") for row, image in zip(rows, images, strict=True)
    ]
    warnings = [
        # Warnings of the input, then those of scoring.
        [*filter(None, (row.warning, *result.warnings))] if isinstance(result, Numbers) else []
        for row, result in zip(part.rows, scored, strict=True)
    ]
    errors = [str(result) if isinstance(result, RowError) else None for result in scored]
    columns: dict[str, pa.Array] = {
        "row": pa.array([row.index for row in rows], pa.int64()),
        "group": pa.array(groups, pa.int64()),
        "image": pa.array(images, pa.int64()),
        "warnings": pa.array([*warnings, *([] for _ in none)], pa.list_(pa.string())),
        "error": pa.array([*errors, *(row.error for row in part.unusable)], pa.string()),
    }
    if words:
        worst = [list(result.worst) if isinstance(result, Numbers) else None for result in scored]
        columns[WORST] = pa.array([*worst, *none], pa.list_(pa.string()))
    numbers = [result.values if isinstance(result, Numbers) else {} for result in scored]
    for name in NUMBERS:
        values = [row.get(name) for row in numbers]
        columns[name] = pa.array([*values, *none], pa.int32() if name in COUNTS else pa.float64())
    return pa.table(columns)


def collect(parts: Iterable[pa.Table], form: Form) -> pa.Table:
    """Merge parts into one table of all rows in order, with the columns that scoring adds.

    Uncertainty and Soft-MSD are computed per candidate set; the worst words are included if the parts have them.
    """
    table = pa.concat_tables(parts).sort_by("row")
    count = len(table)
    group, image = (table[name].fill_null(0).to_numpy() for name in ("group", "image"))
    similarity, msd, match = (table[name].to_numpy() for name in ("similarity", "msd", "match"))
    good = np.flatnonzero(~np.isnan(msd))
    softened = np.full((2, count), np.nan)
    for rows in whole_sets(group, good, most=SOFTENED_ROWS):
        softened[:, rows] = soften(similarity[rows].tolist(), msd[rows].tolist(), group[rows].tolist(), form)
    # Rows whose candidate set has captions of several images.
    sets, images = np.unique(np.unique(np.stack([group[good], image[good]]), axis=1)[0], return_counts=True)
    is_mixed = np.zeros(count, dtype=bool)
    is_mixed[good] = np.isin(group[good], sets[images > 1])
    warnings = table["warnings"].to_pylist()
    for row in np.flatnonzero(is_mixed).tolist():
        warnings[row].append(MIXED)
    added = {
        "uncertainty": pa.array(softened[0], from_pandas=True),
        "soft_msd": pa.array(softened[1], from_pandas=True),
        "reading": pa.array(_readings(match.tolist(), warnings), pa.string()),
        "warnings": pa.array(warnings, pa.list_(pa.string())) if is_mixed.any() else table["warnings"],
    }
    own = references.NAMES if table[references.NAMES[0]].null_count < count else ()
    names = list(columns_of((*form.columns, *own)))
    if WORST in table.column_names:
        names.insert(names.index("warnings"), WORST)
    return pa.table({name: added[name] if name in added else table[name] for name in names})


def _readings(match: Sequence[float], warnings: Sequence[Sequence[str]]) -> list[str | None]:
    return [
        None if np.isnan(value) else reading(value, is_caption=FORM_WARNINGS.isdisjoint(warned))
        for value, warned in zip(match, warnings, strict=True)
    ]


def whole_sets(group: Keys, rows: Keys, *, most: int) -> Iterator[Keys]:
    """Split rows into batches of at most `most` rows without splitting a candidate set, unless a set has more.

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


class InputColumns:
    """The columns of the input, stored while its rows are scored, for the tables of the output.

    For a JSON output, where names and types may differ from row to row, they are stored as the text of objects.
    """

    def __init__(self, source: RowSource, output: Path) -> None:
        self.names, self.total, self.count = set(source.seen), source.total, 0  # `count` rows were read so far
        self._source, self._suffix, self._as_json = source, output.suffix, is_json(output.suffix)
        self._schema: pa.Schema | None = source.schema
        if self._schema is None and source.columns is not None:
            self._schema = pa.schema([(name, pa.string()) for name in source.columns])
        if self._schema is not None and source.id_name not in self._schema.names:
            self._schema = pa.schema([("id", pa.string()), *self._schema])
        self._tables: list[tuple[int, pa.Schema]] = []  # the offset of each in the file
        self._file = SpooledTemporaryFile(max_size=KEPT_BYTES)  # noqa: SIM115, closed with this

    def close(self) -> None:
        """Free memory and disk."""
        with suppress(OSError):  # a full disk was already reported
            self._file.close()

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the same rows, and store their columns."""
        passed: list[tuple[Mapping[str, Any], int, str | None]] = []
        for row in rows:
            self.count += 1
            self.names.update(row.columns)
            passed.append((row.columns, row.index, None if row.has_id else row.id))
            if len(passed) >= TABLE_ROWS:
                self._keep(passed)
                passed = []
            yield row
        if passed or not self._tables:
            self._keep(passed)

    def tables(self, scores: pa.Table, naming: Naming) -> Iterator[pa.Table | JsonRows]:
        """Yield the tables of the output: all rows in order, input columns first, then the added ones."""
        scores = text_in_csv(scores, "warnings", self._suffix)
        scores, start = scores.rename_columns([naming.prefix + name for name in scores.column_names]), 0
        schemas = [schema for _, schema in self._tables]
        common = schemas[0] if self._source.schema is not None or self._as_json else unified(schemas)
        for place, _ in self._tables:
            self._file.seek(place)
            given = conform(pa.ipc.open_stream(self._file).read_all(), common)
            added = scores.slice(start, len(given))
            start += len(given)
            if self._as_json:
                objects = given[0].to_pylist()
                if naming.renamed():
                    values = map(json.loads, objects)
                    objects = [json_line({naming.given(name): value for name, value in row.items()}) for row in values]
                yield JsonRows(objects, added)
            else:
                names = [*map(naming.given, given.column_names), *added.column_names]
                yield pa.Table.from_arrays([*given.columns, *added.columns], names=names)

    def _keep(self, rows: list[tuple[Mapping[str, Any], int, str | None]]) -> None:
        """Store rows; the id of a row without one is its index."""
        name, given = self._source.id_name, list[Mapping[str, Any]]()
        as_number = self._has_numbers([columns[name] for columns, _, number in rows if number is None])
        for columns, index, number in rows:
            if number is None or as_number is None:
                given.append(columns)
            else:
                own = {name: index if as_number else number}
                given.append({**columns, **own} if name in columns else {**own, **columns})
        if self._as_json:
            table = pa.table({"": pa.array(map(json_line, given), pa.large_string())})
        else:
            table = table_from_columns(given, self._schema)
        try:
            self._tables.append((self._file.tell(), table.schema))
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table)
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"{gettempdir()}: the columns of the input cannot be stored there ({error.strerror or error}); "
                "set TMPDIR to a folder with more space and run the command again, which resumes"
            ) from error

    def _has_numbers(self, ids: list[Any]) -> bool | None:
        """Return whether the ids of rows are numbers; None if their type is neither a number nor text."""
        schema = self._source.schema
        if schema is None or self._source.id_name not in schema.names:
            return bool(ids) and all(type(value) is int for value in ids)
        kind = schema.field(self._source.id_name).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return False
        is_number = pa.types.is_floating(kind) or kind in (pa.int64(), pa.uint64(), pa.int32(), pa.uint32())
        return True if is_number else None


class ShardColumns:
    """Keys, captions and copied columns of a shard, stored as its rows are read."""

    def __init__(self, copied: Sequence[str] = ()) -> None:
        self._copied, self._others = tuple(copied), list[dict[str, Any]]()
        self._own: dict[str, list[str | None]] = {"key": [], "uid": [], "caption": []}

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the same rows, and store their columns."""
        keys, uids, captions = self._own.values()
        names, key_name, uid_name = tuple[str, ...](), "key", "uid"
        for row in rows:
            columns = row.columns
            if names != tuple(columns):
                names = tuple(columns)
                key_name, uid_name = (first_of(names, (name,)) or name for name in ("key", "uid"))
            keys.append(str(columns.get(key_name) or row.id))
            uid = columns.get(uid_name)
            uids.append(None if uid is None else str(uid))
            captions.append(row.caption)
            if self._copied:
                self._others.append({name: columns.get(name) for name in self._copied})
            yield row

    def table(self, parts: Sequence[pa.Table], form: Form) -> pa.Table:
        """Return all rows in order with their numbers, and uncertainty and Soft-MSD of their candidate sets."""
        scores = collect(parts, form)
        columns: dict[str, Any] = {
            **{name: pa.array(values, pa.string()) for name, values in self._own.items()},
            **{name: scores[name] for name in columns_of(form.columns) if name not in ("warnings", "error")},
            WORST: scores[WORST],
            "warnings": scores["warnings"],
            "status": pc.if_else(scores["error"].is_null(), SCORED, FAILED),
            "error": scores["error"],
        }
        return self.with_copied(columns)

    def with_copied(self, columns: dict[str, Any]) -> pa.Table:
        """Return a table of these columns, followed by the copied ones of the input."""
        columns, copied = dict(columns), table_from_columns(self._others)
        for name in copied.column_names:
            new, column = name, copied[name]
            while new in columns or (new != name and new in self._copied):
                new = KEPT + new
            columns[new] = column.cast(pa.string()) if pa.types.is_null(column.type) else column
        return pa.table(columns)
