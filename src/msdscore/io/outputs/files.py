"""Tables written as Parquet, JSON lines, JSON, CSV or TSV, by file name and in one step."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from msdscore.errors import ConfigError
from msdscore.io.outputs.tables import JsonRows, as_text, conform, json_value, unified
from msdscore.io.outputs.targets import check_target, is_standard_output, put, run_files

_SLICE = 4096  # rows turned into Python values at once
ROW_GROUP = 32768  # small tables are gathered, since tiny row groups make a Parquet file slow
_QUOTED = frozenset(',\t"\r\n')


def known_outputs() -> tuple[str, ...]:
    """The suffixes that tables can be written to.

    >>> known_outputs()
    ('.parquet', '.csv', '.tsv', '.jsonl', '.json')
    """
    return (*_TABLE_WRITERS, *_JSON_WRITERS)


def check_output(path: Path, *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse, before any work is done, what a run must not write: a folder, an input, a name that says no format.

    The files that a run writes beside its output are checked against the inputs too.
    """
    if is_standard_output(path):
        raise ConfigError(f"{path}: a run needs a file; expected a name ending in {', '.join(known_outputs())}")
    check_target(path, known_outputs(), inputs=inputs, side=run_files(path))


def write_table(
    table: pa.Table, path: str | Path, *, metadata: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Write a table by the suffix of its name; `metadata` is kept by Parquet alone."""
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
    """Write a stream of tables that share the schema of the first, holding little more than one of them.

    JSON rows can be written as JSON alone, where every row may have names and types of its own.
    """
    stream = iter(tables)
    first = next(stream)
    if isinstance(first, JsonRows):
        _JSON_WRITERS[suffix.lower()](chain([first], stream), file)
        return
    schema = pa.schema([(entry.name, entry.type) for entry in first.schema], metadata=dict(metadata or {}))
    shared = (conform(table, schema) for table in chain([first], stream))
    if suffix.lower() in _JSON_WRITERS:
        _JSON_WRITERS[suffix.lower()](shared, file)
    else:
        _TABLE_WRITERS[suffix.lower()](shared, file, schema)


def is_json(suffix: str) -> bool:
    """Whether files with this suffix hold JSON, and so rows of any shape."""
    return suffix.lower() in _JSON_WRITERS


def jsonl_lines(table: pa.Table | JsonRows) -> Iterator[str]:
    """One JSON object per row, without line ends; text stays as it is, NaN and infinities become null.

    >>> list(jsonl_lines(pa.table({"a": ["é", None], "b": [1.5, math.nan]})))
    ['{"a": "é", "b": 1.5}', '{"a": null, "b": null}']
    """
    added = _finite(table.added if isinstance(table, JsonRows) else table)
    lines = (json.dumps(row, ensure_ascii=False, default=json_value, allow_nan=False) for row in _rows(added))
    if not isinstance(table, JsonRows):
        yield from lines
        return
    for given, line in zip(table.given, lines, strict=True):
        yield line if given == "{}" else f"{given[:-1]}, {line[1:]}"


def json_line(values: Mapping[str, Any]) -> str:
    """One JSON object; text stays as it is, NaN and infinities become null.

    >>> json_line({"a": "é", "b": [math.nan]})
    '{"a": "é", "b": [null]}'
    """
    return json.dumps(_finite_value(values), ensure_ascii=False, default=json_value, allow_nan=False)


def csv_lines(table: pa.Table, delimiter: str = ",") -> Iterator[str]:
    """One record per row, without line ends and header; null is an empty field, empty text a quoted one.

    >>> list(csv_lines(pa.table({"a": ["x, y", None], "b": [[1, 2], None]})))
    ['"x, y","[1, 2]"', ',']
    """
    for row in _rows(table):
        # A blank line would be no record.
        yield delimiter.join(map(_csv_field, row.values())) or '""'


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for start in range(0, table.num_rows, _SLICE):
        yield from table.slice(start, _SLICE).to_pylist()


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else as_text(value)
    if text and _QUOTED.isdisjoint(text) and text == text.strip():
        return text
    return '"' + (text or "").replace('"', '""') + '"'


def _finite(table: pa.Table) -> pa.Table:
    for index, entry in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_floating(entry.type):
            column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, entry.type))
        elif pa.types.is_nested(entry.type):
            column = pa.chunked_array([_finite_value(column.to_pylist())], type=entry.type)
        table = table.set_column(index, entry, column)
    return table


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
        for table in _gathered(tables):
            writer.write_table(table, row_group_size=ROW_GROUP)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(len(part) for part in waiting) >= ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_jsonl(tables: Iterable[pa.Table | JsonRows], file: BinaryIO) -> None:
    for line in chain.from_iterable(map(jsonl_lines, tables)):
        file.write(line.encode() + b"\n")


def _write_json(tables: Iterable[pa.Table | JsonRows], file: BinaryIO) -> None:
    separator = b"[\n"
    for line in chain.from_iterable(map(jsonl_lines, tables)):
        file.write(separator + line.encode())
        separator = b",\n"
    file.write(b"\n]\n" if separator == b",\n" else b"[]\n")


def _write_delimited(tables: Iterable[pa.Table], file: BinaryIO, schema: pa.Schema, delimiter: str) -> None:
    file.write(delimiter.join(map(_csv_field, schema.names)).encode() + b"\n")
    for table in tables:
        for line in csv_lines(table, delimiter):
            file.write(line.encode() + b"\n")


_TABLE_WRITERS: dict[str, Callable[[Iterable[pa.Table], BinaryIO, pa.Schema], None]] = {
    ".parquet": _write_parquet,
    ".csv": partial(_write_delimited, delimiter=","),
    ".tsv": partial(_write_delimited, delimiter="\t"),
}
_JSON_WRITERS: dict[str, Callable[[Iterable[pa.Table | JsonRows], BinaryIO], None]] = {
    ".jsonl": _write_jsonl,
    ".json": _write_json,
}
