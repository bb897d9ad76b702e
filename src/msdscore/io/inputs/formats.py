"""Which reader opens which input."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from msdscore.errors import InputError, shortened
from msdscore.io.inputs.arrow import ParquetTable, SavedDataset
from msdscore.io.inputs.json_document import JsonDocument
from msdscore.io.inputs.records import Records
from msdscore.io.inputs.text_lines import Delimited, JsonLines

_READERS: dict[str, Callable[[Path], Records]] = {
    "jsonl": JsonLines,
    "ndjson": JsonLines,
    "json": JsonDocument,
    "csv": lambda path: Delimited(path, ","),
    "tsv": lambda path: Delimited(path, "\t"),
    "parquet": ParquetTable,
    "dataset": SavedDataset,
}


def known_inputs() -> tuple[str, ...]:
    """The names of the input formats; all but `dataset`, which is a folder, are file suffixes.

    >>> known_inputs()
    ('jsonl', 'ndjson', 'json', 'csv', 'tsv', 'parquet', 'dataset')
    """
    return tuple(_READERS)


def open_records(source: str | Path, *, format: str | None, until: ExitStack) -> Records:  # noqa: A002, the user's word
    """The records of a file, a folder, a pipe or `-`; spooled input is deleted when `until` closes."""
    if str(source) == "-":
        return _reader(format or "jsonl", "-")(_spool(sys.stdin.buffer, until))
    path = Path(source)
    if not path.exists():
        raise InputError(f"{shortened(str(path))}: no such file")
    name = format or ("dataset" if path.is_dir() else path.suffix.lower().removeprefix("."))
    reader = _reader(name, str(path))
    if path.is_file() or path.is_dir():
        return reader(path)
    with path.open("rb") as pipe:
        return reader(_spool(pipe, until))


def _reader(name: str, source: str) -> Callable[[Path], Records]:
    if name not in _READERS:
        known = ", ".join(_READERS)
        raise InputError(f"{source}: unknown input format {name!r}; expected one of {known}, by suffix or by name")
    return _READERS[name]


def _spool(stream: BinaryIO, until: ExitStack) -> Path:
    """Copy a stream to a file, since counting, hashing and going on all need to read it again."""
    file = until.enter_context(tempfile.NamedTemporaryFile(prefix="msdscore-", suffix=".input"))  # noqa: SIM115
    shutil.copyfileobj(stream, file)
    file.flush()
    return Path(file.name)
