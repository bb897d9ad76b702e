"""Images stored in Parquet files, found by name and read lazily from any thread."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from msdscore.errors import ImageError, InputError, shortened
from msdscore.io.arrow import pa, pq
from msdscore.io.files import FileState, file_state
from msdscore.io.names import ImageNames

CACHED_BYTES = 1 << 30  # encoded images cached for neighbouring rows, over all files


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
