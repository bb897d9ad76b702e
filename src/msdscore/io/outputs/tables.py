"""Arrow tables from rows, and of one type from many parts."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_CONVERSION = (pa.ArrowException, TypeError, ValueError, OverflowError)
_EXACT = 1 << 53  # up to here every integer is a float too
_WIDE = b"msdscore.wide"  # marks a column of integers that floats cannot hold


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Rows of a JSON output: the input's own values as the text of one object each, and the columns that were added."""

    given: Sequence[str]
    added: pa.Table


def table_from_columns(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    """A table of the rows' named values, in order of first appearance, missing ones null.

    Types come from `schema` where it names them and fits, else from the values; values of no common type
    become text.

    >>> table_from_columns([{"a": 1}, {"a": "x", "b": 2.5}]).to_pylist()
    [{'a': '1', 'b': None}, {'a': 'x', 'b': 2.5}]
    """
    kinds: dict[str, pa.DataType | None] = {} if schema is None else {field.name: field.type for field in schema}
    for row in rows:
        for name in row:
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
    """One schema that holds the values of all; columns of no common type, or never filled, become text.

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
    """The table with the columns and types of a schema made by `unified`; missing columns are null."""
    names = set(table.column_names)
    columns = [
        _cast(table.column(entry.name), entry.type) if entry.name in names else pa.nulls(len(table), entry.type)
        for entry in schema
    ]
    return pa.table(columns, schema=schema)


def as_text(value: Any) -> str | None:
    """Text as it is, objects and numbers as JSON, times and decimals as they print.

    >>> as_text("é"), as_text([1, "é"]), as_text(None)
    ('é', '[1, "é"]', None)
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=json_value)
    return json_value(value)


def json_value(value: Any) -> str:
    """What JSON has no type for: bytes in base 64, times and decimals as text."""
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    # Integers past 2⁶³ have a type of their own; Arrow does not find it by itself.
    for wanted in (kind, None, pa.uint64()):
        try:
            array = pa.array(values, type=wanted)
        except _CONVERSION:
            continue
        if not _has_empty_struct(array.type):
            return array
    return pa.array([as_text(value) for value in values], type=pa.string())


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Parquet has no object without fields."""
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
        # Arrow casts no object to one with more fields; Python values have no such scruple.
        return pa.chunked_array([pa.array(column.to_pylist(), type=kind)], type=kind)
