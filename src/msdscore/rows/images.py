"""Finds the image of a row, in the folder of images or next to the rows, and images that are stored in tables."""

import os
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np

from msdscore.errors import ImageError, InputError, shortened
from msdscore.io.arrow import pa, pq
from msdscore.io.files import FileState, file_state, is_image_name
from msdscore.io.images import ImageSource

# The number of an image in its file name. After a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")
CACHED_BYTES = 1 << 30  # encoded images of tables cached for neighbouring rows, over all files


class ImageFinder:
    """The images of an input: in the folder `images`, else next to the rows."""

    def __init__(self, source: str, images: Path | None) -> None:
        if images is not None and not images.is_dir():
            raise InputError(f"{images}: no such folder of images")
        self.folder = images
        path, base = Path(source), images or Path()
        if images is None and source != "-" and (path.is_dir() or path.is_file()):
            base = path if path.is_dir() else path.parent
        self._base = "" if base == Path() else str(base)

    def find(self, image: ImageSource) -> ImageSource:
        """Return the image of a path that is relative to the folder; anything but a path is returned unchanged."""
        if not isinstance(image, str | os.PathLike):
            return image
        name = os.fspath(image)
        path = os.path.join(self._base, name)  # noqa: PTH118
        # Normalised as by `Path`, without creating an object for a plain path.
        is_plain = os.sep == "/" and "//" not in path and "/." not in path and path[:2] != "./"
        return path if is_plain else str(Path(path))

    def find_by_id(self, key: Any, name: str) -> str:
        """Return the image directly in the folder of images with the id of column `name`; raise unless it is one.

        The image of 42 may be called `42.jpg`, `000000000042.png` or `COCO_val2014_000000000042.jpg`. A text id
        is first taken as a name; a number matches all spellings alike.
        """
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ImageError(f"{name} must be text or a whole number, got {shortened(repr(key))}")
        assert self.folder is not None
        stems, numbers = self._names
        if not isinstance(key, str):
            names = numbers.get(key, [])
        elif key in stems.get(key.rpartition(".")[0], ()):
            names = [key]
        else:
            as_number = int(key) if key.isascii() and key.isdigit() else None
            names = stems.get(key) or ([] if as_number is None else numbers.get(as_number, []))
        if not names:
            raise ImageError(f"no image for id {shortened(str(key))} in {self.folder}")
        if len(names) > 1:
            several = ", ".join(sorted(names)[:4])
            raise ImageError(f"several images for id {shortened(str(key))} in {self.folder}: {several}")
        return str(self.folder / names[0])

    @cached_property
    def _names(self) -> tuple[dict[str, list[str]], dict[int, list[str]]]:
        """The names in the folder of images by stem, and by the number at the end of the stem."""
        assert self.folder is not None
        stems, numbers = defaultdict[str, list[str]](list), defaultdict[int, list[str]](list)
        for entry in self.folder.iterdir():
            if is_image_name(entry):
                stems[entry.stem].append(entry.name)
                if _NUMBER.fullmatch(entry.stem) and (digits := _DIGITS.search(entry.stem)):
                    numbers[int(digits[0])].append(entry.name)
        return stems, numbers


class ImageNames:
    """Names of images, matched with paths by their last parts: `val/1.jpg` is `/data/val/1.jpg`, and so is `1.jpg`.

    Images in different folders are different: `a/1.jpg` is not `b/1.jpg`.
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}  # file name up to its first dot -> names
        self._paths: dict[str, str] = {}  # name -> longest path that was matched with it

    def add(self, name: str) -> str:
        """Add a name; return it in normal form."""
        name = PurePath(name).as_posix()
        self._names.setdefault(PurePosixPath(name).name.partition(".")[0], {})[name] = None
        return name

    def find(self, path: str, *, any_suffix: bool = False) -> str | None:
        """Return the name of the image at this path, with `any_suffix` also `1.png` for `1.jpg`; None if it has none.

        Raises:
            ImageError: several names match.
            InputError: the name was matched with a path in another folder before.
        """
        wanted = PurePath(path).as_posix()
        names = self._names.get(PurePosixPath(wanted).name.partition(".")[0], {})
        matching = [wanted] if wanted in names else [name for name in names if _is_tail(name, wanted)]
        if any_suffix and not matching:
            bare = _without_suffix(wanted)
            matching = [name for name in names if _is_tail(name, bare) or _is_tail(_without_suffix(name), bare)]
        if len(matching) > 1:
            both = " and ".join(shortened(name) for name in matching[:2])
            raise ImageError(f"{shortened(path)} may be {both}; write the same folders in both files")
        if not matching:
            return None
        self._check(matching[0], _without_suffix(wanted) if any_suffix else wanted)
        return matching[0]

    def _check(self, name: str, path: str) -> None:
        earlier = self._paths.setdefault(name, path)
        if not _is_tail(earlier, path):
            raise InputError(
                f"{shortened(name)} may be the image {shortened(earlier)} or {shortened(path)}; write the folders of "
                "images with the same name"
            )
        self._paths[name] = max(earlier, path, key=len)


def _without_suffix(path: str) -> str:
    return path.removesuffix(PurePosixPath(path).suffix)


def _is_tail(first: str, second: str) -> bool:
    """Whether one of two paths is the end of the other.

    >>> _is_tail("a/1.jpg", "1.jpg"), _is_tail("a/1.jpg", "b/1.jpg"), _is_tail("11.jpg", "1.jpg")
    (True, False, False)
    """
    short, long = sorted((first, second), key=len)
    return long == short or long.endswith(f"/{short.removeprefix('/')}")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One cell of an image column, in the layout of Hugging Face datasets ({bytes, path}) or as plain bytes."""

    name: str
    file: Path
    row: int
    column: str = "image"

    @property
    def group(self) -> int:
        """The row group of the cell; images of one group are read together."""
        return int(np.searchsorted(_group_starts(self.file, file_state(self.file)), self.row, side="right")) - 1

    def read(self) -> bytes:
        """Read the encoded bytes of the image; neighbouring rows share one read.

        Raises:
            ImageError: there are no bytes.
        """
        try:
            state = file_state(self.file)
            starts = _group_starts(self.file, state)
            group = int(np.searchsorted(starts, self.row, side="right")) - 1
            cells = _group_column(self, group, state)
        except (OSError, pa.ArrowException) as error:
            raise ImageError(f"{self.file}: cannot be read ({error})") from error
        position = self.row - int(starts[group])
        if position >= len(cells):
            raise ImageError(f"{self.file}: no longer has a row {self.row}; was it replaced?")
        cell = cells[position].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes) or not data:
            raise ImageError(f"{self.file} row {self.row} ({self.name}) contains no image bytes")
        return data


class StoredImages:
    """The images of Parquet files by the names in column `key`; image bytes are not read."""

    def __init__(self, files: Iterable[Path], key: str) -> None:
        self._names = ImageNames()
        self._images: dict[str, list[StoredImage]] = {}
        for file in files:
            for row, value in enumerate(read_columns(file, (key,))[key]):
                if value is None:
                    continue
                name = self._names.add(str(value))
                self._images.setdefault(name, []).append(StoredImage(PurePosixPath(name).name, file, row))

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[StoredImage]:
        return (image for images in self._images.values() for image in images)

    def find(self, path: str) -> StoredImage | None:
        """Return the image with this name; None if there is none.

        Raises:
            ImageError: several different images have this name.
        """
        name = self._names.find(path)
        images = [] if name is None else self._images[name]
        if len(images) > 1 and len({image.read() for image in images}) > 1:
            raise ImageError(f"{images[0].file.name}: {len(images)} different images are called {shortened(path)}")
        return images[0] if images else None


def read_columns(file: Path, columns: tuple[str, ...]) -> dict[str, list[Any]]:
    """Read columns of a Parquet file as lists."""
    try:
        present = pq.read_schema(file).names
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from error
    missing = [name for name in columns if name not in present]
    if missing:
        raise InputError(f"{file} is missing the columns {', '.join(missing)}; it has {', '.join(present)}")
    table: dict[str, list[Any]] = pq.read_table(file, columns=list(columns)).to_pydict()
    return table


@lru_cache(maxsize=64)
def _group_starts(file: Path, state: FileState | None) -> Any:  # `state` is part of the cache key
    metadata = pq.read_metadata(file)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


# Image columns of the row groups in use, the oldest dropped first; a group is read by one thread only.
_columns: OrderedDict[tuple[Path, str, int, FileState | None], pa.ChunkedArray] = OrderedDict()
_reading = threading.Lock()


def _group_column(image: StoredImage, group: int, state: FileState | None) -> pa.ChunkedArray:
    key = (image.file, image.column, group, state)
    with _reading:
        if key not in _columns:
            with pq.ParquetFile(image.file) as opened:
                _columns[key] = opened.read_row_group(group, columns=[image.column]).column(image.column)
            while len(_columns) > 1 and sum(column.nbytes for column in _columns.values()) > CACHED_BYTES:
                _columns.popitem(last=False)
        _columns.move_to_end(key)
        return _columns[key]
