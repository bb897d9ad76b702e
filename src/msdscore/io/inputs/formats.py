"""Which reader opens which input."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from msdscore.errors import InputError, shortened
from msdscore.io.inputs.records import Records
from msdscore.io.inputs.tables import ParquetTable, SavedDataset, Spreadsheet
from msdscore.io.inputs.tar_samples import TarSamples
from msdscore.io.inputs.text import Delimited, JsonDocument, JsonLines

_READERS: dict[str, Callable[[Path], Records]] = {
    "jsonl": JsonLines,
    "ndjson": JsonLines,
    "json": JsonDocument,
    "csv": lambda path: Delimited(path, ","),
    "tsv": lambda path: Delimited(path, "\t"),
    "xlsx": Spreadsheet,
    "parquet": ParquetTable,
    "dataset": SavedDataset,
    "tar": TarSamples,
}
_CODECS = {".gz": "gzip", ".zst": "zstd"}


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """At most so many bytes; none at the end."""


def known_inputs() -> tuple[str, ...]:
    """The names of the input formats; all but `dataset`, which is a folder, are file suffixes.

    >>> known_inputs()
    ('jsonl', 'ndjson', 'json', 'csv', 'tsv', 'xlsx', 'parquet', 'dataset', 'tar')
    """
    return tuple(_READERS)


def is_known(path: Path) -> bool:
    """Whether a name says that a file holds rows.

    >>> is_known(Path("rows.csv.gz")), is_known(Path("notes.txt"))
    (True, False)
    """
    return _named(path).suffix.lower().removeprefix(".") in _READERS


def open_records(source: str | Path, *, format: str | None, until: ExitStack) -> Records:  # noqa: A002, the user's word
    """The records of a file, a folder, a pipe or `-`; spooled input is deleted when `until` closes.

    A file compressed with gzip or Zstandard (`rows.jsonl.gz`, `rows.csv.zst`) is spooled in full: counting, hashing and
    going on all need to read it again.
    """
    if str(source) == "-":
        return _reader(format or "jsonl", "-")(_spool(sys.stdin.buffer, until))
    path = Path(source)
    if not path.exists():
        raise InputError(f"{shortened(str(path))}: no such file")
    codec = _CODECS.get(path.suffix.lower())
    name = format or ("dataset" if path.is_dir() else _named(path).suffix.lower().removeprefix("."))
    reader = _reader(name, str(path))
    if codec and not path.is_dir():
        return reader(_unpacked(path, codec, until))
    if path.is_file() or path.is_dir():
        return reader(path)
    with path.open("rb") as pipe:
        return reader(_spool(pipe, until))


def _named(path: Path) -> Path:
    """The name without the suffix of a compression."""
    return path.with_suffix("") if path.suffix.lower() in _CODECS else path


def _reader(name: str, source: str) -> Callable[[Path], Records]:
    if name not in _READERS:
        known = ", ".join(_READERS)
        raise InputError(
            f"{shortened(source)}: unknown input format {shortened(name)!r}; expected a name ending in one of {known} "
            "(for text also with .gz or .zst), or --format"
        )
    return _READERS[name]


def _unpacked(path: Path, codec: str, until: ExitStack) -> Path:
    try:
        with pa.OSFile(str(path)) as packed, pa.CompressedInputStream(packed, codec) as stream:
            return _spool(stream, until)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be decompressed as {codec} ({reason})") from error


def _spool(stream: Readable, until: ExitStack) -> Path:
    """Copy a stream to a file that can be read again."""
    # Closed and deleted by hand: Windows opens no file a second time while it is open.
    file = tempfile.NamedTemporaryFile(prefix="msdscore-", suffix=".input", delete=False)  # noqa: SIM115
    until.callback(Path(file.name).unlink, missing_ok=True)
    with file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return Path(file.name)
