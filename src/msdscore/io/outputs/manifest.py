"""Manifests: what a run was made from, written down and compared."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msdscore.errors import RunError

RUN_NOTES = ".run.json"  # suffix of the run-metadata file, which lies beside a run's output
REMEDY = "choose another -o or pass --overwrite"


def dump(value: Mapping[str, Any]) -> bytes:
    """The manifest as it is stored."""
    return json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n"


def load(path: Path) -> dict[str, Any]:
    """A stored manifest or sidecar."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: is damaged ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: is damaged (not an object); {REMEDY}")
    return content


def compare(owner: Path, old: Any, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on where something differs, and name the first thing that does."""
    new = json.loads(dump(manifest))
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
