"""What every input format gives: records of named values, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.errors import InputError, shortened
from msdscore.io.hashing import file_key


@dataclass(frozen=True, slots=True)
class Record:
    """The named values of one input row; `error` says why they could not be read, `warning` what is odd about them."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """One opened input, of which nothing is held in memory but the place where it is read; formats inherit from it.

    `columns` are None where every record may have its own, `schema` where the format has no types.
    """

    path: Path
    columns: tuple[str, ...] | None = field(default=None, init=False)
    schema: pa.Schema | None = field(default=None, init=False)

    def read(self) -> Iterator[Record]:
        """The records in order."""
        raise NotImplementedError

    def count(self) -> int:
        """How many records `read` gives."""
        return sum(1 for _ in self.read())

    def fingerprint(self) -> str:
        """A hash of the content."""
        return file_key(self.path)


def require_distinct(names: Sequence[str], path: Path) -> None:
    """Refuse columns of which two have the same name."""
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two columns have the same name: {', '.join(names)}")


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
