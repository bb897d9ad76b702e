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

from msdscore.io.outputs.tables import as_text, conform, json_value, unified
from msdscore.io.outputs.targets import check_target, put

_SLICE = 4096  # rows turned into Python values at once
_ROW_GROUP = 32768  # small tables are gathered, since tiny row groups make a Parquet file slow
_QUOTED = frozenset(',\t"\r\n')


def known_outputs() -> tuple[str, ...]:
    """The suffixes that tables can be written to.

    >>> known_outputs()
    ('.parquet', '.jsonl', '.csv', '.tsv', '.json')
    """
    return tuple(_WRITERS)


def check_output(path: Path, *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse a folder, an input, or a file name whose suffix says nothing, before any work is done."""
    check_target(path, known_outputs(), inputs=inputs)


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
    tables: Iterable[pa.Table], file: BinaryIO, suffix: str, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a stream of tables that share the schema of the first, holding little more than one of them."""
    stream = iter(tables)
    first = next(stream)
    schema = first.schema.with_metadata(dict(metadata or {}))
    _WRITERS[suffix.lower()]((conform(table, schema) for table in chain([first], stream)), file, schema)


def jsonl_lines(table: pa.Table) -> Iterator[str]:
    """One JSON object per row, without line ends; text stays as it is, NaN and infinities become null.

    >>> list(jsonl_lines(pa.table({"a": ["é", None], "b": [1.5, math.nan]})))
    ['{"a": "é", "b": 1.5}', '{"a": null, "b": null}']
    """
    for row in _rows(_finite(table)):
        yield json.dumps(row, ensure_ascii=False, default=json_value, allow_nan=False)


def csv_lines(table: pa.Table, delimiter: str = ",") -> Iterator[str]:
    """One record per row, without line ends and header; null is an empty field, empty text a quoted one.

    >>> list(csv_lines(pa.table({"a": ["x, y", None], "b": [[1, 2], None]})))
    ['"x, y","[1, 2]"', ',']
    """
    for row in _rows(table):
        # A blank line would be no record.
        yield delimiter.join(map(_csv_field, row.values())) or '""'


def csv_header(schema: pa.Schema, delimiter: str = ",") -> str:
    """The first line of a CSV file, without line end."""
    return delimiter.join(map(_csv_field, schema.names))


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
    if isinstance(value, dict):
        return {name: _finite_value(item) for name, item in value.items()}
    return value


def _write_parquet(tables: Iterable[pa.Table], file: BinaryIO, schema: pa.Schema) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in _gathered(tables):
            writer.write_table(table, row_group_size=_ROW_GROUP)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(len(part) for part in waiting) >= _ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_jsonl(tables: Iterable[pa.Table], file: BinaryIO, _: pa.Schema) -> None:
    for line in chain.from_iterable(map(jsonl_lines, tables)):
        file.write(line.encode() + b"\n")


def _write_json(tables: Iterable[pa.Table], file: BinaryIO, _: pa.Schema) -> None:
    separator = b"[\n"
    for line in chain.from_iterable(map(jsonl_lines, tables)):
        file.write(separator + line.encode())
        separator = b",\n"
    file.write(b"\n]\n" if separator == b",\n" else b"[]\n")


def _write_delimited(tables: Iterable[pa.Table], file: BinaryIO, schema: pa.Schema, delimiter: str) -> None:
    file.write(csv_header(schema, delimiter).encode() + b"\n")
    for table in tables:
        for line in csv_lines(table, delimiter):
            file.write(line.encode() + b"\n")


_WRITERS: dict[str, Callable[[Iterable[pa.Table], BinaryIO, pa.Schema], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".csv": partial(_write_delimited, delimiter=","),
    ".tsv": partial(_write_delimited, delimiter="\t"),
    ".json": _write_json,
}
