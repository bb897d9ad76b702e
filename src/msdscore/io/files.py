"""Files: their names and states, keys of their contents, and atomic writes."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias
from uuid import uuid4

from PIL import Image

from msdscore.errors import ImageError

# File name suffixes of images.
IMAGE_ENDINGS = frozenset({
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2",
    "pbm", "pgm", "pnm", "ppm",
})  # fmt: skip
# Suffixes of files of rows and of shards; `rows.formats` has their readers.
INPUT_FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet", "tar")
CODECS = {".gz": "gzip", ".zst": "zstd"}  # of compressed text, by suffix
TEMPORARY = ".tmp"  # suffix of a file that is being written
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+(::|://)")
_POSITIVE = (1 << 63) - 1  # fits a signed 64-bit integer, in torch and in Arrow
_BLOCK = 1 << 20

FileState: TypeAlias = tuple[int, int, int]  # inode, size and modification time


def is_image_name(path: Path) -> bool:
    """Whether a file has an image suffix and is not hidden.

    >>> is_image_name(Path("dog.JPG")), is_image_name(Path(".dog.jpg")), is_image_name(Path("dog.txt"))
    (True, False, False)
    """
    return path.suffix.lower().removeprefix(".") in IMAGE_ENDINGS and not path.name.startswith(".")


def is_address(name: str | Path) -> bool:
    """Whether a name is an address rather than a local path.

    >>> is_address("s3://bucket/00000.tar"), is_address("data/00000.tar"), is_address("C:/data")
    (True, False, False)
    """
    return isinstance(name, str) and _ADDRESS.match(name) is not None


def split_query(name: str) -> tuple[str, str]:
    """Split an address into its location and its query, which configures access to the store.

    >>> split_query("s3://bucket/a.tar?region=eu-west-1"), split_query("what?.tar")
    (('s3://bucket/a.tar', '?region=eu-west-1'), ('what?.tar', ''))
    """
    base, mark, query = name.rpartition("?")
    return (base, mark + query) if mark and "=" in query and is_address(name) else (name, "")


def base_name(name: str) -> str:
    """Return the last part of a path or an address.

    >>> base_name("s3://bucket/shards/00000.tar"), base_name("shards/00000.tar")
    ('00000.tar', '00000.tar')
    """
    return PurePosixPath(split_query(name)[0]).name if is_address(name) else Path(name).name


def stem(shard: str) -> str:
    """Return the name of a shard without folder and suffixes."""
    return without_compression(Path(base_name(shard))).stem


def without_compression(path: Path) -> Path:
    """Remove the suffix of a compressed file."""
    return path.with_suffix("") if path.suffix.lower() in CODECS else path


def has_input_suffix(name: str | Path) -> bool:
    """Whether a file, an address or a pattern of shards has the suffix of an input format.

    >>> has_input_suffix("rows.csv.gz"), has_input_suffix("s3://b/{00..09}.tar"), has_input_suffix("a dog runs.")
    (True, True, False)
    """
    return without_compression(Path(base_name(str(name)))).suffix.lower().removeprefix(".") in INPUT_FORMATS


def file_state(file: str | Path | int) -> FileState | None:
    """Return inode, size and modification time of a file, which change when it is rewritten or replaced.

    Images are read by offset long after their tar was listed, by other threads and processes; if this differs, the
    offsets are those of another file. None if the file does not exist.
    """
    try:
        status = os.stat(file)  # noqa: PTH116, runs name their images by text
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def size_and_time(file: str | Path) -> str:
    """Return size and modification time of a file as text, by which a replaced file is recognised.

    >>> size_and_time("there is no such file")
    'missing'
    """
    state = file_state(file)
    return "missing" if state is None else f"{state[1]} {state[2]}"


@dataclass(frozen=True, slots=True)
class TarImage:
    """An image inside an uncompressed tar file."""

    path: Path
    offset: int
    size: int
    name: str = ""  # within the tar
    state: FileState | None = None  # of the tar's file when it was listed

    def __hash__(self) -> int:  # of the fields that differ within a tar
        return hash(self.offset)

    def __reduce__(self) -> tuple[Any, ...]:  # half the time of what a dataclass with slots does
        return TarImage, (self.path, self.offset, self.size, self.name, self.state)

    def __str__(self) -> str:
        return f"{self.path.name}/{self.name or self.offset}"

    def read(self) -> bytes:
        """Read the encoded bytes of the image.

        Raises:
            ImageError: the shard cannot be read, or is truncated.
        """
        try:
            with self.path.open("rb") as file:
                if self.state is not None and file_state(file.fileno()) != self.state:
                    raise ImageError(f"{self.path}: was changed after its samples were listed; run again")
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be read ({error.strerror})") from error
        if len(data) < self.size:
            raise ImageError(f"{self.path}: is truncated before byte {self.offset + self.size}")
        return data


File: TypeAlias = str | Path | bytes | TarImage  # one image file, as passed to a run and its decoding processes


def fingerprint(*values: str | bytes) -> str:
    """Return a hash of texts or bytes, 32 hexadecimal digits.

    >>> fingerprint("a", b"b") == fingerprint("ab")
    False
    """
    digest = blake2b(digest_size=16)
    for value in values:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(b"%d\n" % len(data))
        digest.update(data)
    return digest.hexdigest()


def pixel_key(image: Image.Image) -> int:
    """Return a non-negative 63-bit hash of size and RGB pixels, the same on every machine.

    >>> pixel_key(Image.new("RGB", (2, 1))) == pixel_key(Image.new("RGB", (1, 2)))
    False
    """
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    digest = blake2b(b"rgb %d %d\n" % rgb.size, digest_size=8)
    digest.update(rgb.tobytes())
    return int.from_bytes(digest.digest(), "big") & _POSITIVE


def text_key(text: str) -> int:
    """Return a non-negative 63-bit hash of the caption, without normalisation.

    >>> text_key("a dog")
    6155808132994360295
    """
    digest = blake2b(b"text\n" + text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") & _POSITIVE


def source_key(source: File) -> str:
    """Return a key of an undecoded source: its absolute path, its offset in a tar, or a hash of its bytes.

    >>> source_key("./dog.jpg") == source_key(Path("dog.jpg"))
    True
    """
    if isinstance(source, bytes):
        return f"bytes:{blake2b(source, digest_size=16).hexdigest()}"
    if isinstance(source, TarImage):
        return f"tar:{source.path.name}:{source.offset}"
    return f"file:{absolute_path(source)}"


def absolute_path(path: str | Path) -> str:
    """Return the absolute path of a file; only `..` touches the disk, since its folder may be a symbolic link."""
    text = os.fspath(path)
    if ".." in text and ".." in (parts := Path(text).parts):
        last = len(parts) - parts[::-1].index("..")
        text = os.path.join(os.path.realpath(os.path.join(*parts[:last])), *parts[last:])  # noqa: PTH118
    return os.path.abspath(text)  # noqa: PTH100, text is faster than a Path object per row


def file_key(path: Path) -> str:
    """Return a hash of a file's content, 32 hexadecimal digits."""
    return file_key_and_lines(path)[0]


def file_key_and_lines(path: Path) -> tuple[str, int]:
    """Return `file_key` and the number of lines, counted in the same pass."""
    lines, last, digest = 0, b"\n", blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            lines, last = lines + block.count(b"\n"), block[-1:]
    return digest.hexdigest(), lines + (last != b"\n")


@contextmanager
def replacing(path: Path, *, folder: Path | None = None, keep: bool = False) -> Iterator[BinaryIO]:
    """Write to a temporary file in `folder` (default: next to `path`) and rename it to `path` at the end.

    The bytes are flushed to disk before the rename: a crash leaves either the old file or the new one. With `keep` a
    file that exists by then stays.
    """
    # Not named after the file, whose name may be as long as the system allows.
    temporary = (folder or path.parent) / f".{uuid4().hex}{TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not keep:
            temporary.replace(path)
        elif not path.exists():
            try:
                os.link(temporary, path)  # fails if another process is faster
            except FileExistsError:
                return
            except OSError:  # the file system has no links
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
