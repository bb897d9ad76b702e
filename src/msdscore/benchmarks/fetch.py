"""A benchmark's public files fetched when asked for, and kept only if their hash is right."""

import hashlib
import urllib.request
from collections.abc import Callable
from pathlib import Path

from msdscore.benchmarks.base import Benchmark, Download
from msdscore.errors import InputError
from msdscore.io.atomic import replacing

_BLOCK = 1 << 20
_TIMEOUT = 60.0


def instructions(row: Benchmark, root: Path) -> str:
    """What to get by hand, and where to put it."""
    lines = [
        f"{row.title}: {row.size}; licence: {row.licence}",
        f"get it from {row.source}",
        *(f"put under {root}: {place}" for place in row.files),
    ]
    return "\n".join(lines)


def fetch(row: Benchmark, root: Path, *, tell: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Download the files that have a known hash and are not there yet; a wrong hash leaves nothing behind."""
    return [_one(found, root, tell) for found in row.downloads]


def _one(wanted: Download, root: Path, tell: Callable[[str], None]) -> Path:
    path = root / wanted.place
    if path.is_file() and _sha256(path) == wanted.sha256:
        tell(f"{path} is there")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    tell(f"{wanted.url} -> {path}")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(wanted.url, timeout=_TIMEOUT) as reply, replacing(path) as file:
            while block := reply.read(_BLOCK):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != wanted.sha256:
                raise InputError(f"{wanted.url}: expected SHA-256 {wanted.sha256}, got {digest.hexdigest()}; not kept")
    except OSError as error:
        raise InputError(f"{wanted.url} cannot be fetched ({getattr(error, 'reason', error)})") from error
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
