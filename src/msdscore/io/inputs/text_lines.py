"""JSON lines, CSV and TSV as records, one line or one quoted record at a time."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.hashing import file_key
from msdscore.io.inputs.records import JSON, Record, RepeatedNameError, valid_text

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class JsonLines:
    """One JSON object a line; a line that cannot be read becomes a record with the reason.

    Blank lines are no rows.
    """

    path: Path
    columns: None = field(default=None, init=False)
    schema: None = field(default=None, init=False)

    def count(self) -> int:
        """How many lines are not blank."""
        return sum(1 for _ in self._lines())

    def fingerprint(self) -> str:
        """A hash of the file."""
        return file_key(self.path)

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on; the lines before it are not parsed."""
        for index, (number, line) in enumerate(self._lines()):
            if index >= start:
                yield _json_record(line, f"line {number}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    yield number, content


def _json_record(line: bytes, where: str) -> Record:
    try:
        value = JSON.decode(line.rstrip().decode("utf-8"))
    except UnicodeDecodeError:
        return Record(error=f"{where}: not valid UTF-8")
    except json.JSONDecodeError as error:
        return Record(error=f"{where}: not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})")
    except RepeatedNameError as error:
        return Record(error=f"{where}: {error}")
    except (ValueError, RecursionError) as error:
        return Record(error=f"{where}: not usable JSON ({error})")
    return object_record(value, where, escapes=rb"\ud" in line.lower())


def object_record(value: Any, where: str, *, escapes: bool) -> Record:
    r"""The record of one JSON object; `escapes` says that its source holds `\ud…`, maybe half a character."""
    if not isinstance(value, dict):
        return Record(error=f'{where}: expected an object such as {{"image": …}}, got {type(value).__name__}')
    if escapes and (clean := valid_text(value)) != value:
        return Record(clean, error=f"{where}: holds half a surrogate pair, which is no valid Unicode")
    return Record(value)


@dataclass(frozen=True, slots=True)
class Delimited:
    """CSV or TSV with a header line; quoted fields may hold delimiters and line breaks."""

    path: Path
    delimiter: str
    columns: tuple[str, ...] = field(init=False)
    schema: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        _, header = next(self._parse(), (0, []))
        if isinstance(header, str):
            raise InputError(f"{self.path}: line 1: {header}")
        if valid_text(header) != header:
            raise InputError(f"{self.path}: line 1: not valid UTF-8; save the file as UTF-8")
        if len(set(header)) < len(header):
            raise InputError(f"{self.path}: two columns have the same name: {', '.join(header)}")
        object.__setattr__(self, "columns", tuple(header))

    def count(self) -> int:
        """How many records follow the header."""
        return sum(1 for _ in self._body())

    def fingerprint(self) -> str:
        """A hash of the file."""
        return file_key(self.path)

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""
        for index, (number, fields) in enumerate(self._body()):
            if index >= start:
                yield self._record(number, fields)

    def _record(self, number: int, fields: list[str] | str) -> Record:
        if isinstance(fields, str):
            return Record(error=f"line {number}: {fields}")
        if len(fields) != len(self.columns):
            return Record(error=f"line {number}: expected {len(self.columns)} fields, got {len(fields)}")
        values = dict(zip(self.columns, fields, strict=True))
        if (clean := valid_text(values)) != values:
            return Record(clean, error=f"line {number}: not valid UTF-8")
        return Record(values)

    def _body(self) -> Iterator[tuple[int, list[str] | str]]:
        rows = self._parse()
        next(rows, None)
        return rows

    def _parse(self) -> Iterator[tuple[int, list[str] | str]]:
        """The last line number and the fields, or the reason why there are none; blank lines are left out."""
        # Bytes that are no UTF-8 come through as surrogates, so that one bad row does not end the reading.
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    self._refuse_long_field(reader.line_num, error)
                    yield reader.line_num, f"not valid CSV ({error})"
                else:
                    if fields:
                        yield reader.line_num, fields

    def _refuse_long_field(self, number: int, error: csv.Error) -> None:
        # The rest of such a field could be taken for rows: an unclosed quote, most of the time.
        if "field limit" in str(error):
            raise InputError(
                f"{self.path}: line {number}: a field of more than {csv.field_size_limit()} characters, "
                "perhaps a quote that is never closed; use JSON lines or Parquet for such texts"
            ) from error
