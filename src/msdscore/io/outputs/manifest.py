"""Manifests: what a run was made from, written down and compared."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msdscore.errors import RunError

RUN_NOTES = ".run.json"  # suffix of the run-metadata file, which lies beside a run's output
MADE_BY = {"made_by": "msdscore"}  # the mark of such a file; one without it is never replaced or deleted
_RENAMED = {"pictures": "images"}  # names of manifests that were written by earlier versions
REMEDY = "choose another -o or pass --overwrite"


def dump(value: Mapping[str, Any]) -> bytes:
    """The manifest as it is stored."""
    return json_bytes(value, indent=2) + b"\n"


def json_bytes(value: Any, **options: Any) -> bytes:
    r"""JSON in UTF-8; text that UTF-8 cannot hold, as in file names that are not UTF-8, is escaped.

    >>> json_bytes("é"), json_bytes("\udce9")
    (b'"\xc3\xa9"', b'"\\udce9"')
    """
    try:
        return json.dumps(value, ensure_ascii=False, **options).encode()
    except UnicodeEncodeError:
        return json.dumps(value, **options).encode()


def load(path: Path) -> dict[str, Any]:
    """A stored manifest or sidecar."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is damaged ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: is damaged (not an object); {REMEDY}")
    return content


def read_notes(path: Path) -> dict[str, Any] | None:
    """The run metadata in a file; None where there is none.

    Raises:
        RunError: the file is not one that a run has written, and must not be replaced.
    """
    if not path.exists():
        return None
    try:
        notes = load(path)
    except (RunError, OSError):
        notes = {}
    # Runs of earlier versions wrote no mark; what they wrote is known by its form.
    if notes.items() >= MADE_BY.items() or (isinstance(notes.get("manifest"), dict) and "bytes" in notes):
        return notes
    raise RunError(f"{path}: was not written by msdscore; move it away or choose another -o")


def compare(owner: Path, old: Any, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on where something differs, and name the first thing that does."""
    new = json.loads(dump(manifest))
    if isinstance(old, dict):
        old = {_RENAMED.get(name, name): value for name, value in old.items()}
    if old != new:
        key, before, now = next(_differences(old, new, ""))
        raise RunError(f"{owner}: belongs to a run with another {key} ({before}, now {now}); {REMEDY}")


def _differences(old: Any, new: Any, key: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield key or "manifest", _short(old), _short(new)


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
