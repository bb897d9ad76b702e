"""Parquet files and saved Hugging Face datasets as records, in slices of bounded size."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from msdscore.errors import InputError
from msdscore.io.hashing import file_key
from msdscore.io.inputs.records import Record

_NOT_TEXT = Record(error="holds text that is not valid UTF-8")
_BUFFER = 1 << 20
_SLICE = 64  # rows turned into Python values at once; pictures may be inside


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """A Parquet file; row groups before the start are skipped unread."""

    path: Path
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        with _readable(self.path), pq.ParquetFile(self.path) as file:
            object.__setattr__(self, "schema", _plain_schema(file.schema_arrow, self.path))

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(self.schema.names)

    def count(self) -> int:
        """The number of rows, from the footer."""
        with _readable(self.path), pq.ParquetFile(self.path) as file:
            return int(file.metadata.num_rows)

    def fingerprint(self) -> str:
        """A hash of the file."""
        return file_key(self.path)

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""
        # Without read-ahead, what is held is about one row group, however large the file.
        options = {"pre_buffer": False, "buffer_size": _BUFFER}
        with _readable(self.path), pq.ParquetFile(self.path, **options) as file:
            first, skip = _row_group_of(start, file.metadata)
            groups = range(first, file.metadata.num_row_groups)
            batches = file.iter_batches(batch_size=_SLICE, row_groups=groups)
            yield from _records(_skip(batches, skip), self.schema)


@dataclass(frozen=True, slots=True)
class SavedDataset:
    """A folder written by `Dataset.save_to_disk`: Arrow files, mapped and not loaded."""

    folder: Path
    files: tuple[Path, ...] = field(init=False)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", _data_files(self.folder))
        with _readable(self.folder), _stream(self.files[0]) as reader:
            object.__setattr__(self, "schema", _plain_schema(reader.schema, self.folder))

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(self.schema.names)

    def count(self) -> int:
        """The number of rows, from the headers of the batches."""
        return sum(batch.num_rows for batch in self._batches())

    def fingerprint(self) -> str:
        """A hash of all data files in order."""
        return blake2b("".join(map(file_key, self.files)).encode(), digest_size=16).hexdigest()

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""
        yield from _records(_skip(self._batches(), start), self.schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for path in self.files:
            with _readable(path), _stream(path) as reader:
                yield from reader


def _data_files(folder: Path) -> tuple[Path, ...]:
    if (splits := folder / "dataset_dict.json").is_file():
        names = json.loads(splits.read_text(encoding="utf-8"))["splits"]
        choices = ", ".join(str(folder / name) for name in names)
        raise InputError(f"{folder}: a dataset with several splits; name one of them: {choices}")
    if not (folder / "state.json").is_file():
        raise InputError(f"{folder}: a folder without state.json; expected a dataset written by save_to_disk")
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    files = tuple(folder / entry["filename"] for entry in state.get("_data_files", ()))
    if not files or state.get("_indices_data_files"):
        raise InputError(f"{folder}: saved by a very old version of datasets; load it and save it again")
    return files


@contextmanager
def _stream(path: Path) -> Iterator[pa.RecordBatchReader]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        yield reader


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a table ({reason})") from error


def _row_group_of(row: int, metadata: pq.FileMetaData) -> tuple[int, int]:
    """The row group that holds a row, and how many rows of it come before."""
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        if row < size:
            return group, row
        row -= size
    return metadata.num_row_groups, 0


def _skip(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows)
        rows = max(0, rows - batch.num_rows)


def _records(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[Record]:
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE):
            table = pa.Table.from_batches([batch.slice(start, _SLICE)])
            for values in _python(table.cast(schema, safe=False)):
                yield _NOT_TEXT if values is None else Record(values)


def _python(data: pa.Table | pa.Array) -> list[Any]:
    """Python values, None for a row whose text is not valid; Arrow does not look at it before."""
    try:
        return list(data.to_pylist())
    except UnicodeDecodeError:
        rows = [data.slice(index, 1) for index in range(len(data))]
    return [_python(row)[0] for row in rows] if len(rows) > 1 else [None]


def _plain_schema(schema: pa.Schema, path: Path) -> pa.Schema:
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path}: two columns have the same name: {', '.join(schema.names)}")
    return pa.schema([pa.field(entry.name, _plain(entry.type)) for entry in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same values in a type that every part of a run can hold and that has Python values."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return kind
