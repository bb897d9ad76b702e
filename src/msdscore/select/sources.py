"""The shards that were scored: their rows by position, and copies of the selected ones."""

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import InputError, MSDScoreError, shortened
from msdscore.io import stores
from msdscore.io.inputs.columns import ColumnNames
from msdscore.io.inputs.rows import Row, open_rows
from msdscore.io.inputs.tables import ParquetTable
from msdscore.io.outputs.shards import ShardFacts
from msdscore.io.tar import TarImage, sample_key
from msdscore.select.scores import Positions, ScoreFile, parquet_rows

_COPIED_ROWS = 64  # of a Parquet file that are read at once; they may contain images
_GROUP_BYTES = 64 << 20  # of a row group of a new Parquet file
Known = Mapping[int, tuple[str | None, str | None]]  # position of a row -> its key and caption in the scores


@contextmanager
def scored_source(facts: ShardFacts, copy: str | None = None) -> Iterator[Path]:
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


def shard_rows(
    facts: ShardFacts, known: Known, *, copy: str | None = None, images: Path | None = None
) -> dict[int, Row]:
    """Return the rows of a scored shard at these positions; if it cannot be read, all have the error.

    `copy` is another location of the shard, `images` another folder of its images.
    """
    try:
        with scored_source(facts, copy) as path:
            rows = {row.index: row for row in rows_at(facts, path, known, images=images)}
            if path == Path(copy or facts.source):
                return rows
            # A copy of a remote tar exists only within this block.
            sources = {index: row.source.read() for index, row in rows.items() if isinstance(row.source, TarImage)}
            return {index: row._replace(source=sources.get(index, row.source)) for index, row in rows.items()}
    except MSDScoreError as error:
        reason = str(error).partition(";")[0]  # what to do about it differs from command to command
        return {index: Row(index, "", None, None, None, {}, error=reason) for index in known}


def rows_at(facts: ShardFacts, path: Path, known: Known, *, images: Path | None = None) -> Iterator[Row]:
    """Yield the rows of a shard at these positions, with their images.

    Raises:
        InputError: the shard has another key or caption at one of the positions.
    """
    left, kind, options = dict(known), "tar" if facts.is_of_tar else "file", facts.options
    names = ColumnNames(**options.get("columns", {}))
    with open_rows(path, images=images or options.get("images"), columns=names, hashed=False) as source:
        for row in source.read_at(known):
            key, caption = left.pop(row.index)
            is_other = None not in (caption, row.caption) and row.caption != caption
            if is_other or (facts.is_of_tar and str(row.columns.get("key") or row.id) != key):
                what = f"row {row.index} is not {key!r} as it was scored"
                raise InputError(f"{shortened(str(path))}: {what}; score the {kind} again")
            yield row
    if left:
        raise InputError(f"{shortened(str(path))}: has fewer rows than were scored; score the {kind} again")


def copy_samples(file: ScoreFile, tar: Path, rows: Positions, out: IO[bytes]) -> None:
    """Write all files of the samples of the selected rows, in their order."""
    assert file.facts is not None
    captions = file.texts("caption", rows) if "caption" in file.schema.names else [None] * len(rows)
    known = dict(zip(rows.tolist(), zip(file.texts(file.key_name, rows), captions, strict=True), strict=True))
    images = (row.source for row in rows_at(file.facts, tar, known))
    offsets = {image.offset for image in images if isinstance(image, TarImage)}
    with tarfile.open(tar, "r:") as given, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as written:
        for sample in _samples(given):
            if any(member.offset_data in offsets for member in sample):
                for member in sample:
                    written.addfile(member, given.extractfile(member))


def copy_rows(file: ScoreFile, source: Path, rows: Positions, out: IO[bytes]) -> None:
    """Write the source rows of the selected captions with all their columns and the schema of the source."""
    schema, waiting = pq.read_schema(source), list[pa.RecordBatch]()
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in parquet_rows(source, _source_rows(file, source, rows), batch_rows=_COPIED_ROWS):
            waiting.append(batch)
            if sum(part.nbytes for part in waiting) >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))


def _source_rows(file: ScoreFile, source: Path, rows: Positions) -> Positions:
    """Return the rows of a Parquet file that selected scores belong to; a list of captions is one row of the file.

    Raises:
        InputError: the file has another caption at one of the positions.
    """
    assert file.facts is not None
    names: Mapping[str, str | None] = file.facts.options.get("columns", {})
    caption = ColumnNames(**names).find("caption", pq.read_schema(source).names)
    if caption is None:
        raise InputError(f"{shortened(str(source))}: no longer has a caption column; score the file again")
    known = dict(zip(rows.tolist(), file.texts("caption", rows), strict=True))
    position, numbers = 0, dict[int, None]()
    for number, record in enumerate(ParquetTable(source, only=[caption]).read()):
        value = record.values.get(caption)
        for text in (value or [None]) if isinstance(value, list) else [value]:
            if position in known:
                numbers[number] = None
                if text != known.pop(position):
                    what = f"row {number} does not have the caption that was scored"
                    raise InputError(f"{shortened(str(source))}: {what}; score the file again")
            position += 1
    if known:
        raise InputError(f"{shortened(str(source))}: has fewer rows than were scored; score the file again")
    return np.fromiter(numbers, dtype=np.int64)


def _samples(given: tarfile.TarFile) -> Iterator[list[tarfile.TarInfo]]:
    """Yield the files of each sample, grouped as for scoring; a truncated tar ends at its last complete file."""
    sample, endings = list[tarfile.TarInfo](), set[str]()
    members = iter(given)
    last = next(members, None)
    while last is not None:
        try:
            following = next(members, None)  # raises if the last one is truncated
        except tarfile.ReadError:
            break
        base = PurePosixPath(last.name).name
        if last.isfile() and not base.startswith("."):
            ending = base.partition(".")[2].lower()
            if sample and (sample_key(last.name) != sample_key(sample[0].name) or ending in endings):
                yield sample
                sample, endings = [], set()
            sample.append(last)
            endings.add(ending)
        last = following
    if sample:
        yield sample
