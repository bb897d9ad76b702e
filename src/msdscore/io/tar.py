"""Tar shards in the layout of WebDataset: files that share a name before the first dot make one sample."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Self

from msdscore.errors import ImageError, InputError

PICTURE_ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif")
_LARGEST_TEXT = 1 << 20  # bytes of a text file in a shard
_END = 2 * tarfile.BLOCKSIZE  # empty bytes at the end of a whole tar, at least
_BLOCK = 1 << 16
_OCTAL = b"01234567"
_CUT = "the tar is cut off; samples behind the cut are lost, fetch it again"


@dataclass(frozen=True, slots=True)
class TarImage:
    """A picture inside an uncompressed tar file."""

    path: Path
    offset: int
    size: int
    name: str = ""  # within the tar

    def __str__(self) -> str:
        return f"{self.path.name}/{self.name or self.offset}"

    def read(self) -> bytes:
        """The picture's encoded bytes.

        Raises:
            ImageError: the shard cannot be read, or is cut off.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be read ({error.strerror})") from error
        if len(data) < self.size:
            raise ImageError(f"{self.path}: is cut off before byte {self.offset + self.size}")
        return data


@dataclass(slots=True)
class TarSample:
    """The files of one key: the picture, and the texts with the endings of their names, in order.

    `error` says that one of them cannot be read; a sample without a key says that so much of the tar is lost.
    """

    key: str
    picture: TarImage | None = None
    texts: list[tuple[str, str]] = field(default_factory=list)
    error: str | None = None


def read_samples(path: Path, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    """The samples of a shard in order; pictures are not read, texts with one of the endings are.

    A shard that is cut off or damaged gives the samples before that place, and one without a key that says so.
    """
    some = False
    try:
        with tarfile.open(path, "r:", tarinfo=_Header) as shard:
            for sample in _samples(path, shard, text_endings):
                some = True
                yield sample
            # At a header that it cannot read, tarfile ends as it does at the end of the tar.
            lost = _lost_behind(path, shard.offset)
    except tarfile.TarError as error:
        if not some:
            raise InputError(f"{path}: not an uncompressed tar shard ({error})") from error
        lost = _CUT
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if lost is not None:
        yield TarSample("", error=f"{path.name}: {lost}")


def sample_key(name: str) -> str:
    """The key of a file in a tar: its name up to the first dot, with its folder.

    >>> sample_key("000000012.jpg"), sample_key("a/b.c.json")
    ('000000012', 'a/b')
    """
    return _parted(name)[0]


def _parted(name: str) -> tuple[str, str]:
    """The key of a file in a tar, and its name without its folder."""
    folder, slash, base = name.rpartition("/")
    if not base or name[0] in "./" or "//" in name or "/." in name:
        path = PurePosixPath(name)
        return str(path.parent / path.name.partition(".")[0]), path.name
    return folder + slash + base.partition(".")[0], base


class _Header(tarfile.TarInfo):
    """A header of a tar; that of an ordinary file with a short name is read in a third of the time."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in a block of 512 bytes; what is out of the ordinary is left to tarfile."""
        name, _, rest = buf[:100].partition(b"\0")
        size, total = buf[124:136].rstrip(b"\0 "), buf[148:156].strip(b"\0 ")
        # An ordinary file, with its whole name in its place, and both numbers in octal digits.
        ordinary = len(buf) == tarfile.BLOCKSIZE and buf[156:157] == tarfile.REGTYPE and buf[257:262] == b"ustar"
        plain = ordinary and not buf[345] and name.isascii() and not rest.strip(b"\0")
        if not plain or not size or not total or (size + total).strip(_OCTAL):
            return super().frombuf(buf, encoding, errors)
        if sum(buf) - sum(buf[148:156]) + 8 * ord(" ") != int(total, 8):
            return super().frombuf(buf, encoding, errors)
        found = cls(name.decode("ascii"))
        found.size, found.type, found.chksum = int(size, 8), tarfile.REGTYPE, int(total, 8)
        return found


def _lost_behind(path: Path, end: int) -> str | None:
    """Why samples may be missing behind the place where reading ended; None at a proper end, empty blocks alone."""
    left = path.stat().st_size - end
    with path.open("rb") as file:
        file.seek(end)
        while left >= tarfile.BLOCKSIZE and (block := file.read(_BLOCK)):
            if block.count(0) < len(block):
                return f"damaged at byte {end}, or several tars in one; samples behind it are lost, fetch it again"
    return None if left >= _END else _CUT


def _samples(path: Path, shard: tarfile.TarFile, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    sample = TarSample("")
    for member in shard:
        key, base = _parted(member.name)
        if not member.isfile() or base.startswith("."):
            continue
        ending = base.partition(".")[2].lower()
        if key != sample.key:
            if sample.key:
                yield sample
            sample = TarSample(key)
        if ending in PICTURE_ENDINGS:
            sample.picture = TarImage(path, member.offset_data, member.size, member.name)
        elif ending in text_endings and member.size <= _LARGEST_TEXT:
            _add_text(sample, ending, _content(shard, member))
    if sample.key:
        yield sample


def _content(shard: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = shard.fileobj
    if member.issparse() or file is None:
        whole = shard.extractfile(member)
        return b"" if whole is None else whole.read()
    file.seek(member.offset_data)
    content = file.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


def _add_text(sample: TarSample, ending: str, content: bytes) -> None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        sample.error = sample.error or f"{sample.key}.{ending}: not valid UTF-8"
    sample.texts.append((ending, text))
