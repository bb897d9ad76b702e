"""The rows of one shard while they are scored, and the table of its scores."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.engine.assemble import COUNTS, MIXED, Keys, in_mixed_sets
from msdscore.engine.plan import image_name
from msdscore.errors import RowError
from msdscore.io.hashing import text_key
from msdscore.io.inputs.columns import first_of
from msdscore.io.inputs.rows import Row
from msdscore.io.outputs.shards import FAILED, SCORED
from msdscore.io.outputs.tables import table_from_columns
from msdscore.io.tar import TarImage
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import NUMBERS, Numbers, soften
from msdscore.scoring.score import COLUMNS

_REASONS = 3  # of failed rows, that a shard's facts name
_TEXTS = ("warnings", "error")
_NUMBERS_OF = attrgetter(*NUMBERS)


class ShardRows:
    """Everything that a shard's scores hold, by row: names as rows are read, numbers as they come."""

    def __init__(self, copied: Sequence[str] = ()) -> None:
        self._copied = tuple(copied)
        self._keys: list[str] = []
        self._uids: list[str | None] = []
        self._captions: list[str | None] = []
        self._others: list[dict[str, Any]] = []
        # One row per name, with room for more rows of the shard than came.
        self._numbers = np.full((len(NUMBERS), 0), np.nan)
        self._groups, self._pictures = array("q"), array("q")
        self._words: dict[int, tuple[str, ...]] = {}
        self._warnings: dict[int, str] = {}
        self._errors: dict[int, str] = {}

    @property
    def failed(self) -> int:
        """How many rows have a reason instead of numbers."""
        return len(self._errors)

    @property
    def warned(self) -> int:
        """How many rows have warnings; known when the table was made."""
        return len(self._warnings)

    def reasons(self) -> tuple[str, ...]:
        """The first reasons of failed rows."""
        return tuple(self._errors[row] for row in sorted(self._errors)[:_REASONS])

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows, remembered by name on their way."""
        for row in rows:
            self._keys.append(str(_value(row, "key") or row.id))
            uid = _value(row, "uid")
            self._uids.append(None if uid is None else str(uid))
            self._captions.append(row.caption)
            if self._copied:
                self._others.append({name: row.columns.get(name) for name in self._copied})
            picture = _picture(row)
            self._pictures.append(picture)
            self._groups.append(picture if row.group is None else text_key(f"group {row.group}"))
            if row.error is not None:
                self._errors[row.index] = row.error
            elif row.warning is not None:
                self._warnings[row.index] = row.warning
            yield row

    def put(self, rows: Sequence[int], found: Sequence[Numbers | RowError]) -> None:
        """The numbers of some rows, or their reasons."""
        good, told = [], []
        for row, one in zip(rows, found, strict=True):
            if isinstance(one, RowError):
                self._errors[row] = str(one)
                self._warnings.pop(row, None)
                continue
            good.append(row)
            told.append(_NUMBERS_OF(one))
            self._words[row] = one.worst
            if one.warnings:
                self._warnings[row] = "; ".join(filter(None, [self._warnings.get(row), *one.warnings]))
        if good:
            self._make_room()
            self._numbers[:, good] = np.array(told, dtype=np.float64).T  # None becomes NaN

    def table(self, config: MSDConfig) -> pa.Table:
        """All rows in order, with uncertainty and Soft-MSD of their candidate sets."""
        self._make_room()
        count = len(self._keys)
        numbers = dict(zip(NUMBERS, self._numbers[:, :count], strict=True))
        numbers |= self._softened(numbers, config)
        status = [FAILED if row in self._errors else SCORED for row in range(count)]
        words = [list(self._words[row]) if row in self._words else None for row in range(count)]
        columns = {
            "key": pa.array(self._keys, pa.string()),
            "uid": pa.array(self._uids, pa.string()),
            "caption": pa.array(self._captions, pa.string()),
            **{name: _number_column(name, numbers[name]) for name in COLUMNS if name not in _TEXTS},
            "worst_words": pa.array(words, pa.list_(pa.string())),
            "warnings": pa.array([self._warnings.get(row) for row in range(count)], pa.string()),
            "status": pa.array(status, pa.string()),
            "error": pa.array([self._errors.get(row) for row in range(count)], pa.string()),
        }
        return self._with_copied(pa.table(columns))

    def _make_room(self) -> None:
        """Room for the numbers of all rows that were read; doubled where it is short."""
        held, needed = self._numbers.shape[1], len(self._keys)
        if needed > held:
            more = np.full((len(NUMBERS), max(needed, 2 * held) - held), np.nan)
            self._numbers = np.concatenate([self._numbers, more], axis=1)

    def _with_copied(self, table: pa.Table) -> pa.Table:
        if not self._others:
            return table
        copied = table_from_columns(self._others)
        for name in self._copied:
            column = copied.column(name)
            kept = f"input_{name}" if name in table.column_names else name
            table = table.append_column(kept, column.cast(pa.string()) if pa.types.is_null(column.type) else column)
        return table

    def _softened(self, numbers: dict[str, Any], config: MSDConfig) -> dict[str, Any]:
        good = np.flatnonzero(~np.isnan(numbers["msd"]))
        groups = _integers(self._groups)
        similarity, divergence, information = (
            numbers[name][good].tolist() for name in ("similarity", "divergence", "information")
        )
        found = soften(similarity, divergence, information, groups[good].tolist(), config)
        self._warn_of_mixed(groups, good)
        softened = {name: np.full(len(groups), np.nan) for name in ("uncertainty", "soft_msd")}
        for values, some in zip(softened.values(), found, strict=True):
            values[good] = some
        return softened

    def _warn_of_mixed(self, groups: Keys, good: Keys) -> None:
        for row in in_mixed_sets(groups, _integers(self._pictures), good):
            self._warnings[row] = "; ".join(filter(None, [self._warnings.get(row), MIXED]))


def _integers(values: "array[int]") -> Keys:
    return np.array(values, dtype=np.int64)


def _value(row: Row, name: str) -> Any:
    found = first_of(row.columns, (name,))
    return None if found is None else row.columns[found]


def _picture(row: Row) -> int:
    """A number that rows of one picture share: its place in the tar, else a hash of its name; 0 without a picture."""
    if isinstance(row.image, TarImage):
        return row.image.offset
    return 0 if row.image is None else text_key(image_name(row))


def _number_column(name: str, values: Any) -> pa.Array:
    column = pa.array(values, mask=np.isnan(values))
    return column.cast(pa.int32()) if name in COUNTS else column
