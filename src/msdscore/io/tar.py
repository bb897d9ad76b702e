"""Tar shards in the layout of WebDataset: files that share a name before the first dot make one sample."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msdscore.errors import ImageError, InputError

PICTURE_ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif")
_LARGEST_TEXT = 1 << 20  # bytes of a text file in a shard
_END = 2 * tarfile.BLOCKSIZE  # empty bytes at the end of a whole tar


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
    """The files of one key: the picture, and the texts with the endings of their names, in order."""

    key: str
    picture: TarImage | None = None
    texts: list[tuple[str, str]] = field(default_factory=list)


def read_samples(path: Path, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    """The samples of a shard in order; pictures are not read, texts with one of the endings are.

    A shard that is cut off gives the samples before the cut; see `is_cut`.
    """
    some = False
    try:
        with tarfile.open(path, "r:") as shard:
            for sample in _samples(path, shard, text_endings):
                some = True
                yield sample
    except tarfile.TarError as error:
        if not (some and is_cut(path)):
            raise InputError(f"{path}: not an uncompressed tar shard ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def is_cut(path: Path) -> bool:
    """Whether a tar lacks the two empty blocks of its end, as one does that was not fetched in full."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - _END, 0))
        return file.read() != bytes(_END)


def _samples(path: Path, shard: tarfile.TarFile, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    sample = TarSample("")
    for member in shard:
        name = PurePosixPath(member.name)
        if not member.isfile() or name.name.startswith("."):
            continue
        stem, _, ending = name.name.partition(".")
        key, ending = str(name.parent / stem), ending.lower()
        if key != sample.key:
            if sample.key:
                yield sample
            sample = TarSample(key)
        if ending in PICTURE_ENDINGS:
            sample.picture = TarImage(path, member.offset_data, member.size, member.name)
        elif ending in text_endings and member.size <= _LARGEST_TEXT and (file := shard.extractfile(member)):
            sample.texts.append((ending, file.read().decode("utf-8", "replace")))
    if sample.key:
        yield sample
