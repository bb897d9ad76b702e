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

    def extend(self, vectors: Tensor, mask: Tensor) -> None:
        """Add the real rows of every item of a padded batch; a missing item is one without rows.

        Raises:
            ConfigError: the values do not fit the dtype of the store.
        """
        # Smaller before it travels: on a GPU the copy is what takes time.
        rows = vectors.detach()[mask].to(self._dtype).cpu().contiguous()
        if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
            raise ConfigError(f"features do not fit {self._dtype}; cache them as bfloat16 or float32 (cache_dtype)")
        self._width = self._width or vectors.shape[2]
        self._file.write(rows.view(torch.uint8).numpy().tobytes())
        self._ends += (self._ends[-1] + mask.sum(dim=1).cumsum(dim=0)).tolist()

    def append(self, matrix: Tensor) -> None:
        """Add one matrix."""
        self.extend(matrix.unsqueeze(0), torch.ones(1, len(matrix), dtype=torch.bool, device=matrix.device))

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

    @property
    def nbytes(self) -> int:
        """What it takes to hold all of it in memory."""
        return self._values.numel() * self._values.element_size()

    def load(self, device: torch.device) -> None:
        """Bring all matrices to a device; from then on they are read there."""
        self._values = self._values.to(device)

    def take(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Matrices as one padded batch, with its mask, on the device of the store."""
        wanted = np.asarray(numbers)
        starts, heights = self.ends[wanted], self.ends[wanted + 1] - self.ends[wanted]
        places = np.arange(heights.max())
        real = places < heights[:, None]
        rows = torch.from_numpy(np.where(real, starts[:, None] + places, 0)).to(self._values.device)
        mask = torch.from_numpy(real).to(self._values.device)
        if not mask.any():
            return self._values.new_zeros(*mask.shape, self.width), mask
        return self._values[rows].masked_fill_(~mask.unsqueeze(-1), 0), mask
