"""Atomic file writes, and folders locked by one process."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from filelock import BaseFileLock, FileLock, Timeout

from msdscore.errors import RunError

TEMPORARY = ".tmp"
LOCK = "lock"
MARK = "made-by-msdscore"  # marker file; a folder without it is never emptied


@contextmanager
def replacing(path: Path, *, folder: Path | None = None) -> Iterator[BinaryIO]:
    """Write to a temporary file in `folder` (default: next to `path`) and rename it to `path` at the end.

    The bytes are flushed to disk before the rename: a crash leaves either the old file or the new one.
    """
    # Not named after the file, whose name may be as long as the system allows.
    temporary = (folder or path.parent) / f".{uuid4().hex}{TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        if os.name != "nt":  # folders cannot be opened there, and renames are written through
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, folder: Path) -> None:
    """Write a small file atomically, with the temporary file in `folder`."""
    with replacing(path, folder=folder) as file:
        file.write(content)


def take_folder(folder: Path) -> BaseFileLock:
    """Lock a folder, created if missing, and remove temporary files of killed writers from it.

    Raises:
        RunError: the folder exists without the marker file, or another process is using it.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunError(f"{folder}: expected a folder of finished parts, got a link or a file; choose another -o")
    present: set[str] = set()
    with suppress(FileNotFoundError):
        present = {path.name for path in folder.iterdir()}
    if MARK not in present and not present <= {LOCK}:
        raise RunError(f"{folder}: was not created by msdscore (it has no {MARK}); move it away or choose another -o")
    lock = take_lock(folder / LOCK)
    (folder / MARK).touch()
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)
    return lock


def take_lock(path: Path) -> BaseFileLock:
    """Lock a folder through its lock file, until `release` is called.

    The system releases the lock when the process ends, however it ends.
    """
    # Not bound to a thread: any thread may close a run and release its folder.
    lock = FileLock(path, timeout=0, thread_local=False)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            owner = "another process"
            with suppress(OSError):
                owner = f"process {path.read_text(encoding='ascii') or 'unknown'}"
            raise RunError(f"{path.parent}: {owner} is using it; wait for it or choose another -o") from error
        except FileNotFoundError:  # the last owner has just removed the folder
            continue
        except OSError as error:
            raise RunError(f"{path}: cannot be locked ({error.strerror}); write to a local disk") from error
        with suppress(OSError):  # Windows does not allow writing to a locked file; the message then names no process
            path.write_text(str(os.getpid()), encoding="ascii")
        return lock


def remove_owned(folder: Path, lock: BaseFileLock, names: re.Pattern[str]) -> None:
    """Remove the matching files of a locked folder, then the folder unless other files remain in it."""
    for path in folder.iterdir():
        if names.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    # The marker is removed before the lock, so that another process never sees an unlocked folder without a marker.
    (folder / MARK).unlink(missing_ok=True)
    if os.name == "nt":  # Windows cannot delete the lock file while it is open
        lock.release()
    (folder / LOCK).unlink(missing_ok=True)
    lock.release()
    with suppress(OSError):
        folder.rmdir()
