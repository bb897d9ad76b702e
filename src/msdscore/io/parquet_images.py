"""Images that lie inside Parquet files: found by name, read from any thread when asked for."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import ImageError, InputError
from msdscore.io.tar import FileState, file_state

CACHED_BYTES = 1 << 30  # of encoded images that are kept for neighbouring rows, whatever the number of files


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One cell of an image column, in the layout of Hugging Face datasets ({bytes, path}) or as plain bytes."""

    name: str
    file: Path
    row: int
    column: str = "image"

    @property
    def group(self) -> int:
        """The row group that holds the cell; images of one group are read together."""
        return int(np.searchsorted(_group_starts(self.file, file_state(self.file)), self.row, side="right")) - 1

    def read(self) -> bytes:
        """The image's encoded bytes; neighbouring rows come from the same read.

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
        place = self.row - int(starts[group])
        if place >= len(cells):
            raise ImageError(f"{self.file}: has no row {self.row} any more; was it replaced?")
        cell = cells[place].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes) or not data:
            raise ImageError(f"{self.file} row {self.row} ({self.name}) holds no image bytes")
        return data


def stored_images(files: Iterable[Path], key: str) -> dict[str, StoredImage]:
    """Every image of some Parquet files by the file name in column `key`; image bytes stay unread."""
    images: dict[str, StoredImage] = {}
    for file in files:
        for row, value in enumerate(read_columns(file, (key,))[key]):
            name = PurePosixPath(str(value)).name
            images.setdefault(name, StoredImage(name, file, row))
    return images


def read_columns(file: Path, columns: tuple[str, ...]) -> dict[str, list[Any]]:
    """Some columns of a Parquet file as lists."""
    try:
        present = pq.read_schema(file).names
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from error
    lacking = [name for name in columns if name not in present]
    if lacking:
        raise InputError(f"{file} lacks the columns {', '.join(lacking)}; it has {', '.join(present)}")
    table: dict[str, list[Any]] = pq.read_table(file, columns=list(columns)).to_pydict()
    return table


@lru_cache(maxsize=64)
def _group_starts(file: Path, state: FileState | None) -> Any:  # what is remembered of another state does not count
    metadata = pq.read_metadata(file)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


# Image columns of the row groups in use, the oldest dropped first; a group is read by one thread alone.
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
