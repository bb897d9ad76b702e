"""Matrices of different heights in one file on disk, written one after the other and read in any order."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from msdscore.errors import ConfigError, RunError

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int32": torch.int32}


class MatrixWriter:
    """Appends matrices of one width; `close` writes where each of them begins."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, DTYPES[dtype]
        self._file: BinaryIO = path.with_suffix(".bin").open("wb")
        self._ends = [0]
        self._width = 0

    def append(self, matrix: Tensor) -> None:
        """Add one matrix; a missing item is a matrix without rows.

        Raises:
            ConfigError: its values do not fit the dtype of the store.
        """
        small = matrix.detach().to(device="cpu", dtype=self._dtype).contiguous()
        if small.is_floating_point() and not bool(torch.isfinite(small).all()):
            raise ConfigError(f"features do not fit {self._dtype}; cache them as bfloat16 or float32 (cache_dtype)")
        self._width = self._width or small.shape[1]
        self._file.write(small.view(torch.uint8).numpy().tobytes())
        self._ends.append(self._ends[-1] + small.shape[0])

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        np.save(self._path.with_suffix(".npy"), np.array([self._width, *self._ends], dtype=np.int64))


class MatrixStore:
    """Reads matrices by number; the file is mapped, not loaded."""

    def __init__(self, path: Path, dtype: str) -> None:
        known = np.load(path.with_suffix(".npy"))
        self.width, self.ends = int(known[0]), known[1:]
        count = int(self.ends[-1]) * self.width
        size = path.with_suffix(".bin").stat().st_size
        if size != count * DTYPES[dtype].itemsize:
            raise RunError(f"{path.with_suffix('.bin')}: is cut off; delete the folder and cache the features again")
        values = torch.from_file(str(path.with_suffix(".bin")), shared=False, size=count, dtype=DTYPES[dtype])
        self._values = values.view(-1, self.width) if count else values.view(0, max(1, self.width))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def heights(self) -> Tensor:
        """Rows of every matrix."""
        return torch.from_numpy(np.diff(self.ends))

    def take(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Matrices as one padded batch, with its mask."""
        parts = [self._values[int(self.ends[n]) : int(self.ends[n + 1])] for n in numbers]
        width = max(len(part) for part in parts)
        batch = torch.zeros(len(parts), width, self.width, dtype=self._values.dtype)
        mask = torch.zeros(len(parts), width, dtype=torch.bool)
        for row, part in enumerate(parts):
            batch[row, : len(part)] = part
            mask[row, : len(part)] = True
        return batch, mask
