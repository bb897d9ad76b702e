"""Vectors on disk: one file per item under the encoder's signature, and a limit on what all of them may take.

A file is put in place in one step with a checksum in front: a crash, two processes at once or a full or damaged disk
can lose an item, which is then made again, but never give wrong vectors. What was used longest ago goes first.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load, save

from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.errors import RunError
from msdscore.version import __version__

_FORMAT = 2
_CHECK = 16  # bytes of the checksum before the content of a file
_LAYOUT = "layout"  # name of the tensor that holds a layout as JSON bytes
_MARK, _LOCK, _TEMPORARY = "signature.txt", ".removing.lock", ".tmp"
_ROOM = 0.9  # share of the limit that is kept when room is made, so that it is not made for every file
_LOOK_AGAIN = 20  # the folder is looked through again after a twentieth of the limit was written: others write too
_ABANDONED_SECONDS = 3600.0  # age of a temporary file whose writer must be dead
_ENCODER, _DRAWER, _FILE = (re.compile(form) for form in (r"[0-9a-f]{20}", r"[a-z][0-9a-f]{2}", r"[0-9a-f]{38}"))


class VectorFiles:
    """The vectors of one encoder in a folder that other encoders and processes may share.

    All files of the folder together take about `limit` bytes at most; None: any number.
    """

    def __init__(self, folder: Path, signature: str, *, limit: int | None = None) -> None:
        self._root, self._limit = folder, limit
        # The version stands for our own share of the vectors, such as how images are resized.
        name = f"{_FORMAT}\n{__version__}\n{signature}"
        self._own = folder / blake2b(name.encode(), digest_size=10).hexdigest()
        self._total: int | None = None  # bytes of all files when last looked, and what was written since
        self._written = 0
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            if not (self._own / _MARK).is_file():
                _replace(self._own / _MARK, f"{signature}\n".encode())
        except OSError as error:
            raise RunError(
                f"{folder}: vectors cannot be kept here ({error.strerror or error}); choose another"
            ) from error

    def find(self, key: str, device: torch.device) -> Embeddings | None:
        """The vectors of an item, if they are there and whole."""
        content = self.read(key)
        return None if content is None else _embeddings(content, device)

    def keep(self, key: str, found: Embeddings) -> None:
        """Write the vectors of an item; a disk that refuses them loses nothing but the time saved."""
        self.write(key, _content(found))

    def has(self, key: str) -> bool:
        """Whether there is a file of an item; that it is whole shows when it is read."""
        return self._path(key).is_file()

    def read(self, key: str) -> bytes | None:
        """What was written under a key, if it is there and whole."""
        path = self._path(key)
        with suppress(OSError):
            content = path.read_bytes()
            if blake2b(content[_CHECK:], digest_size=_CHECK).digest() == content[:_CHECK]:
                with suppress(OSError):  # a folder that may be read alone serves as well
                    os.utime(path)
                return content[_CHECK:]
        return None

    def write(self, key: str, content: bytes) -> None:
        """Put some bytes under a key, and make room where the limit is passed."""
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            _replace(path, blake2b(content, digest_size=_CHECK).digest() + content)
            self._written += _CHECK + len(content)
            if self._limit is not None:
                self._make_room(self._limit)

    def _path(self, key: str) -> Path:
        return self._own / key[:3] / key[3:]

    def _make_room(self, limit: int) -> None:
        if self._total is not None and self._written < limit / _LOOK_AGAIN and self._total + self._written <= limit:
            return
        try:
            # One process at a time: the others go on, and look again later.
            with FileLock(self._root / _LOCK, timeout=0):
                self._total = remove_oldest(self._root, limit)
        except Timeout:
            self._total = 0
        self._written = 0


def remove_oldest(root: Path, limit: int) -> int:
    """Remove the files used longest ago where all together pass the limit; the bytes that are left."""
    files = sorted(_files(root))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return total
    for _, size, path in files:
        if total <= _ROOM * limit:
            break
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108, a path here is a plain text: there may be millions
            total -= size
    return total


def _files(root: Path) -> Iterator[tuple[int, int, str]]:
    """Time of last use, size and path of every file of ours; whatever else lies there is left alone."""
    with os.scandir(root) as encoders:
        own = [one.path for one in encoders if _ENCODER.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    for folder in own:
        with suppress(OSError), os.scandir(folder) as drawers:
            for drawer in [one.path for one in drawers if _DRAWER.fullmatch(one.name)]:
                yield from _files_of(drawer)


def _files_of(drawer: str) -> Iterator[tuple[int, int, str]]:
    with suppress(OSError), os.scandir(drawer) as entries:
        for entry in entries:
            with suppress(OSError):  # removed meanwhile
                status = entry.stat(follow_symlinks=False)
                if _FILE.fullmatch(entry.name):
                    yield status.st_mtime_ns, status.st_size, entry.path
                elif entry.name.endswith(_TEMPORARY) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)  # noqa: PTH108


def _replace(path: Path, content: bytes) -> None:
    """Put a file in place in one step; the checksum stands in for waiting until it is on the disk."""
    temporary = path.with_name(f".{uuid4().hex}{_TEMPORARY}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105, the same call by its clearer name
    finally:
        temporary.unlink(missing_ok=True)


def _content(found: Embeddings) -> bytes:
    (layout,) = found.layout
    tensors = {"points": found.points[0], "mask": found.mask[0], "pooled": found.pooled[0]}
    if isinstance(layout, PatchLayout):
        tensors["boxes"] = layout.boxes
        facts: dict[str, Any] = {"size": layout.size, "grid": layout.grid, "warnings": layout.warnings}
    else:
        facts = asdict(layout)
    tensors[_LAYOUT] = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _embeddings(content: bytes, device: torch.device) -> Embeddings:
    tensors = load(content)
    facts = json.loads(tensors[_LAYOUT].numpy().tobytes())
    warnings = tuple(facts["warnings"])
    layout: PatchLayout | TokenLayout
    if "boxes" in tensors:
        layout = PatchLayout(tuple(facts["size"]), tuple(facts["grid"]), tensors["boxes"], warnings)
    else:
        layout = TokenLayout(tuple(map(tuple, facts["spans"])), facts["windows"], facts["cut"], warnings)
    points, mask, pooled = (tensors[name].to(device).unsqueeze(0) for name in ("points", "mask", "pooled"))
    return Embeddings(points, mask, pooled, (layout,))
