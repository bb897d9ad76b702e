"""Parquet files as records, read as streams."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, one_line
from msdscore.io.arrow import pa, pc, pq, python_rows
from msdscore.rows.formats import Record, Records, not_finite, require_distinct

_NOT_TEXT = Record(error="contains text that is not valid UTF-8")
_BUFFER = 1 << 20
_SLICE = 64  # rows turned into Python values at once; images may be inside


class ParquetTable(Records):
    """A Parquet file; `only` names the columns to read, by default all."""

    def __init__(self, path: Path, only: Sequence[str] | None = None) -> None:
        super().__init__(path)
        self._only = only
        with _readable(path), pq.ParquetFile(path) as file:
            stored = file.schema_arrow
            require_distinct(stored.names, path)
            schema = pa.schema([pa.field(entry.name, _plain(entry.type)) for entry in stored])
            self.schema = schema if only is None else pa.schema([schema.field(name) for name in only])
            self.columns, self.total = tuple(self.schema.names), int(file.metadata.num_rows)

    def read(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        # Without read-ahead, memory use is about one row group, however large the file.
        options = {"pre_buffer": False, "buffer_size": _BUFFER}
        with _readable(self.path), pq.ParquetFile(self.path, **options) as file:
            yield from _records(file.iter_batches(batch_size=_SLICE, columns=self._only), self.schema)

    def read_at(self, numbers: Collection[int]) -> Iterator[tuple[int, Record]]:
        """Iterate over the records with these numbers; only their row groups are read."""
        start = 0
        with _readable(self.path), pq.ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if any(start <= number < start + size for number in numbers):
                    records = _records(file.iter_batches(batch_size=_SLICE, row_groups=[group]), self.schema)
                    yield from ((number, record) for number, record in enumerate(records, start) if number in numbers)
                start += size


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert the errors of Arrow to an `InputError`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # times outside the range of Python
        raise InputError(f"{path}: cannot be read as a table ({one_line(error)})") from error


def _records(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[Record]:
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE):
            table = pa.Table.from_batches([batch.slice(start, _SLICE)])
            # Tables mark missing numbers with NaN.
            is_odd = any(map(_has_infinity, table.columns))
            for values in _python(table.cast(schema)):
                yield _NOT_TEXT if values is None else Record(values, warning=not_finite(values) if is_odd else None)


def _has_infinity(column: pa.ChunkedArray) -> bool:
    """Whether numbers, or lists of them, contain an infinity."""
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = pc.list_flatten(column)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_inf(column)).as_py())


def _python(table: pa.Table) -> list[Any]:
    """Convert rows to Python values, None for rows with invalid text, which Arrow does not check before."""
    try:
        return list(python_rows(table))
    except UnicodeDecodeError:
        rows = [table.slice(index, 1) for index in range(len(table))]
        return [_python(row)[0] for row in rows] if len(rows) > 1 else [None]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type for the same values that converts to Python values and fits every part of a run."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return kind
