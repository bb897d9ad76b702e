"""Stable keys of images, captions, sources and files, all from their content."""

import os
import stat
from hashlib import blake2b, file_digest
from pathlib import Path

from PIL import Image

from msdscore.io.tar import File, TarImage

_POSITIVE = (1 << 63) - 1  # fits a signed 64-bit integer, in torch and in Arrow
_BLOCK = 1 << 20
_WHOLE = 4 << 30  # up to 4 GiB every byte is read (about one second per GiB), beyond it blocks are sampled
_SAMPLES = 1024
HASHED_BYTES = 8 << 20  # up to here a stamp is made from a file's content, beyond it from size and time


def pixel_key(image: Image.Image) -> int:
    """A non-negative 63-bit integer from size and RGB pixels; the same pixels give the same key everywhere.

    >>> pixel_key(Image.new("RGB", (2, 1))) == pixel_key(Image.new("RGB", (1, 2)))
    False
    """
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    digest = blake2b(b"rgb %d %d\n" % rgb.size, digest_size=8)
    digest.update(rgb.tobytes())
    return int.from_bytes(digest.digest(), "big") & _POSITIVE


def text_key(text: str) -> int:
    """A non-negative 63-bit integer from the caption exactly as given; no normalisation.

    >>> text_key("a dog")
    6155808132994360295
    """
    digest = blake2b(b"text\n" + text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") & _POSITIVE


def source_key(source: File) -> str:
    """One name for equal sources before anything is decoded: the absolute path, the place in a tar, a hash of bytes.

    >>> source_key("a/../dog.jpg") == source_key(Path("dog.jpg"))
    True
    """
    if isinstance(source, bytes):
        return f"bytes:{blake2b(source, digest_size=16).hexdigest()}"
    if isinstance(source, TarImage):
        return f"tar:{source.path.name}:{source.offset}"
    return f"file:{os.path.abspath(source)}"  # noqa: PTH100, Path has no way to fold ".." without touching the disk


def file_stamp(path: str | Path, *, verify: bool = False) -> str:
    """The state of a file: its size and a hash of its content, beyond 8 MiB its size and time unless `verify` is set.

    >>> file_stamp("there is no such file")
    'missing'
    """
    try:
        status = os.stat(path)  # noqa: PTH116, runs name their images by text
    except (OSError, ValueError):  # not there, no rights to look, or no name of a file at all
        return "missing"
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.R_OK):
        return "unreadable"
    is_large = status.st_size > HASHED_BYTES
    if is_large and not verify:
        return f"{status.st_size} {status.st_mtime_ns}"
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            # In one go where it is small: `file_digest` takes a buffer of 256 KiB for every file.
            digest = blake2b(b"" if is_large else file.read(), digest_size=12)
            whole = file_digest(file, lambda: digest) if is_large else digest
            return f"{status.st_size} {whole.hexdigest()}"
    except OSError:
        return "unreadable"


def file_key(path: Path) -> str:
    """A hash of a file's content, 32 hexadecimal digits.

    Files beyond 4 GiB are known by size, time of change and 1024 blocks spread over them, so that opening a
    table of several hundred GiB takes a second and any rewriting of it is still noticed.
    """
    status = path.stat()
    digest = blake2b(b"%d\n" % status.st_size, digest_size=16)
    with path.open("rb") as file:
        if status.st_size <= _WHOLE:
            return file_digest(file, lambda: digest).hexdigest()
        digest.update(b"%d\n" % status.st_mtime_ns)
        for number in range(_SAMPLES):
            file.seek((status.st_size - _BLOCK) * number // (_SAMPLES - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()
