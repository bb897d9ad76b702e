"""Files of scores: score shards, folders of them, and outputs of `msdscore score` for one file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError, InputError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pc, pq
from msdscore.io.files import base_name, is_address, split_query
from msdscore.io.formats import open_records
from msdscore.io.shards import SIGNATURE_KEY, ShardFacts, shard_facts
from msdscore.io.tables import as_text
from msdscore.io.targets import RUN_NOTES

KEY_NAMES = ("key", "id")
UID = "uid"
Positions = npt.NDArray[np.int64]  # of rows in a file
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """One file of scores; `facts` are those of a score shard, None for the output of a run over one file.

    `path` is a local Parquet file with its rows: the file itself, or a copy of a remote or text file. `source` is the
    file that was scored, or the name of the scores if that is unknown.
    """

    name: str
    path: Path
    rows: int
    schema: pa.Schema
    source: str
    signature: str
    facts: ShardFacts | None

    @property
    def key_name(self) -> str:
        """The column of row keys."""
        names = [name for name in KEY_NAMES if name in self.schema.names]
        if not names:
            expected = " or ".join(KEY_NAMES)
            raise InputError(f"{self.name}: expected a column {expected}, got {', '.join(self.schema.names)}")
        return names[0]

    def texts(self, name: str, rows: Positions) -> list[Any]:
        """Return a column of the rows at these positions as text."""
        batches = parquet_rows(self.path, rows, [name])
        return [value for batch in batches for value in pc.cast(batch.column(0), pa.string()).to_pylist()]


def parquet_rows(
    path: Path, rows: Positions, columns: Sequence[str] | None = None, *, batch_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file at these positions, in ascending order; `batch_rows` are read at once."""
    start = 0
    with pq.ParquetFile(path, pre_buffer=False) as opened:
        # Without threads: read-ahead would load several row groups of all columns at once.
        for batch in opened.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False):
            first, end = np.searchsorted(rows, [start, start + len(batch)])
            if end > first:
                yield batch.take(pa.array(rows[first:end] - start))
            start += len(batch)


def open_scores(names: Sequence[str], folder: Path) -> list[ScoreFile]:
    """Open the files of these names, in order; a folder means the score shards in it.

    Remote files are fetched into `folder`, each once, and text files are converted there to Parquet.

    Raises:
        ConfigError: their signatures differ, so that their scores cannot be compared.
    """
    files: dict[str, ScoreFile] = {}
    for name in names:
        has_scores = False
        for path, shards_alone in _expanded(name):
            whole = path if is_address(path) else str(Path(path).resolve())
            if whole not in files:  # a repeated file counts once
                file = _opened(path, folder / str(len(files)))
                files |= {whole: file} if file.facts is not None or not shards_alone else {}
            has_scores |= whole in files
        if not has_scores:
            raise InputError(f"{shortened(name)}: expected score shards in this folder, found none; run msdscore score")
    signatures = list(dict.fromkeys(file.signature for file in files.values() if file.signature))
    if len(signatures) > 1:
        first = "; ".join(signatures[:3])
        raise ConfigError(
            f"expected scores of one signature, got {len(signatures)}: {first}; use one encoder, form and version"
        )
    return list(files.values())


def _expanded(name: str) -> Iterator[tuple[str, bool]]:
    """Yield the files of a name or pattern, and whether to skip files other than score shards, as in a folder."""
    is_folder = not is_address(name) and Path(name).is_dir()
    if not is_address(name) and Path(name).is_file():  # whatever characters are in its name
        yield name, False
    elif "{" in name and not is_folder:
        for path in stores.expand(name):
            yield from _expanded(path)
    elif "*" in name and not is_folder:
        yield from ((path, False) for path in stores.matching(name))
    elif not is_folder and (_is_parquet(name) or not is_address(name)):
        yield name, False
    else:
        for path in stores.matching(stores.join(escape(name) if is_folder else name, "*.parquet")):
            if not base_name(path).startswith("."):
                yield path, True


def _opened(name: str, copy: Path) -> ScoreFile:
    if not _is_parquet(name):
        return _from_text(name, copy)
    path = Path(name)
    try:
        if is_address(name):
            with stores.fetched(name) as fetched:
                path = fetched.replace(copy)
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        facts = shard_facts(schema)
    except FileNotFoundError as error:
        raise InputError(f"{shortened(name)}: no such file") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{shortened(name)}: cannot be read as Parquet ({error})") from error
    source = _run_metadata(name)[0] if facts is None else facts.source
    signature = (schema.metadata or {}).get(SIGNATURE_KEY, b"").decode()
    return ScoreFile(name, path, metadata.num_rows, schema, source, signature, facts)


def _from_text(name: str, copy: Path) -> ScoreFile:
    """Open the output of a run in a text format, with all values as text; its signature is in the run metadata."""
    with ExitStack() as stack:
        records = open_records(name, format=None, until=stack)
        first = [record.values for record in islice(records.read(), 100)]
        names = records.columns or tuple(dict.fromkeys(column for row in first for column in row))
        schema, count, rows = pa.schema([(column, pa.string()) for column in names]), 0, records.read()
        with pq.ParquetWriter(copy, schema) as writer:
            while batch := [record.values for record in islice(rows, _BATCH_ROWS)]:
                texts = [{column: as_text(row.get(column)) or None for column in names} for row in batch]
                writer.write_table(pa.Table.from_pylist(texts, schema))
                count += len(batch)
    return ScoreFile(name, copy, count, schema, *_run_metadata(name), facts=None)


def _run_metadata(name: str) -> tuple[str, str]:
    """Return the source and the signature in the run metadata of an output; its name and "" if they are unknown."""
    path, source, signature = Path(name), name, ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        metadata = json.loads(path.with_name(path.name + RUN_NOTES).read_text(encoding="utf-8"))
        source = str(metadata["source"])
        signature = str(metadata["manifest"]["signature"])
    return source, signature


def _is_parquet(name: str) -> bool:
    return split_query(name)[0].lower().endswith(".parquet")
