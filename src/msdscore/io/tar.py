"""Tar shards in the layout of WebDataset: files that share a name before the first dot make one sample."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msdscore.errors import ImageError, InputError

PICTURE_ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif")
_LARGEST_TEXT = 1 << 20  # bytes of a text file in a shard
_END = 2 * tarfile.BLOCKSIZE  # empty bytes at the end of a whole tar, at least
_BLOCK = 1 << 16
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
        with tarfile.open(path, "r:") as shard:
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
    path = PurePosixPath(name)
    return str(path.parent / path.name.partition(".")[0])


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
        name = PurePosixPath(member.name)
        if not member.isfile() or name.name.startswith("."):
            continue
        key, ending = sample_key(member.name), name.name.partition(".")[2].lower()
        if key != sample.key:
            if sample.key:
                yield sample
            sample = TarSample(key)
        if ending in PICTURE_ENDINGS:
            sample.picture = TarImage(path, member.offset_data, member.size, member.name)
        elif ending in text_endings and member.size <= _LARGEST_TEXT and (file := shard.extractfile(member)):
            _add_text(sample, ending, file.read())
    if sample.key:
        yield sample


def _add_text(sample: TarSample, ending: str, content: bytes) -> None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        sample.error = sample.error or f"{sample.key}.{ending}: not valid UTF-8"
    sample.texts.append((ending, text))
