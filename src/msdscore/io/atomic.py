"""Files that are there whole or not at all, and folders that one process owns."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from msdscore.errors import RunError

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path, *, folder: Path | None = None) -> Iterator[BinaryIO]:
    """Write to a temporary file in `folder` (default: beside `path`) that becomes `path` at the end.

    The bytes are on the disk before the name changes: any crash leaves the old file or the new one.
    """
    temporary = (folder or path.parent) / f".{path.name}.{uuid4().hex}{TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, folder: Path) -> None:
    """Put a small file in place in one step, by way of `folder`."""
    with replacing(path, folder=folder) as file:
        file.write(content)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed writers left behind; only the owner of the folder may call this."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process holds this lock file, then hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take_lock(path: Path) -> int:
    """Own a folder through its lock file; the answer is a descriptor, and closing it gives the folder back.

    The kernel drops the lock with the process, however that ends.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the last owner has just removed the folder
            continue
        try:
            _lock_now(descriptor, path)
            if _is_same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, b"%d" % os.getpid())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_now(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
        raise RunError(f"{path.parent}: process {owner} is at work on it; wait for it or choose another -o") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be locked ({error.strerror}); write to a local disk") from error


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the locked file still has its name: its folder may have been removed while we waited."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
