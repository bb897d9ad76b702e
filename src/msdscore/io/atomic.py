"""Files that are there whole or not at all, and folders that one process owns."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from filelock import BaseFileLock, FileLock, Timeout

from msdscore.errors import RunError

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path, *, folder: Path | None = None) -> Iterator[BinaryIO]:
    """Write to a temporary file in `folder` (default: beside `path`) that becomes `path` at the end.

    The bytes are on the disk before the name changes: any crash leaves the old file or the new one.
    """
    # Not named after the file, whose name may be as long as the system allows.
    temporary = (folder or path.parent) / f".{uuid4().hex}{TEMPORARY}"
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
    with FileLock(path):
        yield


def take_lock(path: Path) -> BaseFileLock:
    """Own a folder through its lock file; `release` gives the folder back.

    The system drops the lock with the process, however that ends.
    """
    # Not bound to a thread: whoever closes a run gives its folder back.
    lock = FileLock(path, timeout=0, thread_local=False)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise RunError(
                f"{path.parent}: {_owner(path)} is at work on it; wait for it or choose another -o"
            ) from error
        except FileNotFoundError:  # the last owner has just removed the folder
            continue
        except OSError as error:
            raise RunError(f"{path}: cannot be locked ({error.strerror}); write to a local disk") from error
        with suppress(OSError):  # Windows lets nobody touch a locked file; the message then names no process
            path.write_text(str(os.getpid()), encoding="ascii")
        return lock


def remove_owned(folder: Path, lock: BaseFileLock) -> None:
    """Remove a folder together with the lock through which we own it."""
    shutil.rmtree(folder, ignore_errors=os.name == "nt")  # Windows keeps the lock file for as long as it is open
    lock.release()
    if os.name == "nt":
        shutil.rmtree(folder, ignore_errors=True)


def _owner(path: Path) -> str:
    try:
        return f"process {path.read_text(encoding='ascii') or 'unknown'}"
    except OSError:
        return "another process"


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there, and renames are written through
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
