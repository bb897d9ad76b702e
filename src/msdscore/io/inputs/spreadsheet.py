"""The first sheet of an Excel file as records: a header row, then one row each; read as a stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from msdscore.errors import InputError, require
from msdscore.io.hashing import file_key
from msdscore.io.inputs.records import Record

Cells = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Spreadsheet:
    """An .xlsx file; cells that hold a formula give its stored value."""

    path: Path
    columns: tuple[str, ...] = field(init=False)
    schema: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        with self._rows() as rows:
            header = next(rows, ())
        names = [str(name) for name in header if name is not None]
        if len(names) < len(header) or not names:
            raise InputError(f"{self.path}: expected a name for every column in the first row, got {names}")
        if len(set(names)) < len(names):
            raise InputError(f"{self.path}: two columns have the same name: {', '.join(names)}")
        object.__setattr__(self, "columns", tuple(names))

    def count(self) -> int:
        """How many rows below the header hold anything."""
        return sum(1 for _ in self.read())

    def fingerprint(self) -> str:
        """A hash of the file."""
        return file_key(self.path)

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""
        with self._rows() as rows:
            next(rows, ())
            kept = (cells for cells in rows if any(cell is not None for cell in cells))
            for number, cells in enumerate(kept):
                if number >= start:
                    yield Record(dict(zip(self.columns, cells, strict=False)))

    @contextmanager
    def _rows(self) -> Iterator[Iterator[Cells]]:
        openpyxl: Any = require("openpyxl", extra="xlsx")
        try:
            book = openpyxl.load_workbook(self.path, read_only=True, data_only=True)
        except (BadZipFile, KeyError, ValueError, OSError, openpyxl.utils.exceptions.InvalidFileException) as error:
            raise InputError(f"{self.path}: cannot be read as an Excel file ({error})") from error
        try:
            yield book.worksheets[0].iter_rows(values_only=True)
        finally:
            book.close()
