"""Tables from rows and parts, written as Parquet, JSON lines, JSON, CSV or TSV depending on the suffix."""

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from msdscore.errors import ConfigError
from msdscore.io.arrow import pa, pc, pq, python_rows
from msdscore.io.targets import check_target, is_standard_output, put, run_files

OUTPUT_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
JSON_SUFFIXES = (".jsonl", ".json")
_SLICE = 4096  # rows turned into Python values at once
ROW_GROUP = 32768  # small tables are merged, since tiny row groups slow down Parquet
_CONVERSION = (pa.ArrowException, TypeError, ValueError, OverflowError)
_EXACT = 1 << 53  # integers up to here are exact as floats
_WIDE = b"msdscore.wide"  # marks a column of integers that are not exact as floats
_QUOTED = frozenset(',\t"\r\n')


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Rows of a JSON output: the input values as the text of one object each, and the added columns."""

    objects: Sequence[str]
    added: pa.Table


def table_from_columns(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    """Build a table from rows of named values, in order of first appearance; missing values are null.

    Types come from `schema` if it has them and they fit, else from the values; values without a common type
    become text.

    >>> table_from_columns([{"a": 1}, {"a": "x", "b": 2.5}]).to_pylist()
    [{'a': '1', 'b': None}, {'a': 'x', 'b': 2.5}]
    """
    kinds: dict[str, pa.DataType | None] = {} if schema is None else {field.name: field.type for field in schema}
    for names in dict.fromkeys(map(tuple, rows)):  # most rows have the same names
        for name in names:
            kinds.setdefault(name, None)
    columns = {name: [row.get(name) for row in rows] for name in kinds}
    arrays = [_array(columns[name], kind) for name, kind in kinds.items()]
    entries = []
    for name, array in zip(kinds, arrays, strict=True):
        is_wide = pa.types.is_integer(array.type) and any(
            isinstance(value, int) and abs(value) > _EXACT for value in columns[name]
        )
        entries.append(pa.field(name, array.type, metadata={_WIDE: b"1"} if is_wide else None))
    return pa.table(arrays, schema=pa.schema(entries))


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Merge schemas; columns without a common type, or without values, become text.

    >>> unified([pa.schema([("a", pa.null())]), pa.schema([("a", pa.int64()), ("b", pa.null())])]).types
    [DataType(int64), DataType(string)]
    """
    kinds: dict[str, dict[pa.DataType, None]] = {}
    wide: set[str] = set()
    for schema in schemas:
        for entry in schema:
            kinds.setdefault(entry.name, {})[entry.type] = None
            wide |= {entry.name} if _WIDE in (entry.metadata or {}) else set()
    return pa.schema([pa.field(name, _common(list(types), wide=name in wide)) for name, types in kinds.items()])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to a schema from `unified`; missing columns are null."""
    names = set(table.column_names)
    columns = [
        _cast(table.column(entry.name), entry.type) if entry.name in names else pa.nulls(len(table), entry.type)
        for entry in schema
    ]
    return pa.table(columns, schema=schema)


def as_text(value: Any) -> str | None:
    """Return text unchanged, objects and numbers as JSON, times and decimals as printed.

    >>> as_text("é"), as_text([1, "é"]), as_text(None)
    ('é', '[1, "é"]', None)
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=json_value)
    return json_value(value)


def json_value(value: Any) -> str:
    """Convert types that JSON lacks: bytes to base 64, times and decimals to text."""
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


_JSON = json.JSONEncoder(ensure_ascii=False, default=json_value, allow_nan=False)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    # Arrow does not infer uint64 for integers of 2⁶³ and more.
    has_floats = any(type(value) is float for value in values)
    for wanted in (kind, None, pa.uint64()):
        if has_floats and wanted is not None and pa.types.is_integer(wanted):
            continue  # Arrow would silently truncate 0.5 to 0
        try:
            # Times in nanoseconds, which Python does not have, are text.
            is_text = getattr(wanted, "unit", None) == "ns" and not pa.types.is_duration(wanted)
            array = _nanoseconds(values, wanted) if is_text else pa.array(values, type=wanted)
        except _CONVERSION:
            continue
        if not _has_empty_struct(array.type):
            return array
    return pa.array([as_text(value) for value in values], type=pa.string())


def _nanoseconds(values: list[Any], kind: pa.DataType) -> pa.Array:
    text = pa.array(values, type=pa.string())
    if pa.types.is_time(kind):  # Arrow does not parse a time without a date
        text = pc.binary_join_element_wise("1970-01-01", text, " ").cast(pa.timestamp("ns"))
    return text.cast(kind)


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Whether a type contains a struct without fields, which Parquet does not support."""
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return pa.types.is_nested(kind) and any(_has_empty_struct(kind.field(i).type) for i in range(kind.num_fields))


def _common(kinds: list[pa.DataType], *, wide: bool) -> pa.DataType:
    if wide and len({pa.types.is_floating(kind) for kind in kinds if not pa.types.is_null(kind)}) > 1:
        return pa.string()  # as floats the integers would lose digits
    try:
        schemas = [pa.schema([("value", kind)]) for kind in kinds]
        common = pa.unify_schemas(schemas, promote_options="permissive").field("value").type
    except _CONVERSION:
        return pa.string()
    return pa.string() if pa.types.is_null(common) else common


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_string(kind) and not pa.types.is_null(column.type):
        return pa.chunked_array([[as_text(value) for value in column.to_pylist()]], type=kind)
    try:
        return column.cast(kind)
    except _CONVERSION:
        # Arrow does not cast a struct to one with more fields; converting through Python values does.
        return pa.chunked_array([pa.array(column.to_pylist(), type=kind)], type=kind)


def check_output(path: Path, *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Raise, before any work is done, for an output that is a folder, an input, or without a known suffix.

    The side files of a run are checked against the inputs too.
    """
    if is_standard_output(path):
        raise ConfigError(f"{path}: a run needs a file; expected a name ending in {', '.join(OUTPUT_SUFFIXES)}")
    check_target(path, OUTPUT_SUFFIXES, inputs=inputs, side=run_files(path))


def write_table(
    table: pa.Table, path: str | Path, *, metadata: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Write a table in the format of its suffix; only Parquet stores `metadata`."""
    target = Path(path)
    check_output(target)
    content = BytesIO()
    write_tables([conform(table, unified([table.schema]))], content, target.suffix, metadata=metadata)
    put(target, content.getvalue(), overwrite=overwrite)


def write_tables(
    tables: Iterable[pa.Table | JsonRows],
    file: BinaryIO,
    suffix: str,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a stream of tables with the schema of the first, with little more than one of them in memory.

    `JsonRows` can only be written as JSON, where names and types may differ from row to row.
    """
    following = iter(tables)
    first = next(following)
    stream: Iterable[Any] = chain([first], following)
    if not isinstance(first, JsonRows):
        schema = pa.schema([(entry.name, entry.type) for entry in first.schema], metadata=dict(metadata or {}))
        stream = (conform(table, schema) for table in stream)
    kind = suffix.lower()
    if kind == ".parquet":
        _write_parquet(stream, file, schema)
    elif kind in JSON_SUFFIXES:
        lines = chain.from_iterable(map(jsonl_lines, stream))
        if kind == ".jsonl":
            file.writelines(f"{line}\n".encode() for line in lines)
            return
        separator = b"[\n"
        for line in lines:
            file.write(separator + line.encode())
            separator = b",\n"
        file.write(b"\n]\n" if separator == b",\n" else b"[]\n")
    else:
        delimiter = "\t" if kind == ".tsv" else ","
        file.write(delimiter.join(map(_csv_field, schema.names)).encode() + b"\n")
        file.writelines(f"{line}\n".encode() for table in stream for line in csv_lines(table, delimiter))


def text_in_csv(table: pa.Table, suffix: str) -> pa.Table:
    """Join the texts of remarks for CSV and TSV; other formats have lists.

    >>> text_in_csv(pa.table({"word_notes": [["x", "y"], []], "warnings": [["z"], None]}), ".csv").to_pydict()
    {'word_notes': ['x; y', None], 'warnings': ['z', None]}
    """
    for name in ("word_notes", "warnings") if suffix.lower() in (".csv", ".tsv") else ():
        table = table.set_column(table.column_names.index(name), name, joined_texts(table[name]))
    return table


def joined_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts of each list in one line; null for an empty list."""
    joined = pc.binary_join(column, "; ")
    return pc.if_else(pc.equal(joined, ""), None, joined)


def jsonl_lines(table: pa.Table | JsonRows) -> Iterator[str]:
    """Yield one JSON object per row, without line ends; NaN and infinities become null.

    >>> list(jsonl_lines(pa.table({"a": ["é", None], "b": [1.5, math.nan]})))
    ['{"a": "é", "b": 1.5}', '{"a": null, "b": null}']
    """
    lines = map(json_line, _rows(table.added if isinstance(table, JsonRows) else table))
    if not isinstance(table, JsonRows):
        yield from lines
        return
    for input_values, line in zip(table.objects, lines, strict=True):
        yield line if input_values == "{}" else f"{input_values[:-1]}, {line[1:]}"


def json_line(values: Mapping[str, Any]) -> str:
    """Encode one JSON object; NaN and infinities become null.

    >>> json_line({"a": "é", "b": [math.nan]})
    '{"a": "é", "b": [null]}'
    """
    try:
        return _JSON.encode(values)
    except ValueError:  # rarely: most values are finite
        return _JSON.encode(_finite_value(values))


def csv_lines(table: pa.Table, delimiter: str = ",") -> Iterator[str]:
    """Yield one record per row, without line ends and header; null is an empty field, empty text a quoted one.

    >>> list(csv_lines(pa.table({"a": ["x, y", None], "b": [[1, 2], None]})))
    ['"x, y","[1, 2]"', ',']
    """
    for row in _rows(table):
        # A blank line would not be read as a record.
        yield delimiter.join(map(_csv_field, row.values())) or '""'


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for start in range(0, table.num_rows, _SLICE):
        yield from python_rows(table.slice(start, _SLICE))


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else as_text(value)
    if text and _QUOTED.isdisjoint(text) and text == text.strip():
        return text
    return '"' + (text or "").replace('"', '""') + '"'


def _finite_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite_value(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _finite_value(item) for name, item in value.items()}
    return value


def _write_parquet(tables: Iterable[pa.Table], file: BinaryIO, schema: pa.Schema) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for table in chain(tables, [None]):
            if table is not None:
                waiting.append(table)
            if waiting and (table is None or sum(map(len, waiting)) >= ROW_GROUP):
                writer.write_table(pa.concat_tables(waiting), row_group_size=ROW_GROUP)
                waiting = []
