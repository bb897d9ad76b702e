"""Where a training picture lies, and how its bytes are read: files, slices of tar shards, cells of tables."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import ImageError


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes inside an uncompressed tar file."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a picture column in a Parquet file."""

    path: Path
    column: str
    group: int
    row: int  # within the row group


Picture = Path | Slice | Cell


class PictureReader:
    """Reads pictures from several threads; holds the picture columns of the row groups in use."""

    def __init__(self, *, groups: int = 16) -> None:
        self._groups = groups
        self._columns: OrderedDict[tuple[Path, str, int], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, picture: Picture) -> Path | bytes:
        """The path of a file, or the bytes of a picture kept elsewhere.

        Raises:
            ImageError: there are no bytes.
        """
        if isinstance(picture, Path):
            return picture
        try:
            return _slice(picture) if isinstance(picture, Slice) else self._cell(picture)
        except (OSError, pa.ArrowException) as error:
            raise ImageError(f"{picture.path}: cannot be read ({error})") from error

    def _cell(self, cell: Cell) -> bytes:
        value: Any = self._column(cell)[cell.row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes) or not data:
            raise ImageError(f"{cell.path}: row {cell.row} of group {cell.group} holds no picture")
        return data

    def _column(self, cell: Cell) -> pa.ChunkedArray:
        key = (cell.path, cell.column, cell.group)
        with self._lock:
            if key not in self._columns:
                with pq.ParquetFile(cell.path) as file:
                    self._columns[key] = file.read_row_group(cell.group, columns=[cell.column]).column(cell.column)
                while len(self._columns) > self._groups:
                    self._columns.popitem(last=False)
            self._columns.move_to_end(key)
            return self._columns[key]


def _slice(picture: Slice) -> bytes:
    with picture.path.open("rb") as file:
        file.seek(picture.offset)
        data = file.read(picture.size)
    if len(data) < picture.size:
        raise ImageError(f"{picture.path}: is cut off before byte {picture.offset + picture.size}")
    return data
