"""Vectors cached on disk: each distinct image and text is encoded once, for all processes and later runs.

Items are keyed by their content: an image by the bytes of its file, or by its preprocessed pixels and original size; a
text by its characters. There is one file per item under the encoder's signature, written atomically with a leading
checksum: a crash, concurrent processes or a full or damaged disk can lose an item, which is then recomputed, but never
yield wrong vectors. The least recently used items are evicted first.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from hashlib import blake2b
from operator import add, sub
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load, save

from msdscore.core.arrays import Array, Device, launched, on_device, to_numpy
from msdscore.core.embeddings import join, split
from msdscore.encoders.base import Embeddings, Encoder, PatchLayout, Prepared, TokenLayout, View, capabilities, overflow
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.encoders.preprocessing import prepared_key
from msdscore.errors import ConfigError, RunError
from msdscore.version import __version__

Item = TypeVar("Item")
_IMAGE, _TEXT = "i", "t"  # first letter of a key

_FORMAT = 4
_CHECK = 16  # bytes of the checksum before the content of a file
_LAYOUT = "layout"  # name of the tensor that contains a layout as JSON bytes
_MARK, _LOCK, _TEMPORARY = "signature.txt", ".removing.lock", ".tmp"
_ROOM = 0.9  # share of the limit that remains after eviction, so that not every file causes one
_LOOK_AGAIN = 20  # the folder is scanned again after a twentieth of the limit was written: others write too
_ABANDONED_SECONDS = 3600.0  # age of a temporary file whose writer must be dead
# Names of the folder of an encoder, of a folder of items in it, and of an item there.
*_FOLDERS, _FILE = (re.compile(form) for form in (r"[0-9a-f]{20}", r"[a-z][0-9a-f]{2}", r"[0-9a-f]{38}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Folder and size limit in bytes (None: unlimited) of vectors cached on disk."""

    folder: str
    limit: int | None = 64 << 30

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"the limit of a cache must be at least 1 byte, got {self.limit}")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Numbers of images and texts requested, and of those that the encoder had to compute.

    >>> print(CacheUse(8, 2, 4, 0) + CacheUse(2, 0, 0, 0))
    8 of 10 images (80.0 %) and 4 of 4 texts (100.0 %) were cached
    """

    images: int = 0
    images_made: int = 0
    texts: int = 0
    texts_made: int = 0

    def __add__(self, other: "CacheUse") -> "CacheUse":
        return CacheUse(*map(add, astuple(self), astuple(other)))

    def since(self, before: "CacheUse | None") -> "CacheUse":
        """The use after an earlier state."""
        return CacheUse(*map(sub, astuple(self), astuple(before or CacheUse())))

    def __str__(self) -> str:
        sides = (self.images, self.images_made, "images"), (self.texts, self.texts_made, "texts")
        return (
            " and ".join(
                f"{all_ - made:,} of {all_:,} {what}" + (f" ({100 * (all_ - made) / all_:.1f} %)" if all_ else "")
                for all_, made, what in sides
            )
            + " were cached"
        )


class FileImage(Prepared):
    """An image keyed by the bytes of its file, and preprocessed only if its vectors are not cached."""

    __slots__ = ("key", "make")
    key: str
    make: Callable[[], Prepared]

    def __init__(self, key: str, make: Callable[[], Prepared]) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "make", make)

    @property
    def pixels(self) -> Array:
        """The pixels of the preprocessed image."""
        return self.make().pixels

    @property
    def view(self) -> View:
        """Their location on the original."""
        return self.make().view


class CachedEncoder:
    """The same vectors as the wrapped encoder; those in the folder of the settings are not computed again."""

    def __init__(self, encoder: Encoder, settings: CacheSettings) -> None:
        self._encoder, self._settings = encoder, settings
        self._published: Encoder | None = None
        self.name, self.device, self.signature = encoder.name, encoder.device, encoder_signature(encoder)
        self.bank, self.recommended, self.prepare = encoder.bank, encoder.recommended, encoder.prepare
        can = self._can = capabilities(encoder)
        self.preprocessing, self.sendable_prepare = can.preprocessing, can.sendable_prepare
        self.precision, self.marks_overflow = can.precision, can.marks_overflow
        if can.encode_sentences is not None:  # they are not cached
            self.encode_sentences = can.encode_sentences
        self._files = VectorFiles(Path(settings.folder), self.signature, limit=settings.limit)
        self.use, self._counting = CacheUse(), Lock()  # items requested so far, and how many of them were cached

    def as_published(self) -> Encoder:
        """Return the cached encoder as its publication defines it, if it has such a form; else this one."""
        if self._published is None:
            plain = self._encoder if self._can.as_published is None else self._can.as_published()
            known = plain.signature == self._encoder.signature
            self._published = self if known else CachedEncoder(plain, self._settings)
        return self._published

    def prepare_file(self, content: bytes, how: str, make: Callable[[], Prepared]) -> Prepared:
        """The image of a file; `make` decodes it as described by `how`, and is called only if it is not cached."""
        digest = blake2b(f"{len(how)} {how}".encode(), digest_size=20)
        digest.update(content)
        key = digest.hexdigest()
        if _IMAGE + key in self._files:
            return FileImage(key, make)
        prepared = make()
        return FileImage(key, lambda: prepared)

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors."""

        def encode(missing: Sequence[Prepared]) -> Embeddings:
            return self._encoder.encode_images(
                [image.make() if isinstance(image, FileImage) else image for image in missing]
            )

        return self._recall(_IMAGE, images, [_IMAGE + prepared_key(image) for image in images], encode)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors."""
        digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20) for text in texts]
        keys = [f"{_TEXT}{digest.hexdigest()}" for digest in digests]
        return self._recall(_TEXT, texts, keys, self._encoder.encode_texts)

    def _recall(
        self, kind: str, items: Sequence[Item], keys: Sequence[str], encode: Callable[[Sequence[Item]], Embeddings]
    ) -> Embeddings:
        """Return the vectors of all items; unknown ones are passed to `encode`."""
        if not items:
            return encode(items)
        distinct = dict(zip(keys, items, strict=True))
        known = {key: vectors for key in distinct if (vectors := self._files.find(key, self.device)) is not None}
        missing = [key for key in distinct if key not in known]
        if missing:
            batch = launched(self.device, lambda: encode([distinct[key] for key in missing]))
            if self.marks_overflow and not np.isfinite(to_numpy(batch.pooled)).all():
                raise overflow(self.name, self.precision)
            for key, vectors in zip(missing, split(batch), strict=True):
                self._files.keep(key, vectors)
                known[key] = vectors
        use = (len(items), len(missing))
        with self._counting:
            self.use += CacheUse(*use) if kind == _IMAGE else CacheUse(0, 0, *use)
        return join([known[key] for key in keys])


class VectorFiles:
    """The vectors of one encoder, in a folder that other encoders and processes may share.

    All files of the folder together take about `limit` bytes at most; None: unlimited.
    """

    def __init__(self, folder: Path, signature: str, *, limit: int | None = None) -> None:
        self._root, self._limit = folder, limit
        # The version covers our share of the vectors, such as how images are resized.
        name = f"{_FORMAT}\n{__version__}\n{signature}"
        self._own = folder / blake2b(name.encode(), digest_size=10).hexdigest()
        self._total: int | None = None  # bytes of all files at the last scan, plus those written since
        self._written = 0
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            if not (self._own / _MARK).is_file():
                _replace(self._own / _MARK, f"{signature}\n".encode())
        except OSError as error:
            raise RunError(
                f"{folder}: cannot store vectors here ({error.strerror or error}); choose another folder"
            ) from error

    def find(self, key: str, device: Device) -> Embeddings | None:
        """Return the vectors of an item, or None if they are missing or damaged."""
        path = self._path(key)
        with suppress(OSError):
            content = path.read_bytes()
            if _checksum(key, content[_CHECK:]) == content[:_CHECK]:
                with suppress(OSError):  # a read-only folder works too
                    os.utime(path)
                return _embeddings(content[_CHECK:], device)
        return None

    def __contains__(self, key: str) -> bool:
        return self._path(key).is_file()  # damage is detected on reading

    def keep(self, key: str, vectors: Embeddings) -> None:
        """Write the vectors of an item, and evict others if the limit is exceeded.

        If writing fails, only the time saved is lost.
        """
        path, content = self._path(key), _content(vectors)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            _replace(path, _checksum(key, content) + content)
            self._written += _CHECK + len(content)
            limit, total, written = self._limit, self._total, self._written
            if limit is None or (total is not None and written < limit / _LOOK_AGAIN and total + written <= limit):
                return
            self._total = self._written = 0
            from filelock import FileLock, Timeout  # imports much that a score without a cache does not need

            # One process at a time: the others continue, and check again later.
            with suppress(Timeout), FileLock(self._root / _LOCK, timeout=0):
                self._total = remove_oldest(self._root, limit)

    def _path(self, key: str) -> Path:
        return self._own / key[:3] / key[3:]


def remove_oldest(root: Path, limit: int) -> int:
    """Remove the least recently used files if all together exceed the limit; return the bytes that remain."""
    files = sorted(_files(root))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return total
    for _, size, path in files:
        if total <= _ROOM * limit:
            break
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108, a path here is a plain string: there may be millions
            total -= size
    return total


def _files(root: Path) -> Iterator[tuple[int, int, str]]:
    """Time of last use, size and path of every cache file; other files and folders are ignored."""
    start = len(root.parts)
    for folder, folders, names in os.walk(root):  # follows no links and ignores unreadable folders
        depth = len(Path(folder).parts) - start
        folders[:] = [name for name in folders if depth < len(_FOLDERS) and _FOLDERS[depth].fullmatch(name)]
        for name in names if depth == len(_FOLDERS) else ():
            path = f"{folder}{os.sep}{name}"  # a plain string: there may be millions
            with suppress(OSError):  # removed meanwhile
                status = os.lstat(path)
                if _FILE.fullmatch(name):
                    yield status.st_mtime_ns, status.st_size, path
                elif name.endswith(_TEMPORARY) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(path)  # noqa: PTH108


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; because of the checksum there is no need for fsync."""
    temporary = path.with_name(f".{os.urandom(16).hex()}{_TEMPORARY}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105, the same call by its clearer name
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(key: str, content: bytes) -> bytes:
    """Hash the content and the item's key, so that a file under another item's name is not mistaken for that one's."""
    return blake2b(content, digest_size=_CHECK, person=blake2b(key.encode(), digest_size=16).digest()).digest()


def _content(vectors: Embeddings) -> bytes:
    (layout,) = vectors.layout
    tensors = {"points": vectors.points[0], "mask": vectors.mask[0], "pooled": vectors.pooled[0]}
    if isinstance(layout, PatchLayout):
        tensors["boxes"] = layout.boxes
        facts: dict[str, Any] = {"size": layout.size, "grid": layout.grid, "warnings": layout.warnings}
    else:
        facts = asdict(layout)
    tensors[_LAYOUT] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    return save({name: np.ascontiguousarray(to_numpy(tensor)) for name, tensor in tensors.items()})


def _embeddings(content: bytes, device: Device) -> Embeddings:
    tensors = load(content)
    facts = json.loads(tensors[_LAYOUT].tobytes())
    warnings = tuple(facts["warnings"])
    layout: PatchLayout | TokenLayout
    if "boxes" in tensors:
        layout = PatchLayout(tuple(facts["size"]), tuple(facts["grid"]), tensors["boxes"], warnings)
    else:
        spans = tuple(map(tuple, facts.pop("spans")))
        layout = TokenLayout(**{**facts, "spans": spans, "warnings": warnings})
    points, mask, pooled = (on_device(tensors[name][np.newaxis], device) for name in ("points", "mask", "pooled"))
    return Embeddings(points, mask, pooled, (layout,))
