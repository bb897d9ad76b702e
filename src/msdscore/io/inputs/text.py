"""JSON lines, JSON documents, CSV and TSV as records."""

import csv
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from msdscore.errors import InputError, shortened
from msdscore.io.files import file_key_and_lines, text_key
from msdscore.io.inputs.formats import (
    JSON,
    Record,
    Records,
    RepeatedNameError,
    not_finite,
    require_distinct,
    shallow,
    valid_text,
)

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")
_READ = 1 << 20
_LONGEST = 16 << 20  # bytes or characters of one row, which takes ten times that to read; longer rows are an error
_TOO_LONG = f"more than {_LONGEST:,} bytes in one row; expected an image and its captions"
_EXPECTED = (
    'expected a list of rows such as [{"image_id": 42, "caption": "…"}], an object such as {"42": "…"}, '
    'or COCO annotations {"images": […], "annotations": […]}'
)
_SURROGATE = "contains half a surrogate pair, which is not valid Unicode"
_COCO = ("info", "licenses", "images", "annotations", "categories", "type")  # sections of an annotation file


class JsonLines(Records):
    """One JSON object per line; an unreadable line becomes a record with an error, blank lines are skipped."""

    def fingerprint(self) -> str:
        """Return a hash of the content, and count the lines."""
        key, self.total = file_key_and_lines(self.path)
        return key

    def read(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        with self.path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    yield _json_record(content, f"line {number}")
                while len(line) >= _LONGEST and not line.endswith(b"\n"):
                    line = file.readline(_LONGEST)  # the rest of a line that is too long


def _json_record(line: bytes, where: str) -> Record:
    if len(line) > _LONGEST:
        return Record(error=f"{where}: {_TOO_LONG}")
    try:
        text = line.rstrip().decode("utf-8")
        value = JSON.decode(text)
    except UnicodeDecodeError:
        return Record(error=f"{where}: not valid UTF-8")
    except json.JSONDecodeError as error:
        return Record(error=f"{where}: not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})")
    except RepeatedNameError as error:
        return Record(error=f"{where}: {error}")
    except (ValueError, RecursionError) as error:
        return Record(error=f"{where}: not usable JSON ({error})")
    return _object_record(value, where, text)


def _object_record(value: Any, where: str, text: str) -> Record:
    """Build the record of one JSON object, written as `text`."""
    if not isinstance(value, dict):
        return Record(error=f'{where}: expected an object such as {{"image": …}}, got {type(value).__name__}')
    try:
        value = shallow(value)
    except RecursionError:
        return Record(error=f"{where}: not usable JSON (lists or objects within each other, too deep)")
    if _may_escape_surrogate(text) and (clean := valid_text(value)) != value:
        return Record(clean, error=f"{where}: {_SURROGATE}")
    return Record(value, warning=not_finite(value))


def _may_escape_surrogate(text: str) -> bool:
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
        self.total = None if lines is None else max(lines - 1, 0)
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
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), ""), start=1):
            if len(line) > _LONGEST:
                raise InputError(f"{self.path}: line {number}: {_TOO_LONG}")
            yield line


class TabDelimited(Delimited):
    """TSV with a header line."""

    delimiter = "\t"


class JsonDocument(Records):
    """COCO results, any other list of objects, CLIPScore's id-to-caption object, COCO annotations; item by item.

    In COCO annotations (`captions_val2017.json`) every annotation is a record, with the `file_name` of its image.

    Not parsed with ijson, which takes 0.4 of the time but silently replaces half a surrogate pair by `?`, does not
    report repeated names, and fails on NaN and integers beyond 64 bits, which JSON lines and our outputs may contain.
    """

    def read(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                yield from self._records(file)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: not valid UTF-8 ({error.reason})") from error
        except _MalformedError as error:
            raise InputError(f"{self.path}: {error}") from error
        except RecursionError as error:
            raise InputError(f"{self.path}: lists or objects within each other, too deep to be rows") from error

    def _records(self, file: TextIO) -> Iterator[Record]:
        scanner = _Scanner(file)
        kind = scanner.peek()
        if kind not in ("[", "{"):
            raise _MalformedError(_EXPECTED)
        if kind == "[":
            for number, _ in enumerate(scanner.items("[", "]"), start=1):
                value, text = scanner.value()
                yield _object_record(value, f"item {number}", text)
        elif next((key in _COCO and scanner.peek() in ("[", "{") for key, _ in scanner.names()), False):
            names: dict[str, Any] = {}
            for image in _section(file, "images"):
                key, name = str(image.get("id")), image.get("file_name")
                if names.setdefault(key, name) != name:
                    both = " and ".join(shortened(repr(value)) for value in (names[key], name))
                    raise _MalformedError(f"two images have the id {shortened(key)} ({both}); expected each id once")
            for annotation in _section(file, "annotations"):
                name = names.get(str(annotation.get("image_id")))
                values = annotation if name is None else {"file_name": name, **annotation}
                yield Record(values, warning=not_finite(annotation))
            return
        else:
            file.seek(0)
            scanner, keys = _Scanner(file), set[int]()
            for number, (key, key_text) in enumerate(scanner.names(), start=1):
                value, text = scanner.value()
                if isinstance(value, dict):
                    raise _MalformedError(f"{_EXPECTED}, got an object under {shortened(key)!r}")
                values, name_key = {"id": key, "caption": value}, text_key(key)
                twice = f"the name {shortened(valid_text(key))!r} appears more than once" if name_key in keys else None
                keys.add(name_key)
                if _may_escape_surrogate(key_text + text) and (clean := valid_text(values)) != values:
                    yield Record(clean, error=f"item {number}: {_SURROGATE}")
                else:
                    yield Record(values, warning=twice)
        if scanner.peek():
            raise _MalformedError("more text after the end of the document; JSON lines are named .jsonl")


class _MalformedError(Exception):
    """Not JSON, or JSON of another shape."""


def _section(file: TextIO, name: str) -> Iterator[dict[str, Any]]:
    """Iterate over the objects of one section of a COCO annotation file."""
    file.seek(0)
    scanner, has_section = _Scanner(file), False
    for key, _ in scanner.names():
        if key != name:
            scanner.value()
            continue
        has_section = True
        for _ in scanner.items("[", "]"):
            value, text = scanner.value()
            if not isinstance(value, dict):
                raise _MalformedError(f"expected objects under {name!r}, got {type(value).__name__}")
            yield valid_text(shallow(value)) if _may_escape_surrogate(text) else shallow(value)
    if not has_section or scanner.peek():
        raise _MalformedError(f"expected COCO annotations with a list {name!r}, and nothing after the document")


class _Scanner:
    """A sliding window over the document, little larger than the value being read."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._at, self._passed = file, "", 0, 0

    def peek(self) -> str:
        """Return the next non-space character; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def take(self, *expected: str) -> str:
        """Consume one of these characters."""
        sign = self.peek()
        if sign not in expected or not sign:
            raise _MalformedError(
                f"not valid JSON (expected {' or '.join(expected)} at character {self._passed + self._at}, "
                f"got {sign or 'the end'})"
            )
        self._at += 1
        return sign

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Iterate over a list or an object, stopping before each item; the caller consumes the item."""
        self.take(opening)
        if self.peek() == closing:
            self.take(closing)
            return
        while True:
            yield
            if self.take(",", closing) == closing:
                return

    def names(self) -> Iterator[tuple[str, str]]:
        """Iterate over the names of an object, each with its text; the caller consumes the value."""
        for _ in self.items("{", "}"):
            key, text = self.value()
            if not isinstance(key, str):
                raise _MalformedError(f"not valid JSON (a name must be text, got {key!r})")
            self.take(":")
            yield key, text

    def value(self) -> tuple[Any, str]:
        """Consume the next value; return it with its text."""
        self.peek()
        while True:
            try:
                value, end = JSON.raw_decode(self._text, self._at)
            except RepeatedNameError as error:
                raise _MalformedError(f"{error}, in the item at character {self._passed + self._at}") from error
            except json.JSONDecodeError as error:
                # A string cut off by the window is reported at its start, anything else close to the end of the window.
                cut = "string" in error.msg or error.pos > len(self._text) - 16
                reason = f"{error.msg.removesuffix(' at')} at character {self._passed + error.pos}"
                if cut and len(self._text) - self._at > _LONGEST:
                    raise _MalformedError(f"{_TOO_LONG}, at character {self._passed + self._at}") from error
                if not cut or not self._fill():
                    raise _MalformedError(f"not valid JSON ({reason})") from error
                continue
            # A number at the end of the window may continue after it.
            if end == len(self._text) and self._fill():
                continue
            text, self._at = self._text[self._at : end], end
            return value, text

    def _fill(self) -> bool:
        # The window doubles each time, so that the total cost of a long value is linear.
        more = self._file.read(max(_READ, len(self._text) - self._at))
        self._passed += self._at
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more)
