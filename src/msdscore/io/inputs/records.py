"""What every input format gives: records of named values, in order, readable from any place."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any, Protocol

import pyarrow as pa

from msdscore.errors import shortened


@dataclass(frozen=True, slots=True)
class Record:
    """The named values of one input row; `error` says why they could not be read, `warning` what is odd about them."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    warning: str | None = None


class Records(Protocol):
    """One opened input. Nothing is held in memory but the place where it is read."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The column names, or None where every record may have its own."""

    @property
    def schema(self) -> pa.Schema | None:
        """The column types, or None where the format has none."""

    def count(self) -> int:
        """How many records `read` gives from the start."""

    def fingerprint(self) -> str:
        """A hash of the content."""

    def read(self, start: int = 0) -> Iterator[Record]:
        """The records from number `start` on."""


def seen_columns(records: Records, *, sample: int = 20) -> tuple[str, ...]:
    """The column names, from the first readable records where the format does not tell."""
    if records.columns is not None:
        return records.columns
    names: dict[str, None] = {}
    for _, record in zip(range(sample), records.read(), strict=False):
        names.update(dict.fromkeys(record.values))
    return tuple(names)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RepeatedNameError(f"the name {shortened(twice)!r} appears more than once in one object")
    return values


# As `json.loads` reads, except that an object with two values under one name is refused: one would silently win.
JSON = JSONDecoder(object_pairs_hook=_once)


class RepeatedNameError(ValueError):
    """A JSON object has two values under one name."""


def valid_text(value: Any) -> Any:
    """The value with lone surrogates replaced in all its texts; they are no Unicode and cannot be written.

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
