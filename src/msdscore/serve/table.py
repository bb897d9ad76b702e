"""Process that reads a scored file: `python -m msdscore.serve.table`.

The input is one JSON line of options; the output is an Arrow stream of all rows, or an error as JSON. It imports
little, since its start takes a third of the time of reading 100,000 rows.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from msdscore.errors import InputError
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES, first_of
from msdscore.serve.settings import RequestError

if TYPE_CHECKING:
    from msdscore.io.inputs.formats import Records

TEXTS = ("caption", "image", "warnings", "error")
_CHARACTERS = 2000  # of a text in an answer
_BATCH = 16_384  # rows that are written at once


def main() -> None:
    """Read one file with the options on standard input, and write its table or an error."""
    options = json.loads(sys.stdin.readline())
    most = options["max_expanded"]
    with suppress(ImportError, OSError, ValueError):  # if the system does not support a memory limit
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + most
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        table = _read_columns(options)
        sys.stdout.buffer.write(_read_records(options) if table is None else _written(table.schema, table.to_batches()))
        return
    except RequestError as error:
        rejected = error
    except MemoryError:
        rejected = expanded(most)
    except InputError as error:
        # The message begins with the path, which means nothing to the caller.
        head, colon, rest = str(error).partition(": ")
        reason = rest if colon and ("/fd/" in head or "msdscore-" in head) else str(error)
        rejected = expanded(most) if isinstance(error.__cause__, MemoryError) else RequestError(422, reason)
    sys.stdout.write(json.dumps({"status": rejected.status, "error": rejected.reason}))


def expanded(limit: int) -> RequestError:
    """Create the error for a file that needs too much memory."""
    return RequestError(413, f"expected a file that can be read in {limit >> 20} MiB of memory; send fewer rows")


def _read_columns(options: Mapping[str, Any]) -> pa.Table | None:
    """Read a file by columns with Arrow; None if it must be read row by row.

    For 100,000 rows of JSON lines this takes a tenth of the time.
    """
    try:
        if options["format"] == "parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(options["path"], pre_buffer=False)
            _check_limits(file.metadata.num_rows, file.metadata.num_rows * len(file.schema_arrow), options)
            wanted = {*CAPTION_NAMES, *IMAGE_NAMES, "warnings", "error", *options["numbers"]}
            table = file.read([name for name in file.schema_arrow.names if name.casefold() in wanted])
        elif options["format"] in ("jsonl", "ndjson"):
            import pyarrow.json as pa_json

            schema = pa.schema([(name, pa.float64()) for name in options["numbers"]])
            table = pa_json.read_json(
                options["path"], pa_json.ReadOptions(use_threads=False), pa_json.ParseOptions(explicit_schema=schema)
            )
            given = [name for name in table.column_names if table[name].null_count < table.num_rows]
            _check_limits(table.num_rows, table.num_rows * len(given), options)
            for names in (CAPTION_NAMES, IMAGE_NAMES):  # rows may have that text under different names
                synonyms = [name for name in table.column_names if name.casefold() in names]
                if len(synonyms) > 1 and table[first_of(table.column_names, names)].null_count:
                    return None
        else:
            return None
        table.validate(full=True)
        return pa.table(_columns(table, options["numbers"]))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeError):  # the row reader reports which row it is
        return None


def _columns(table: pa.Table, numbers: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Convert the columns of a table as `_text` and `_number` do; raises `ArrowInvalid` for other types."""
    columns = {}
    for title, names in zip(TEXTS, (CAPTION_NAMES, IMAGE_NAMES, ("warnings",), ("error",)), strict=True):
        name = first_of(table.column_names, names)
        column = pa.chunked_array([pa.nulls(table.num_rows)]) if name is None else table[name]
        if pa.types.is_struct(column.type):  # an image as Hugging Face datasets have it
            column = pc.struct_field(column, "path")
        if pa.types.is_list(column.type) and title == "warnings":
            column = pc.binary_join(column.cast(pa.list_(pa.string())), "\n")
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or column.type == pa.null()):
            raise pa.ArrowInvalid(f"{name} is not a column of text")
        text = pc.utf8_slice_codeunits(column.cast(pa.string()), 0, _CHARACTERS)
        columns[title] = pc.if_else(pc.equal(text, ""), None, text)
    for name in numbers:
        if name in table.column_names:
            column = table[name].cast(pa.float64())
            columns[name] = pc.if_else(pc.is_finite(column), column, None)
    return columns


def _check_limits(rows: int, cells: int, options: Mapping[str, Any]) -> None:
    if rows > options["max_rows"]:
        raise RequestError(413, f"expected a file of at most {options['max_rows']} rows")
    if cells > options["max_cells"]:
        raise RequestError(413, f"expected a file of at most {options['max_cells']} cells; remove columns")


def _read_records(options: Mapping[str, Any]) -> pa.Buffer:
    """Read the rows of a file in any format, one by one."""
    from msdscore.io.inputs.formats import open_records

    numbers = [(name, pa.float64()) for name in options["numbers"]]
    schema = pa.schema([*((name, pa.string()) for name in TEXTS), *numbers])

    def batches(rows: Iterator[list[str | float | None]]) -> Iterator[pa.RecordBatch]:
        while batch := list(islice(rows, _BATCH)):
            columns = zip(zip(*batch, strict=True), schema.types, strict=True)
            yield pa.record_batch([pa.array(column, kind) for column, kind in columns], schema=schema)

    with ExitStack() as stack:
        records = open_records(options["path"], format=options["format"], until=stack)
        return _written(schema, batches(_rows(records, options)))


def _written(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """Write batches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _rows(records: "Records", options: Mapping[str, Any]) -> Iterator[list[str | float | None]]:
    """Yield caption, image name, warnings, error and scores of every row, within the limits."""
    cells = 0
    for number, record in enumerate(records.read(), start=1):
        values, cells = record.values, cells + len(record.values)
        _check_limits(number, cells, options)
        named = [first_of(values, names) for names in (CAPTION_NAMES, IMAGE_NAMES)]
        texts = [
            *(name and values[name] for name in named),
            values.get("warnings"),
            record.error or values.get("error"),
        ]
        yield [*map(_text, texts), *(_number(values.get(name)) for name in options["numbers"])]


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):  # an image as Hugging Face datasets have it
        value = value.get("path")
    if isinstance(value, list):  # warnings
        value = "\n".join(map(str, value))
    if not isinstance(value, str) or not value:
        return None
    return value[:_CHARACTERS].encode("utf-8", "replace").decode()


def _number(value: Any) -> float | None:
    """Parse a finite number from a number or text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


if __name__ == "__main__":
    main()
