"""JSON documents as records: a list of rows, or an object that maps ids to captions, read item by item.

Written by hand: ijson takes 0.4 of the time, but makes `?` of half a surrogate pair without a word, tells of no name
that an object has twice, and ends at NaN and at integers beyond 64 bits, which JSON lines and our own outputs may hold.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from msdscore.errors import InputError, shortened
from msdscore.io.hashing import file_key, text_key
from msdscore.io.inputs.records import JSON, Record, RepeatedNameError, valid_text
from msdscore.io.inputs.text_lines import object_record

_SPACE = re.compile(r"[ \t\r\n]*")
_PIECE = 1 << 20
_LONGEST = 64 << 20  # characters of one row; more is a document of another kind
_EXPECTED = 'expected a list of rows such as [{"image_id": 42, "caption": "…"}] or an object such as {"42": "…"}'


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """COCO results, any other list of objects, or the id-to-caption object that CLIPScore reads."""

    path: Path
    columns: None = field(default=None, init=False)
    schema: None = field(default=None, init=False)

    def count(self) -> int:
        """How many items the document holds; this reads it once from end to end."""
        return sum(1 for _ in self.read())

    def fingerprint(self) -> str:
        """A hash of the file."""
        return file_key(self.path)

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                for index, record in enumerate(_records(_Scanner(file))):
                    if index >= start:
                        yield record
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: not valid UTF-8 ({error.reason})") from error
        except (_MalformedError, RecursionError) as error:
            raise InputError(f"{self.path}: {error}") from error


class _MalformedError(Exception):
    """Not JSON, or JSON of another shape."""


def _records(scanner: "_Scanner") -> Iterator[Record]:
    match scanner.peek():
        case "[":
            yield from _list_records(scanner)
        case "{":
            yield from _map_records(scanner)
        case _:
            raise _MalformedError(_EXPECTED)
    if scanner.peek():
        raise _MalformedError("more text after the end of the document; JSON lines are named .jsonl")


def _list_records(scanner: "_Scanner") -> Iterator[Record]:
    for number, _ in enumerate(scanner.items("[", "]"), start=1):
        value, escapes = scanner.value()
        yield object_record(value, f"item {number}", escapes=escapes)


def _map_records(scanner: "_Scanner") -> Iterator[Record]:
    names: set[int] = set()
    for number, _ in enumerate(scanner.items("{", "}"), start=1):
        key, key_escapes = scanner.value()
        if not isinstance(key, str):
            raise _MalformedError(f"not valid JSON (a name must be text, got {key!r})")
        scanner.take(":")
        value, escapes = scanner.value()
        if isinstance(value, dict | list):
            raise _MalformedError(f"{_EXPECTED}, got {type(value).__name__} under {key!r}")
        values, name = {"id": key, "caption": value}, text_key(key)
        warning = f"the name {shortened(valid_text(key))!r} appears more than once" if name in names else None
        names.add(name)
        if (key_escapes or escapes) and (clean := valid_text(values)) != values:
            yield Record(clean, error=f"item {number}: holds half a surrogate pair, which is no valid Unicode")
        else:
            yield Record(values, warning=warning)


class _Scanner:
    """A window that moves over the document and holds little more than the value being read."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._passed = 0

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            self._at = self._end_of_space(self._at)
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def take(self, *expected: str) -> str:
        """Step over one of these characters."""
        found = self.peek()
        if found not in expected or not found:
            raise _MalformedError(
                f"not valid JSON (expected {' or '.join(expected)} at character {self._passed + self._at}, "
                f"got {found or 'the end'})"
            )
        self._at += 1
        return found

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Stops before each item of a list or an object; the caller takes the item."""
        self.take(opening)
        if self.peek() == closing:
            self.take(closing)
            return
        while True:
            yield
            if self.take(",", closing) == closing:
                return

    def value(self) -> tuple[Any, bool]:
        """The next whole value, and whether its text holds an escaped surrogate."""
        self.peek()
        while True:
            try:
                value, end = JSON.raw_decode(self._text, self._at)
            except RepeatedNameError as error:
                raise _MalformedError(f"{error}, in the item at character {self._passed + self._at}") from error
            except json.JSONDecodeError as error:
                self._more_or_malformed(error)
                continue
            # A number that ends with the window may go on behind it.
            if end == len(self._text) and self._fill():
                continue
            escapes = r"\ud" in self._text[self._at : end].lower()
            self._at = end
            return value, escapes

    def _more_or_malformed(self, error: json.JSONDecodeError) -> None:
        # A string that is cut by the window is reported at its start, anything else close to the cut.
        cut = "string" in error.msg or error.pos > len(self._text) - 16
        place = self._passed + error.pos
        if not cut or len(self._text) - self._at > _LONGEST or not self._fill():
            raise _MalformedError(f"not valid JSON ({error.msg.removesuffix(' at')} at character {place})") from error

    def _end_of_space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _fill(self) -> bool:
        # Twice the window each time, so that one long value costs no more than twice its length.
        piece = self._file.read(max(_PIECE, len(self._text) - self._at))
        self._passed += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)
