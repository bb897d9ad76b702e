"""Input formats, whose readers all yield records of named values; JSON lines, CSV, TSV and Parquet are read here."""

import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from json import JSONDecoder
from pathlib import Path
from typing import Any, TextIO

from msdscore.errors import InputError, RunError, one_line, shortened
from msdscore.io.arrow import pa, pq, python_rows
from msdscore.io.files import CODECS, file_key, file_key_and_lines, without_compression

# Format -> the module in this folder and the class that reads it; imported when such an input is opened.
_READERS = {
    "jsonl": ("formats", "JsonLines"),
    "ndjson": ("formats", "JsonLines"),
    "json": ("documents", "JsonDocument"),
    "csv": ("formats", "Delimited"),
    "tsv": ("formats", "TabDelimited"),
    "parquet": ("formats", "ParquetTable"),
    "tar": ("tars", "TarSamples"),
}
_SHEETS = frozenset(("xlsx", "xls", "ods"))
DEEPEST = 32  # levels of lists and objects within each other; Arrow writes up to 64, deeper values become text
# Text compresses to a tenth, rarely to a fiftieth; a file that expands further is likely a zip bomb.
_MAX_BYTES, _MAX_RATIO = 1 << 30, 100
_MOST_PIPED = 64 << 30  # bytes of input that may never end
_BOM = b"\xef\xbb\xbf"
LONGEST = 16 << 20  # bytes or characters of one row, which takes ten times that to read; longer rows are an error
TOO_LONG = f"more than {LONGEST:,} bytes in one row; expected an image and its captions"
SURROGATE = "contains half a surrogate pair, which is not valid Unicode"
_BUFFER = 1 << 20
_SLICE = 64  # rows turned into Python values at once; images may be inside


@dataclass(frozen=True, slots=True)
class Record:
    """The named values of one input row, with an `error` if they could not be read, or a `warning`."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    warning: str | None = None


class Records:
    """Base class of input formats: one opened input, read as a stream.

    `columns` is None if columns may differ between records, `schema` if the format has no types. `total` is the number
    of records, for lines of text an upper bound that `fingerprint` counts; None if it is unknown before reading.
    `files` are the files that it is read from.
    """

    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = None
    total: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)

    def read(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        raise NotImplementedError

    def read_at(self, numbers: Collection[int]) -> Iterator[tuple[int, Record]]:
        """Iterate over the records with these numbers, counted from 0; formats with an index skip the others."""
        numbered = islice(enumerate(self.read()), max(numbers, default=-1) + 1)
        return ((number, record) for number, record in numbered if number in numbers)

    def fingerprint(self) -> str:
        """Return a hash of the content."""
        return file_key(self.path)


def require_distinct(names: Sequence[str], path: Path) -> None:
    """Raise `InputError` if two columns have the same name."""
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two columns have the same name: {', '.join(names)}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RepeatedNameError(f"the name {shortened(twice)!r} appears more than once in one object")
    return values


# Like `json.loads`, but raises for an object with a repeated name, of which one value would silently win.
JSON = JSONDecoder(object_pairs_hook=_distinct)


class RepeatedNameError(ValueError):
    """A JSON object has two values under one name."""


def shallow(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values nested more than `DEEPEST` levels to JSON text, since tables do not support them.

    Raises:
        RecursionError: a value nests too deep even for that.

    >>> shallow({"a": [1], "b": json.loads("[" * 50 + "]" * 50)})["b"][-3:]
    ']]]'
    """
    deep = [name for name, value in values.items() if isinstance(value, dict | list) and _is_deep(value)]
    return values | {name: json.dumps(values[name], ensure_ascii=False) for name in deep} if deep else values


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def valid_text(value: Any) -> Any:
    """Replace lone surrogates in all texts of a value; they are not valid Unicode and cannot be written.

    >>> valid_text({"a": ["\\ud800b"]})
    {'a': ['�b']}
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [valid_text(item) for item in value]
    if isinstance(value, dict):
        return {valid_text(key): valid_text(item) for key, item in value.items()}
    return value


class JsonLines(Records):
    """One JSON object per line; an unreadable line becomes a record with an error, blank lines are skipped."""

    def fingerprint(self) -> str:
        """Return a hash of the content, and count the lines."""
        key, self.total = file_key_and_lines(self.path)
        return key

    def read(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        with self.path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    yield _line_record(content, f"line {number}")
                while len(line) >= LONGEST and not line.endswith(b"\n"):
                    line = file.readline(LONGEST)  # the rest of a line that is too long


def _line_record(line: bytes, where: str) -> Record:
    if len(line) > LONGEST:
        return Record(error=f"{where}: {TOO_LONG}")
    try:
        return json_record(line.rstrip().decode("utf-8"), where)
    except UnicodeDecodeError:
        return Record(error=f"{where}: not valid UTF-8")


def json_record(text: str, where: str) -> Record:
    """Build the record of one JSON object in a text of its own; `where` names it in errors."""
    try:
        value = JSON.decode(text)
    except json.JSONDecodeError as error:
        return Record(error=f"{where}: not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})")
    except RepeatedNameError as error:
        return Record(error=f"{where}: {error}")
    except (ValueError, RecursionError) as error:
        return Record(error=f"{where}: not usable JSON ({shortened(str(error))})")
    return object_record(value, where, text)


def object_record(value: Any, where: str, text: str) -> Record:
    """Build the record of one JSON object, written as `text`."""
    if not isinstance(value, dict):
        return Record(error=f'{where}: expected an object such as {{"image": …}}, got {type(value).__name__}')
    try:
        value = shallow(value)
    except RecursionError:
        return Record(error=f"{where}: not usable JSON (lists or objects within each other, too deep)")
    if may_escape_surrogate(text) and (clean := valid_text(value)) != value:
        return Record(clean, error=f"{where}: {SURROGATE}")
    return Record(value)


def may_escape_surrogate(text: str) -> bool:
    """Return whether JSON text may have an escaped surrogate, to spare the others the search in their values."""
    return r"\ud" in text or r"\uD" in text


class Delimited(Records):
    """CSV with a header line; quoted fields may contain delimiters and line breaks."""

    delimiter = ","

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        _, header = next(self._parse(), (0, []))
        if isinstance(header, str):
            raise InputError(f"{self.path}: line 1: {header}")
        if valid_text(header) != header:
            raise InputError(f"{self.path}: line 1: not valid UTF-8; save the file as UTF-8")
        require_distinct(header, self.path)
        self.columns = tuple(header)

    def fingerprint(self) -> str:
        """Return a hash of the content, and count the lines below the header."""
        key, lines = file_key_and_lines(self.path)
        self.total = max(lines - 1, 0)
        return key

    def read(self) -> Iterator[Record]:
        """Iterate over the records below the header."""
        names = self.columns or ()
        for number, fields in islice(self._parse(), 1, None):
            if isinstance(fields, str):
                yield Record(error=f"line {number}: {fields}")
            elif len(fields) != len(names):
                yield Record(error=f"line {number}: expected {len(names)} fields, got {len(fields)}")
            else:
                values = dict(zip(names, fields, strict=True))
                clean = valid_text(values)
                yield Record(clean, error=None if clean == values else f"line {number}: not valid UTF-8")

    def _parse(self) -> Iterator[tuple[int, list[str] | str]]:
        """Yield the last line number with the fields or an error; blank lines are skipped."""
        # Invalid UTF-8 is decoded to surrogates, so that one bad row does not stop the reader.
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(self._lines(file), delimiter=self.delimiter, strict=True)
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    # The rest of the field would be parsed as rows; the usual cause is an unclosed quote.
                    if "field limit" in str(error):
                        raise InputError(
                            f"{self.path}: line {reader.line_num}: a field of more than {csv.field_size_limit()} "
                            "characters, perhaps a quote that is never closed; use JSON lines or Parquet for such texts"
                        ) from error
                    yield reader.line_num, f"not valid CSV ({error})"
                else:
                    if fields:
                        yield reader.line_num, fields

    def _lines(self, file: TextIO) -> Iterator[str]:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), ""), start=1):
            if len(line) > LONGEST:
                raise InputError(f"{self.path}: line {number}: {TOO_LONG}")
            yield line


class TabDelimited(Delimited):
    """TSV with a header line."""

    delimiter = "\t"


_NOT_TEXT = Record(error="contains text that is not valid UTF-8")


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
            yield from (_NOT_TEXT if values is None else Record(values) for values in _python(table.cast(schema)))


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


def open_records(source: str | Path, *, format: str | None, until: ExitStack) -> Records:  # noqa: A002, the user's word
    """Open the records of a file, a pipe or `-`; spooled input is deleted when `until` closes.

    A file compressed with gzip or Zstandard (`rows.jsonl.gz`, `rows.csv.zst`) is spooled in full: counting, hashing and
    resuming all need to read it again.
    """
    name, path = str(source), Path(source)
    if "://" in name:
        raise InputError(f"{shortened(name)}: an address; score it as a shard into a folder (-o DIR), or download it")
    if name != "-" and not path.exists():
        raise InputError(f"{shortened(name)}: no such file")
    if path.is_dir():
        raise InputError(
            f"{shortened(name)}: is a folder; expected a file of rows (of a Hugging Face dataset: to_parquet); a "
            "folder of shards is scored into a folder (-o DIR)"
        )
    suffix = without_compression(path).suffix.lower().removeprefix(".")
    kind = format or ("jsonl" if name == "-" else suffix)
    if kind in _SHEETS:
        raise InputError(f"{shortened(name)}: a spreadsheet; save it as .csv or .tsv, and score that")
    if kind not in _READERS:
        raise InputError(
            f"{shortened(name)}: unknown input format {shortened(kind)!r}; expected a name ending in one of "
            f"{', '.join(_READERS)} (for text also with .gz or .zst), or --format"
        )
    module, reader_name = _READERS[kind]
    reader: Callable[[Path], Records] = getattr(import_module(f"{__package__}.{module}"), reader_name)
    codec = CODECS.get(path.suffix.lower())
    if name != "-" and codec is None and path.is_file():
        return reader(path)
    label = "-: standard input" if name == "-" else f"{shortened(name)}:"
    try:
        with _opened(name, codec) as stream:
            most = max(_MAX_BYTES, _MAX_RATIO * path.stat().st_size) if codec else None
            spooled = _spool(stream, until, most)
    except InputError as error:
        raise InputError(f"{label} {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{label} cannot be {f'decompressed as {codec}' if codec else 'read'} ({one_line(error)})"
        ) from error
    return reader(spooled)


@contextmanager
def _opened(name: str, codec: str | None) -> Iterator[Any]:
    """Open standard input, a compressed file or a pipe."""
    if name == "-":
        if sys.stdin is None:
            raise InputError("is closed; expected JSON lines there")
        yield sys.stdin.buffer
    elif codec is None:
        with Path(name).open("rb") as pipe:
            yield pipe
    else:
        with pa.OSFile(name) as packed, pa.CompressedInputStream(packed, codec) as stream:
            yield stream


def _spool(stream: Any, until: ExitStack, most: int | None) -> Path:
    """Copy a stream to a file that can be read again.

    Raises:
        InputError: it has more than `most` bytes; None: more than `_MOST_PIPED`, or half of the free space.
    """
    # Closed and deleted explicitly: Windows cannot open a file twice.
    file = tempfile.NamedTemporaryFile(prefix="msdscore-", suffix=".input", delete=False)  # noqa: SIM115
    until.callback(Path(file.name).unlink, missing_ok=True)
    room = most or min(_MOST_PIPED, shutil.disk_usage(Path(file.name).parent).free // 2)
    with file:
        while block := stream.read(1 << 20):
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                reason = f"cannot be written ({error.strerror or error}); set TMPDIR to a folder with more space"
                raise RunError(f"{file.name}: {reason}") from error
            if file.tell() > room:
                limit = f"{_MAX_RATIO} times its size" if most else f"or half of the space in {Path(file.name).parent}"
                raise InputError(f"has more than {room:,} bytes, {limit}; save its content and score that file")
    return Path(file.name)
