"""Files that are there whole or not at all, and folders that one process owns."""

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
MARK = "made-by-msdscore"  # a file that says whose folder it is; without it a folder is never emptied


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
        if os.name != "nt":  # folders cannot be opened there, and renames are written through
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
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


def take_folder(folder: Path) -> BaseFileLock:
    """Own a folder of ours, made where there is none, through its lock; one without our mark is refused."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunError(f"{folder}: expected a folder of finished parts, got a link or a file; choose another -o")
    present: set[str] = set()
    with suppress(FileNotFoundError):
        present = {path.name for path in folder.iterdir()}
    if MARK not in present and not present <= {LOCK}:
        raise RunError(f"{folder}: was not made by msdscore (it holds no {MARK}); move it away or choose another -o")
    lock = take_lock(folder / LOCK)
    (folder / MARK).touch()
    return lock


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
            owner = "another process"
            with suppress(OSError):
                owner = f"process {path.read_text(encoding='ascii') or 'unknown'}"
            raise RunError(f"{path.parent}: {owner} is at work on it; wait for it or choose another -o") from error
        except FileNotFoundError:  # the last owner has just removed the folder
            continue
        except OSError as error:
            raise RunError(f"{path}: cannot be locked ({error.strerror}); write to a local disk") from error
        with suppress(OSError):  # Windows lets nobody touch a locked file; the message then names no process
            path.write_text(str(os.getpid()), encoding="ascii")
        return lock


def remove_owned(folder: Path, lock: BaseFileLock, names: re.Pattern[str]) -> None:
    """Remove the files of a folder that we own whose names fit, then the folder, unless others' files are in it."""
    for path in folder.iterdir():
        if names.fullmatch(path.name) or (path.name.startswith(".") and path.suffix == TEMPORARY):
            path.unlink()
    # The mark goes before the lock: who comes between finds the lock taken, and no folder of unknown owner.
    (folder / MARK).unlink(missing_ok=True)
    if os.name == "nt":  # Windows keeps the lock file for as long as it is open
        lock.release()
    (folder / LOCK).unlink(missing_ok=True)
    lock.release()
    with suppress(OSError):
        folder.rmdir()
