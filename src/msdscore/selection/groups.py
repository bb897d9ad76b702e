"""The best rows of every group, exactly, with as many groups as there are: rows are sorted on disk, part by part."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from msdscore.selection.top import Mask, Quota, Ranks

_PART_ROWS = 1 << 21  # rows of one part on disk, which is sorted in memory: 64 MiB
_ROW = np.dtype([("first", "<u8"), ("second", "<u8"), ("rank", "<u8"), ("row", "<i8")])
Names = npt.NDArray[np.uint64]


class GroupMarks:
    """Which of `rows` rows are kept, one byte per row in a file of `folder`."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._marks = np.memmap(folder / "marks", dtype=np.bool_, mode="w+", shape=(max(rows, 1),))
        self._parts = max(1, -(-rows // _PART_ROWS))
        self.kept = self.total = 0

    def choose(self, batches: Iterable[tuple[int, pa.Array, Ranks, Mask]], quota: Quota) -> None:
        """Mark the best rows of every group; a batch is the number of its first row, groups, ranks, and which count."""
        for start, groups, ranks, valid in batches:
            places = np.flatnonzero(valid)
            found = np.zeros(len(places), dtype=_ROW)
            names = group_names(groups)[places]
            found["first"], found["second"] = names[:, 0], names[:, 1]
            found["rank"], found["row"] = ranks[places], start + places
            self._spill(found)
        for part in range(self._parts):
            path = self._folder / f"part-{part}"
            if path.exists():
                self._mark(np.fromfile(path, dtype=_ROW), quota)
                path.unlink()

    def mask(self, start: int, rows: int) -> Mask:
        """Which of some consecutive rows are kept."""
        return np.array(self._marks[start : start + rows])

    def _spill(self, found: npt.NDArray[np.void]) -> None:
        part_of = found["first"] % np.uint64(self._parts)
        for part in np.unique(part_of).tolist():
            with (self._folder / f"part-{part}").open("ab") as file:
                file.write(found[part_of == part].tobytes())

    def _mark(self, found: npt.NDArray[np.void], quota: Quota) -> None:
        # The best of a group first; of equal ones the first in the order of the files.
        found = found[np.lexsort((found["row"], ~found["rank"], found["second"], found["first"]))]
        new = np.ones(len(found), dtype=bool)
        new[1:] = (found["first"][1:] != found["first"][:-1]) | (found["second"][1:] != found["second"][:-1])
        starts = np.flatnonzero(new)
        sizes = np.diff([*starts, len(found)])
        place = np.arange(len(found)) - np.repeat(starts, sizes)
        kept = place < np.repeat(quota.of_each(sizes), sizes)
        self._marks[found["row"][kept]] = True
        self.kept += int(kept.sum())
        self.total += len(found)


def group_names(groups: pa.Array) -> Names:
    """128 bits for each group's name, two numbers a row; rows without a group are one group."""
    encoded = pc.fill_null(groups, "").dictionary_encode()
    digests = b"".join(blake2b(name.encode(), digest_size=16).digest() for name in encoded.dictionary.to_pylist())
    names = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    return np.asarray(names[encoded.indices.to_numpy(zero_copy_only=False)], dtype=np.uint64).reshape(-1, 2)
