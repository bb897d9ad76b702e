"""Input formats and their readers, which all yield records of named values."""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from json import JSONDecoder
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, one_line, shortened
from msdscore.io.arrow import pa
from msdscore.io.files import CODECS, file_key, without_compression

# Format -> the module in this folder and the class that reads it; imported when such an input is opened.
_READERS = {
    "jsonl": ("text", "JsonLines"),
    "ndjson": ("text", "JsonLines"),
    "json": ("text", "JsonDocument"),
    "csv": ("text", "Delimited"),
    "tsv": ("text", "TabDelimited"),
    "xlsx": ("tables", "Spreadsheet"),
    "parquet": ("tables", "ParquetTable"),
    "tar": ("tar_samples", "TarSamples"),
}
INPUT_FORMATS = tuple(_READERS)  # file suffixes
DEEPEST = 32  # levels of lists and objects within each other; Arrow writes up to 64, deeper values become text
# Text compresses to a tenth, rarely to a fiftieth; a file that expands further is likely a zip bomb.
_MAX_BYTES, _MAX_RATIO = 1 << 30, 100


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


def not_finite(values: dict[str, Any]) -> str | None:
    """Return a warning if values are, or contain, NaN or an infinity."""
    odd = [name for name, value in values.items() if type(value) is not str and _is_not_finite(value)]
    names = ", ".join(map(shortened, odd))
    return f"{names} contains NaN or Infinity, which is not JSON; a JSON output has null there" if names else None


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_is_not_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


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


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert rows to Python values; times in nanoseconds become text, durations in nanoseconds numbers.

    Times outside Python's range of years become numbers too.
    """
    for index, entry in enumerate(table.schema):
        if getattr(entry.type, "unit", None) == "ns":
            kind = pa.int64() if pa.types.is_duration(entry.type) else pa.string()
            table = table.set_column(index, entry.name, table.column(index).cast(kind))
    try:
        return list(table.to_pylist())
    except OverflowError:
        for index, entry in enumerate(table.schema):
            if pa.types.is_temporal(entry.type):
                kind = pa.int32() if entry.type.bit_width == 32 else pa.int64()
                table = table.set_column(index, entry.name, table.column(index).cast(kind))
        return list(table.to_pylist())


def has_input_suffix(path: Path) -> bool:
    """Whether a file has the suffix of an input format.

    >>> has_input_suffix(Path("rows.csv.gz")), has_input_suffix(Path("notes.txt"))
    (True, False)
    """
    return without_compression(path).suffix.lower().removeprefix(".") in _READERS


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
    if kind not in _READERS:
        raise InputError(
            f"{shortened(name)}: unknown input format {shortened(kind)!r}; expected a name ending in one of "
            f"{', '.join(_READERS)} (for text also with .gz or .zst), or --format"
        )
    module, reader_name = _READERS[kind]
    reader: Callable[[Path], Records] = getattr(import_module(f"{__package__}.{module}"), reader_name)
    if name == "-" and sys.stdin is None:
        raise InputError("-: standard input is closed; expected JSON lines there")
    if name == "-":
        return reader(_spool(sys.stdin.buffer, until))
    codec = CODECS.get(path.suffix.lower())
    if codec:
        try:
            with pa.OSFile(name) as packed, pa.CompressedInputStream(packed, codec) as stream:
                path = _spool(stream, until, most=max(_MAX_BYTES, _MAX_RATIO * path.stat().st_size))
        except InputError as error:
            raise InputError(f"{shortened(name)}: {error}") from error
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be decompressed as {codec} ({one_line(error)})") from error
    elif not path.is_file():
        with path.open("rb") as pipe:
            path = _spool(pipe, until)
    return reader(path)


def _spool(stream: Any, until: ExitStack, most: int | None = None) -> Path:
    """Copy a stream of at most `most` bytes to a file that can be read again."""
    # Closed and deleted explicitly: Windows cannot open a file twice.
    file = tempfile.NamedTemporaryFile(prefix="msdscore-", suffix=".input", delete=False)  # noqa: SIM115
    until.callback(Path(file.name).unlink, missing_ok=True)
    with file:
        while block := stream.read(1 << 20):
            file.write(block)
            if most is not None and file.tell() > most:
                raise InputError(
                    f"expands to more than {most:,} bytes, {_MAX_RATIO} times its size; "
                    "if that is intended, decompress it and score the result"
                )
    return Path(file.name)
