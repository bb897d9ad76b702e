"""JSON documents as records: COCO results and annotations, other lists of objects, and id-to-caption objects."""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from msdscore.errors import InputError, shortened
from msdscore.io.files import text_key
from msdscore.rows.formats import (
    JSON,
    LONGEST,
    SURROGATE,
    TOO_LONG,
    Record,
    Records,
    RepeatedNameError,
    may_escape_surrogate,
    object_record,
    shallow,
    valid_text,
)

_SPACE = re.compile(r"[ \t\r\n]*")
_READ = 1 << 20
_EXPECTED = (
    'expected a list of rows such as [{"image_id": 42, "caption": "…"}], an object such as {"42": "…"}, '
    'or COCO annotations {"images": […], "annotations": […]}'
)
_COCO = ("info", "licenses", "images", "annotations", "categories", "type")  # sections of an annotation file


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
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        except RecursionError as error:
            raise InputError(f"{self.path}: lists or objects within each other, too deep to be rows") from error

    def _records(self, file: TextIO) -> Iterator[Record]:
        scanner = _Scanner(file)
        kind = scanner.peek()
        if kind not in ("[", "{"):
            raise InputError(_EXPECTED)
        if kind == "[":
            for number, _ in enumerate(scanner.items("[", "]"), start=1):
                value, text = scanner.value()
                yield object_record(value, f"item {number}", text)
        elif next((key in _COCO and scanner.peek() in ("[", "{") for key, _ in scanner.names()), False):
            names: dict[str, Any] = {}
            for image in _section(file, "images"):
                key, name = str(image.get("id")), image.get("file_name")
                if names.setdefault(key, name) != name:
                    both = " and ".join(shortened(repr(value)) for value in (names[key], name))
                    raise InputError(f"two images have the id {shortened(key)} ({both}); expected each id once")
            for annotation in _section(file, "annotations"):
                name = names.get(str(annotation.get("image_id")))
                yield Record(annotation if name is None else {"file_name": name, **annotation})
            return
        else:
            file.seek(0)
            scanner, keys = _Scanner(file), set[int]()
            for number, (key, key_text) in enumerate(scanner.names(), start=1):
                value, text = scanner.value()
                if isinstance(value, dict):
                    raise InputError(f"{_EXPECTED}, got an object under {shortened(key)!r}")
                values, name_key = {"id": key, "caption": value}, text_key(key)
                twice = f"the name {shortened(valid_text(key))!r} appears more than once" if name_key in keys else None
                keys.add(name_key)
                if may_escape_surrogate(key_text + text) and (clean := valid_text(values)) != values:
                    yield Record(clean, error=f"item {number}: {SURROGATE}")
                else:
                    yield Record(values, warning=twice)
        if scanner.peek():
            raise InputError("more text after the end of the document; JSON lines are named .jsonl")


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
                raise InputError(f"expected objects under {name!r}, got {type(value).__name__}")
            yield valid_text(shallow(value)) if may_escape_surrogate(text) else shallow(value)
    if not has_section or scanner.peek():
        raise InputError(f"expected COCO annotations with a list {name!r}, and nothing after the document")


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
            raise InputError(
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
                raise InputError(f"not valid JSON (a name must be text, got {key!r})")
            self.take(":")
            yield key, text

    def value(self) -> tuple[Any, str]:
        """Consume the next value; return it with its text."""
        self.peek()
        while True:
            try:
                value, end = JSON.raw_decode(self._text, self._at)
            except RepeatedNameError as error:
                raise InputError(f"{error}, in the item at character {self._passed + self._at}") from error
            except json.JSONDecodeError as error:
                # A string cut off by the window is reported at its start, anything else close to the end of the window.
                cut = "string" in error.msg or error.pos > len(self._text) - 16
                reason = f"{error.msg.removesuffix(' at')} at character {self._passed + error.pos}"
                if cut and len(self._text) - self._at > LONGEST:
                    raise InputError(f"{TOO_LONG}, at character {self._passed + self._at}") from error
                if not cut or not self._fill():
                    raise InputError(f"not valid JSON ({reason})") from error
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
