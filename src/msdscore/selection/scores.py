"""Scored files as a stream of rows: score shards, folders of them, and what `msdscore score` writes for one file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from msdscore.errors import ConfigError, InputError, shortened, unknown_name
from msdscore.io import stores
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.shards import expand
from msdscore.io.outputs.manifest import RUN_NOTES
from msdscore.io.outputs.shards import SIGNATURE_KEY, ShardFacts, facts_of

Floats = npt.NDArray[np.float64]
KEY_NAMES = ("key", "id")
UID = "uid"
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """One file of scores; `facts` are those of a score shard, None for the output of a run over one file."""

    name: str
    rows: int
    schema: pa.Schema
    signature: str
    facts: ShardFacts | None

    @property
    def key_name(self) -> str:
        """The column that names its rows."""
        found = [name for name in KEY_NAMES if name in self.schema.names]
        if not found:
            raise InputError(f"{self.name}: expected a column {' or '.join(KEY_NAMES)}, got {_names(self.schema)}")
        return found[0]


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """Consecutive rows of one file; `start` is the number of the first among all rows of all files."""

    file: ScoreFile
    start: int
    table: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def numbers(self, name: str) -> Floats:
        """A column as numbers; NaN where there is none."""
        column = self.table.column(self.table.schema.get_field_index(name))
        try:
            return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
        except pa.ArrowException as error:
            raise ConfigError(
                f"{self.file.name}: column {name} holds no numbers ({column.type}); choose another"
            ) from error

    def texts(self, name: str) -> pa.Array:
        """A column as texts."""
        column = self.table.column(self.table.schema.get_field_index(name))
        try:
            return column if pa.types.is_string(column.type) else pc.cast(column, pa.string())
        except pa.ArrowException as error:
            raise ConfigError(
                f"{self.file.name}: column {name} holds neither texts nor numbers ({column.type}); choose another"
            ) from error


def open_scores(names: Sequence[str]) -> list[ScoreFile]:
    """The files that the names stand for, in order; a folder stands for the score shards in it.

    Raises:
        ConfigError: they were made with different signatures, so that their numbers cannot be compared.
    """
    found = [file for name in names for file in _found(name)]
    files = list({_whole_name(file.name): file for file in found}.values())  # a file that is named twice counts once
    signatures = list(dict.fromkeys(file.signature for file in files if file.signature))
    if len(signatures) > 1:
        raise ConfigError(
            f"expected scores of one signature, got {len(signatures)}: {'; '.join(signatures[:3])}; "
            "select from each apart"
        )
    return files


def read_scores(files: Sequence[ScoreFile], columns: Sequence[str] | None) -> Iterator[ScoreRows]:
    """All rows of all files in order, some tens of thousands at a time, with the columns asked for (None: all)."""
    start = 0
    for file in files:
        for table in _batches(file, columns):
            yield ScoreRows(file, start, table)
            start += table.num_rows


def require_columns(files: Sequence[ScoreFile], names: Sequence[str]) -> None:
    """Refuse a column that one of the files does not have, with those that it has."""
    for file in files:
        for name in names:
            if name not in file.schema.names:
                raise unknown_name(f"column of {shortened(file.name)}", name, file.schema.names)


def _found(name: str) -> list[ScoreFile]:
    if "{" in name:
        return [file for one in expand(name) for file in _found(one)]
    if "*" in name:
        return [_parquet(found) for found in stores.matching(name)]
    if _is_parquet(name):
        return [_parquet(name)]
    if not stores.is_address(name) and not Path(name).is_dir():
        return [_records(name)]
    found = [path for path in stores.matching(stores.join(name, "*.parquet")) if stores.base_name(path)[0] != "."]
    shards = [file for path in found if (file := _parquet(path)).facts is not None]
    if not shards:
        raise InputError(f"{shortened(name)}: expected score shards in this folder, found none; run msdscore score")
    return shards


def _parquet(name: str) -> ScoreFile:
    try:
        with stores.fetched(name) as path:
            metadata = pq.read_metadata(path)
    except FileNotFoundError as error:
        raise InputError(f"{shortened(name)}: no such file") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{shortened(name)}: cannot be read as Parquet ({error})") from error
    schema = metadata.schema.to_arrow_schema()
    signature = (schema.metadata or {}).get(SIGNATURE_KEY, b"").decode()
    return ScoreFile(name, metadata.num_rows, schema, signature, facts_of(schema))


def _records(name: str) -> ScoreFile:
    """The output of a run as text; its signature stands in the run metadata beside it."""
    with ExitStack() as stack:
        records = open_records(name, format=None, until=stack)
        first = [record.values for record in islice(records.read(), 100)]
        names = records.columns or tuple(dict.fromkeys(column for row in first for column in row))
        # Types are found as columns are asked for: text files give text.
        schema = pa.schema([pa.field(column, pa.string()) for column in names])
        return ScoreFile(name, records.count(), schema, _noted_signature(Path(name)), None)


def _noted_signature(path: Path) -> str:
    try:
        notes = json.loads(path.with_name(path.name + RUN_NOTES).read_text(encoding="utf-8"))
        return str(notes["manifest"]["signature"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _batches(file: ScoreFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    wanted = None if columns is None else [name for name in dict.fromkeys(columns) if name in file.schema.names]
    if not _is_parquet(file.name):
        yield from _record_batches(file, wanted)
        return
    with stores.fetched(file.name) as path, pq.ParquetFile(path) as opened:
        # Without threads: reading ahead holds several row groups of all columns at once.
        yield from opened.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False)


def _record_batches(file: ScoreFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    names = list(file.schema.names if columns is None else columns)
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    with ExitStack() as stack:
        rows = open_records(file.name, format=None, until=stack).read()
        while some := [record.values for record in islice(rows, BATCH_ROWS)]:
            yield pa.RecordBatch.from_pylist([{name: _text(row.get(name)) for name in names} for row in some], schema)


def _is_parquet(name: str) -> bool:
    return name.lower().partition("?")[0].endswith(".parquet")


def _whole_name(name: str) -> str:
    return name if stores.is_address(name) else str(Path(name).resolve())


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _names(schema: pa.Schema) -> str:
    return ", ".join(schema.names)
