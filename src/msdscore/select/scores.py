"""Files of scores (score shards, folders of them, outputs of `msdscore score`), and the shards that were scored."""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError, InputError, MSDScoreError, RowError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pc, pq
from msdscore.io.files import TarImage, is_address, split_query
from msdscore.io.tables import as_text
from msdscore.rows.files import open_rows
from msdscore.rows.formats import open_records
from msdscore.rows.rules import Row
from msdscore.run.folder import SIGNATURE_KEY, Facts, file_facts, shard_facts

KEY_NAMES = ("key", "id")
UID = "uid"
Positions = npt.NDArray[np.int64]  # of rows in a file
Known = Mapping[int, tuple[str | None, str | None]]  # position of a row -> its key and caption in the scores
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
    facts: Facts | None

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
    for path in [name] if is_folder else stores.expand(name):
        if Path(path).is_dir() or (is_address(path) and not _is_parquet(path)):
            yield from ((file, True) for file in stores.in_folder(path, "*.parquet"))
        else:
            yield path, False


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
    source = file_facts(Path(name)).source or name if facts is None else facts.source
    signature = (schema.metadata or {}).get(SIGNATURE_KEY, b"").decode()
    return ScoreFile(name, path, metadata.num_rows, schema, source, signature, facts)


def _from_text(name: str, copy: Path) -> ScoreFile:
    """Open the output of a run in a text format, with all values as text; its signature is in the run metadata."""
    with ExitStack() as stack:
        records = open_records(name, format=None, until=stack)
        # Every row may have other columns, so that all are read twice.
        names = records.columns or tuple(dict.fromkeys(chain.from_iterable(record.values for record in records.read())))
        schema, count, rows = pa.schema([(column, pa.string()) for column in names]), 0, records.read()
        with pq.ParquetWriter(copy, schema) as writer:
            while batch := [record.values for record in islice(rows, _BATCH_ROWS)]:
                texts = [{column: as_text(row.get(column)) or None for column in names} for row in batch]
                writer.write_table(pa.Table.from_pylist(texts, schema))
                count += len(batch)
    run = file_facts(Path(name))
    return ScoreFile(name, copy, count, schema, run.source or name, run.signature, facts=None)


def _is_parquet(name: str) -> bool:
    return split_query(name)[0].lower().endswith(".parquet")


@contextmanager
def scored_source(facts: Facts, copy: str | None = None) -> Iterator[Path]:
    """Provide a local path to the shard that was scored, or to a copy of it.

    Raises:
        InputError: it is missing, unreadable, or has changed since.
    """
    source, kind = copy or facts.source, "tar" if facts.is_of_tar else "file"
    try:
        if stores.mark(source).partition("@")[0] != facts.fingerprint.partition("+")[0].partition("@")[0]:
            raise InputError(f"{shortened(source)}: is not the {kind} that was scored; score it again")
        with stores.fetched_shard(source) as path:
            yield path
    except (tarfile.TarError, pa.ArrowException) as error:
        raise InputError(f"{shortened(source)}: the scored {kind} cannot be read ({error})") from error
    except (FileNotFoundError, InputError) as error:
        if isinstance(error, InputError) and "no such file" not in str(error):
            raise
        hint = "run the command in the folder where it was scored, or score it by its absolute path"
        raise InputError(f"{shortened(source)}: the scored {kind} does not exist; {hint}") from error


def shard_rows(facts: Facts, known: Known, *, copy: str | None = None, images: Path | None = None) -> dict[int, Row]:
    """Return the rows of a scored shard at these positions; if it cannot be read, all have the error.

    `copy` is another location of the shard, `images` another folder of its images.
    """
    try:
        with scored_source(facts, copy) as path:
            rows = {row.index: row for row in rows_at(facts, path, known, images=images)}
            if path == Path(copy or facts.source):
                return rows
            # A copy of a remote tar exists only within this block.
            sources = {index: row.image.read() for index, row in rows.items() if isinstance(row.image, TarImage)}
            return {index: row._replace(image=sources.get(index, row.image)) for index, row in rows.items()}
    except MSDScoreError as error:
        reason = str(error).partition(";")[0]  # what to do about it differs from command to command
        return {index: Row(None, "", None, None, "", {}, error=RowError(reason), index=index) for index in known}


def rows_at(facts: Facts, path: Path, known: Known, *, images: Path | None = None) -> Iterator[Row]:
    """Yield the rows of a shard at these positions, with their images.

    Raises:
        InputError: the shard has another key or caption at one of the positions.
    """
    left, kind = dict(known), "tar" if facts.is_of_tar else "file"
    with open_rows(path, images=images or facts.folder, columns=facts.columns, hashed=False) as source:
        for row in source.read_at(known):
            key, caption = left.pop(row.index)
            is_other = None not in (caption, row.caption) and row.caption != caption
            if is_other or (facts.is_of_tar and str(row.columns.get("key") or row.id) != key):
                what = f"row {row.index} is not {key!r} as it was scored"
                raise InputError(f"{shortened(str(path))}: {what}; score the {kind} again")
            yield row
    if left:
        raise InputError(f"{shortened(str(path))}: has fewer rows than were scored; score the {kind} again")
