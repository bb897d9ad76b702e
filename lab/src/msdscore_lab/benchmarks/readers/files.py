"""Find and read the released files of a benchmark."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, shortened, unknown_name

_TYPE_NAMES: dict[type, str] = {dict: "a JSON object", list: "a JSON list", str: "a text"}


def select_names(kind: str, names: str | Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the requested parts of a benchmark; a single name is accepted too.

    >>> select_names("subset", "easy", ("easy", "hard"))
    ('easy',)
    """
    wanted, possible = (names,) if isinstance(names, str) else tuple(names), tuple(known)
    for name in wanted:
        if name not in possible:
            raise unknown_name(kind, name, possible)
    return wanted


def find(root: Path, *patterns: str, get: str) -> Path:
    """Return the first file under `root` that matches one of the patterns; `get` is its source, for the error."""
    path = find_optional(root, *patterns)
    if path is None:
        raise missing_error(root, *patterns, get=get)
    return path


def find_optional(root: Path, *patterns: str) -> Path | None:
    """Return the first file under `root` that matches one of the patterns, or None."""
    return next(iter(find_all(root, *patterns)), None)


def find_all(root: Path, *patterns: str) -> list[Path]:
    """Return all files under `root` that match the first pattern with a match."""
    for pattern in patterns:
        matches = sorted(path for path in root.glob(pattern) if path.is_file())
        if matches:
            return matches
    return []


def missing_error(root: Path, *patterns: str, get: str) -> InputError:
    """Return the error for a missing file, with its expected location and its source."""
    if root.is_file():
        return InputError(f"{root}: expected the folder of the benchmark's files, got a file")
    if not root.is_dir():
        kind = "file of rows (.jsonl)" if root.suffix else "folder"
        return InputError(f"{root}: no such {kind}; expected the benchmark's files as --root")
    expected = " or ".join(str(root / pattern) for pattern in patterns)
    return InputError(f"expected {expected}, found no such file; get it from {get}")


def folder(root: Path, *names: str) -> Path:
    """Return the first existing folder, else the first one, so that items can be read without images."""
    return next((root / name for name in names if (root / name).is_dir()), root / names[0])


def locate(root: Path, written: str, *folders: str) -> Path:
    """Return the path of an image: as written, under `root`, or in one of the folders; by default in the first."""
    path = Path(written)
    for candidate in (path, root / path, *(root / name / path.name for name in folders)):
        if candidate.is_file():
            return candidate
    return folder(root, *folders) / path.name


def read_json(path: Path, form: type | tuple[type, ...] = dict) -> Any:
    """Return the content of a JSON file, which must have the type `form`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, form):
        expected = " or ".join(_TYPE_NAMES[kind] for kind in (form if isinstance(form, tuple) else (form,)))
        raise InputError(
            f"{path}: expected {expected} as in the released file, got {_TYPE_NAMES.get(type(content), 'a value')}"
        )
    return content


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file."""
    for line_number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} line {line_number} is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(
                f"{path} line {line_number}: expected a JSON object, got {_TYPE_NAMES.get(type(row), 'a value')}"
            )
        yield row


def read_tsv(path: Path, columns: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a tab-separated file without header, checking the number of columns."""
    for line_number, line in _lines(path):
        cells = tuple(line.strip().split("\t"))
        if len(cells) != columns:
            raise InputError(f"{path} line {line_number}: expected {columns} tab-separated columns, got {len(cells)}")
        yield cells


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the non-blank lines of a file with their numbers."""
    try:
        # Not splitlines: captions may contain characters that it treats as line ends.
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 ({error.reason} at byte {error.start})") from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def rating(value: Any, *, where: str) -> float:
    """Return a human rating as a number; NaN values of released files are accepted."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise InputError(f"{where}: expected a number as rating, got {shortened(repr(value))}")
    return number


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row of a released file: its key or number, its fields, and its location for error messages."""

    key: str
    fields: Any
    where: str

    def get(self, *names: str) -> Any:
        """Return the first existing field, or raise an error with the location of the row."""
        if not isinstance(self.fields, dict):
            kind = _TYPE_NAMES.get(type(self.fields), "a value")
            raise InputError(f"{self.where}: expected an object with the field {names[0]}, got {kind}")
        for name in names:
            if name in self.fields:
                return self.fields[name]
        existing = ", ".join(map(str, self.fields))
        raise InputError(f"{self.where}: expected the field {' or '.join(names)}, got {existing}")


def records(content: Any, where: object, *, first: int = 0) -> Iterator[RawRow]:
    """Return the rows of a JSON object by key, or of a list by number."""
    if isinstance(content, dict):
        return (RawRow(str(key), row, f"{where} key {key}") for key, row in content.items())
    return (RawRow(str(index), row, f"{where} row {index}") for index, row in enumerate(content, start=first))


def numbered(key: str, seen: Counter[str]) -> str:
    """Return `key:k` for the k-th occurrence of a key."""
    seen[key] += 1
    return f"{key}:{seen[key] - 1}"


def tidy(text: str) -> str:
    """Return a caption with single spaces, as in the scripts of the rating benchmarks.

    >>> tidy(" a dog  runs ")
    'a dog runs'
    """
    return " ".join(str(text).split())


def all_tidy(captions: Iterable[str] | None) -> tuple[str, ...]:
    """Return captions with single spaces."""
    return tuple(map(tidy, captions or ()))


def chosen_first(record: RawRow) -> tuple[str, str]:
    """Return the two `captions` of a row, the one at index `label` first."""
    captions, label = record.get("captions"), record.get("label")
    if not isinstance(captions, list) or len(captions) != 2 or label not in (0, 1):
        raise InputError(f"{record.where}: expected 2 captions and a label 0 or 1, got label {label!r}")
    return caption(captions[label], record.where), caption(captions[1 - label], record.where)


def caption(value: Any, where: str) -> str:
    """Return a caption unchanged, or raise `InputError` if it is not a string."""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a caption, got {shortened(repr(value))}")
    return value


def coco_captions(root: Path) -> dict[int, list[str]]:
    """Return COCO val2014 captions by image id; empty if the annotation file is not under `root`."""
    path = find_optional(root, "captions_val2014.json", "annotations/captions_val2014.json")
    captions: dict[int, list[str]] = {}
    if path is not None:
        for row in RawRow("", read_json(path), str(path)).get("annotations"):
            captions.setdefault(int(row["image_id"]), []).append(tidy(row["caption"]))
    return captions
