"""Pictures that lie inside Parquet files, found by name and read when asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from msdscore.errors import ImageError, InputError


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One row of a Parquet file in the layout of Hugging Face datasets: `image` is {bytes, path}."""

    name: str
    file: Path
    row: int

    def read(self) -> bytes:
        """The picture's encoded bytes; neighbouring rows come from the same read."""
        starts = _group_starts(self.file)
        group = int(np.searchsorted(starts, self.row, side="right")) - 1
        cell = _group(self.file, group)[self.row - int(starts[group])].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes):
            raise ImageError(f"{self.file} row {self.row} ({self.name}) holds no picture bytes")
        return data


def stored_images(files: Iterable[Path], key: str) -> dict[str, StoredImage]:
    """Every picture of some Parquet files by the file name in column `key`; picture bytes stay unread."""
    found: dict[str, StoredImage] = {}
    for file in files:
        for row, value in enumerate(read_columns(file, (key,))[key]):
            name = PurePosixPath(str(value)).name
            found.setdefault(name, StoredImage(name, file, row))
    return found


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
def _group_starts(file: Path) -> Any:
    metadata = pq.read_metadata(file)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


@lru_cache(maxsize=4)
def _group(file: Path, group: int) -> Any:
    with pq.ParquetFile(file) as opened:
        return opened.read_row_group(group, columns=["image"]).column("image").combine_chunks()
