"""Which weights these are, by every byte of their files; what was hashed once is remembered by size and time."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path

from msdscore.errors import WeightsError
from msdscore.io.atomic import write_bytes

# A file that changed a moment ago may change again within one tick of its file system's clock.
_SETTLED_SECONDS = 3.0

SUMS = "SHA256SUMS"  # lists the files of a folder as `sha256sum` does


def file_sha256(path: Path) -> str:
    """SHA-256 of a file. Large checkpoints are read once: size, time and place of a file stand for its content after.

    The memory lies in `$MSDSCORE_HOME/hashes`, or `~/.cache/msdscore/hashes`; where it cannot be written, all is read.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    known = _memory(path)
    with suppress(OSError, ValueError):
        remembered = json.loads(known.read_bytes())
        if isinstance(remembered, dict) and remembered.get("state") == state:
            return str(remembered["sha256"])
    with path.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if time.time() - status.st_mtime > _SETTLED_SECONDS:
        with suppress(OSError):
            known.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(known, json.dumps({"state": state, "sha256": found}).encode(), folder=known.parent)
    return found


def _memory(path: Path) -> Path:
    home = os.environ.get("MSDSCORE_HOME")
    base = Path(home).expanduser() if home else Path.home() / ".cache" / "msdscore"
    return base / "hashes" / f"{sha256(str(path.resolve()).encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def content_mark(files: Iterable[Path]) -> str:
    """Eight digits for the names and all bytes of some files, in any order."""
    digest = sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(f"{path.name}:{file_sha256(path)}\n".encode())
    return digest.hexdigest()[:8]


def files_sha256(files: Sequence[Path]) -> str:
    """The SHA-256 of one file; of several, the SHA-256 of their bytes in order; empty where there are none."""
    if len(files) == 1:
        return file_sha256(files[0])
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            file_digest(file, lambda: digest)
    return digest.hexdigest() if files else ""


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


def write_sums(folder: Path) -> None:
    """List every file of a folder with its SHA-256; `sha256sum --check SHA256SUMS` reads it too."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    lines = "".join(f"{file_sha256(path)}  {path.name}\n" for path in files)
    write_bytes(folder / SUMS, lines.encode("utf-8"), folder=folder)


def verify_sums(folder: Path) -> None:
    """Refuse a folder whose files are not those of its list; a folder without a list is taken as it is.

    Raises:
        WeightsError: a listed file is missing or has other bytes.
    """
    listed = folder / SUMS
    if not listed.is_file():
        return
    for line in listed.read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        path = folder / Path(name).name
        if not path.is_file() or file_sha256(path) != expected:
            state = "is damaged" if path.is_file() else "is missing"
            raise WeightsError(f"{path}: {state} ({SUMS} beside it lists {expected[:12]}…); install or export it again")
