"""What a selection is written to: DataComp's sorted uids, a list of keys, or the kept rows themselves."""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from msdscore.errors import InputError, shortened
from msdscore.io.atomic import replacing
from msdscore.io.outputs.shards import SIGNATURE_KEY
from msdscore.selection.scores import UID, ScoreFile, ScoreRows
from msdscore.selection.top import Mask

UID_TYPE = np.dtype("u8,u8")  # what DataComp's resharder reads
_PART_UIDS = 1 << 21  # uids of one part on disk, which is sorted in memory: 32 MiB
Pairs = npt.NDArray[np.void]


class Sink(Protocol):
    """Takes the rows of a selection in order; closed without an error, what it wrote is in its place."""

    duplicates: int

    def columns(self, file: ScoreFile) -> tuple[str, ...] | None:
        """The columns that it needs of a file; None for all."""

    def add(self, rows: ScoreRows, kept: Mask) -> None:
        """Take some rows and which of them are kept."""

    def close(self) -> None:
        """Finish."""


class UidFile:
    """A sorted NumPy array of pairs of 64-bit numbers, one per uid of 32 hexadecimal digits, each once."""

    def __init__(self, path: Path, *, rows: int, until: ExitStack) -> None:
        self._file = until.enter_context(replacing(path))
        self._folder = Path(until.enter_context(TemporaryDirectory(prefix=".msdscore-", dir=path.parent)))
        self._parts = 1 << max(0, (rows // _PART_UIDS).bit_length())
        self.duplicates = 0

    def columns(self, file: ScoreFile) -> tuple[str, ...]:
        """The uids."""
        if UID not in file.schema.names:
            raise InputError(f"{shortened(file.name)}: has no column {UID}; write a list of keys instead: -o keys.txt")
        return (UID, file.key_name)

    def add(self, rows: ScoreRows, kept: Mask) -> None:
        """Put the uids into the part that their first bits say."""
        uids = rows.texts(UID).filter(pa.array(kept))
        if not len(uids):
            return
        found = uid_pairs(uids, rows.file.name)
        part_of = found["f0"] >> np.uint64(64 - (self._parts.bit_length() - 1)) if self._parts > 1 else found["f0"] * 0
        for part in np.unique(part_of).tolist():
            with (self._folder / str(part)).open("ab") as file:
                file.write(found[part_of == part].tobytes())

    def close(self) -> None:
        """Sort part by part, then write one after the other."""
        total = 0
        paths = [self._folder / str(part) for part in range(self._parts)]
        for path in filter(Path.exists, paths):
            given = np.fromfile(path, dtype=UID_TYPE)
            ordered = given[np.lexsort((given["f1"], given["f0"]))]
            new = np.ones(len(ordered), dtype=bool)
            new[1:] = (ordered["f0"][1:] != ordered["f0"][:-1]) | (ordered["f1"][1:] != ordered["f1"][:-1])
            path.write_bytes(ordered[new].tobytes())
            total += int(new.sum())
            self.duplicates += int((~new).sum())
        header = {"descr": np.lib.format.dtype_to_descr(UID_TYPE), "fortran_order": False, "shape": (total,)}
        np.lib.format.write_array_header_1_0(self._file, header)
        for path in filter(Path.exists, paths):
            self._file.write(path.read_bytes())


class KeyFile:
    """One key per line, in the order of the scores."""

    duplicates = 0

    def __init__(self, path: Path, *, until: ExitStack) -> None:
        self._file: IO[bytes] = until.enter_context(replacing(path))

    def columns(self, file: ScoreFile) -> tuple[str, ...]:
        """The keys."""
        return (file.key_name,)

    def add(self, rows: ScoreRows, kept: Mask) -> None:
        """Write the keys of kept rows."""
        keys = rows.texts(rows.file.key_name).filter(pa.array(kept))
        broken = keys.filter(pc.fill_null(pc.match_substring_regex(keys, r"[\r\n]"), True))
        if len(broken):
            key = shortened(repr(broken[0].as_py()))
            raise InputError(
                f"{shortened(rows.file.name)}: key {key} cannot stand on a line of its own; -o kept.parquet can hold it"
            )
        self._file.write("".join(f"{key}\n" for key in keys.to_pylist()).encode())

    def close(self) -> None:
        """Nothing is left to do."""


class RowFile:
    """The kept rows with all their columns, as Parquet that carries the signature."""

    duplicates = 0

    def __init__(self, path: Path, file: ScoreFile, *, until: ExitStack) -> None:
        metadata = {SIGNATURE_KEY: file.signature.encode()} if file.signature else {}
        self._schema = file.schema.with_metadata(metadata)
        opened = until.enter_context(replacing(path))
        self._writer = until.enter_context(_writer(opened, self._schema))

    def columns(self, file: ScoreFile) -> None:
        """All."""
        if not file.schema.equals(self._schema):
            names = shortened(", ".join(file.schema.names), 300)
            raise InputError(f"{shortened(file.name)}: its columns differ from those of the first file ({names})")

    def add(self, rows: ScoreRows, kept: Mask) -> None:
        """Write the kept rows."""
        chosen = rows.table.filter(pa.array(kept))
        if chosen.num_rows:
            self._writer.write_batch(pa.RecordBatch.from_arrays(chosen.columns, schema=self._schema))

    def close(self) -> None:
        """The file ends with the block that owns it."""


def uid_pairs(uids: pa.Array, name: str) -> Pairs:
    """Uids of 32 hexadecimal digits as pairs of numbers, the first 16 digits and the last.

    >>> uid_pairs(pa.array(["000000000000000a00000000000000ff"]), "scores").tolist()
    [(10, 255)]
    """
    try:
        if pc.all(pc.equal(pc.fill_null(pc.binary_length(uids), 0), 32)).as_py():
            digits = bytes.fromhex("".join(uids.to_pylist()))
            if len(digits) == 16 * len(uids):
                return np.frombuffer(digits, dtype=">u8,>u8").astype(UID_TYPE)
    except ValueError:
        pass
    wrong = next((uid for uid in uids.to_pylist() if not _is_uid(uid)), None)
    raise InputError(
        f"{shortened(name)}: expected uids of 32 hexadecimal digits, got {shortened(repr(wrong))}; "
        "write a list of keys instead: -o keys.txt"
    )


def _is_uid(uid: str | None) -> bool:
    return uid is not None and len(uid) == 32 and all(digit in "0123456789abcdefABCDEF" for digit in uid)


def _writer(file: IO[bytes], schema: pa.Schema) -> AbstractContextManager[pq.ParquetWriter]:
    return pq.ParquetWriter(file, schema, compression="zstd")
