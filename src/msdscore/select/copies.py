"""New shards: the selected rows of scored tars and Parquet files, with all their columns and their scores."""

import json
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from msdscore.errors import InputError, shortened
from msdscore.forms.registry import COLUMNS
from msdscore.io.arrow import pa, pq
from msdscore.io.files import TarImage
from msdscore.rows.formats import ParquetTable
from msdscore.rows.rules import Row, first_of
from msdscore.rows.tars import CAPTION_LISTS, sample_key
from msdscore.run.folder import SIGNATURE_KEY
from msdscore.run.parts import WORST
from msdscore.run.rows import renamed
from msdscore.select.scores import Positions, ScoreFile, parquet_rows, rows_at

_COPIED_ROWS = 64  # of a Parquet file that are read at once; they may contain images
_GROUP_BYTES = 64 << 20  # of a row group of a new Parquet file


def added_columns(file: ScoreFile) -> list[str]:
    """Return the columns of a score shard that new shards have: those that scoring added."""
    return [name for name in file.schema.names if name != "error" and (name in COLUMNS or name == WORST)]


def copy_rows(file: ScoreFile, source: Path, rows: Positions, out: IO[bytes]) -> None:
    """Write the rows of the selected captions with all their columns and their scores.

    Of a list of captions the selected ones are written; their scores are lists in the same order.
    """
    caption, numbers = _source_rows(file, source, rows)
    scores = _rows_of(file, rows, added_columns(file))
    wanted = np.unique(numbers)
    schema = pq.read_schema(source)
    changed: dict[str, pa.Array] = {}
    if pa.types.is_nested(schema.field(caption).type):
        ends = pa.array([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)], pa.int32())
        scores = pa.table({name: _grouped(scores[name], ends) for name in scores.column_names})
        texts = pa.chunked_array([pa.array(file.texts("caption", rows), pa.string())])
        changed[caption] = _grouped(texts, ends).cast(schema.field(caption).type)
    new_names = renamed(schema.names, scores.column_names)
    fields = [entry.with_name(new_names.get(entry.name, entry.name)) for entry in schema]
    metadata = {**(schema.metadata or {}), SIGNATURE_KEY: file.signature.encode()}
    written = pa.schema([*fields, *scores.schema], metadata=metadata)
    start, waiting = 0, list[pa.Table]()
    with pq.ParquetWriter(out, written, compression="zstd") as writer:
        for batch in parquet_rows(source, wanted, batch_rows=_COPIED_ROWS):
            columns = [
                changed[name].slice(start, len(batch)) if name in changed else batch.column(name)
                for name in schema.names
            ]
            waiting.append(pa.table([*columns, *scores.slice(start, len(batch)).columns], schema=written))
            start += len(batch)
            if sum(part.nbytes for part in waiting) >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _rows_of(file: ScoreFile, rows: Positions, names: Sequence[str]) -> pa.Table:
    """Return columns of a score shard at these positions."""
    batches = list(parquet_rows(file.path, rows, names))
    # A batch has the columns in the order of the file.
    schema = pa.schema([entry for entry in file.schema.remove_metadata() if entry.name in names])
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def _grouped(column: pa.ChunkedArray, ends: pa.Array) -> pa.Array:
    """Return the lists of values between these positions."""
    return pa.ListArray.from_arrays(ends, column.combine_chunks())


def _source_rows(file: ScoreFile, source: Path, rows: Positions) -> tuple[str, Positions]:
    """Return the caption column of a Parquet file, and its row for each of the selected scores.

    Raises:
        InputError: the file has another caption at one of the positions.
    """
    assert file.facts is not None
    caption = file.facts.columns.find("caption", pq.read_schema(source).names)
    if caption is None:
        raise InputError(f"{shortened(str(source))}: no longer has a caption column; score the file again")
    known = dict(zip(rows.tolist(), file.texts("caption", rows), strict=True))
    position, numbers = 0, list[int]()
    for number, record in enumerate(ParquetTable(source, only=[caption]).read()):
        value = record.values.get(caption)
        for text in (value or [None]) if isinstance(value, list) else [value]:
            if position in known:
                numbers.append(number)
                if text != known.pop(position):
                    what = f"row {number} does not have the caption that was scored"
                    raise InputError(f"{shortened(str(source))}: {what}; score the file again")
            position += 1
    if known:
        raise InputError(f"{shortened(str(source))}: has fewer rows than were scored; score the file again")
    return caption, np.array(numbers, dtype=np.int64)


def write_sample_scores(file: ScoreFile, tar: Path, rows: Positions, out: IO[bytes]) -> None:
    """Write the table next to a new tar: a row per selected caption, with its metadata and its scores.

    The metadata is that of the table next to the scored tar. Without one, there are key, uid and caption.
    """
    metadata = _sample_metadata(file, tar, rows)
    names = [name for name in ("key", "uid", "caption") if name in file.schema.names]
    scores = _rows_of(file, rows, [*names, *added_columns(file)])
    signed = {SIGNATURE_KEY: file.signature.encode()}  # not read as metadata of the tar
    if metadata is not None:
        new_names = renamed(metadata.column_names, added_columns(file))
        metadata = metadata.rename_columns([new_names.get(name, name) for name in metadata.column_names])
        keys = [scores["key"]] if "key" not in metadata.column_names else []
        added = scores.select(added_columns(file))
        scores = pa.table(
            [*keys, *metadata.columns, *added.columns],
            names=[*(["key"] if keys else []), *metadata.column_names, *added.column_names],
        )
        signed = {b"msdscore.signature": file.signature.encode()}
    pq.write_table(scores.replace_schema_metadata(signed), out, compression="zstd")


def _sample_metadata(file: ScoreFile, tar: Path, rows: Positions) -> pa.Table | None:
    """Return the row of the tar's metadata table for each of these scores; None if it has no such table."""
    path = tar.with_suffix(".parquet")
    schema = pq.read_schema(path) if path.is_file() else pa.schema([])
    key_name = first_of(schema.names, ("key", "uid"))
    if key_name is None or SIGNATURE_KEY in (schema.metadata or {}):
        return None
    table = pq.read_table(path)
    number_of = {str(value): number for number, value in enumerate(table[key_name].to_pylist())}
    keys = file.texts(file.key_name, rows)
    uids = file.texts("uid", rows) if "uid" in file.schema.names else [None] * len(keys)
    numbers = [
        next((number_of[name] for name in (key, PurePosixPath(key or "").name, uid) if name in number_of), None)
        for key, uid in zip(keys, uids, strict=True)
    ]
    return table.take(pa.array(numbers, pa.int64()))


def copy_samples(file: ScoreFile, tar: Path, rows: Positions, out: IO[bytes]) -> None:
    """Write all files of the samples of the selected rows, in their order; of a list of captions the selected ones."""
    assert file.facts is not None
    captions = file.texts("caption", rows) if "caption" in file.schema.names else [None] * len(rows)
    known = dict(zip(rows.tolist(), zip(file.texts(file.key_name, rows), captions, strict=True), strict=True))
    by_offset: dict[int, list[Row]] = {}
    for row in rows_at(file.facts, tar, known):
        if isinstance(row.image, TarImage):
            by_offset.setdefault(row.image.offset, []).append(row)
    with tarfile.open(tar, "r:") as given, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as written:
        for sample in _samples(given):
            selected = [by_offset[member.offset_data] for member in sample if member.offset_data in by_offset]
            for member in sample if selected else ():
                content = given.extractfile(member)
                if content is not None and member.name.lower().endswith(".json"):
                    data = _selected_captions(content.read(), selected[0])
                    member.size, content = len(data), BytesIO(data)
                    member.pax_headers = {name: text for name, text in member.pax_headers.items() if name != "size"}
                written.addfile(member, content)


def _selected_captions(content: bytes, rows: Sequence[Row]) -> bytes:
    """Return the JSON of a sample with the captions of these rows only; unchanged if it has no list of captions."""
    try:
        values = json.loads(content)
    except ValueError:
        return content
    name = next((name for name in CAPTION_LISTS if isinstance(values, dict) and isinstance(values.get(name), list)), "")
    numbers = [row.id.rpartition("#")[2] for row in rows]
    if not name or not all(number.isdecimal() and int(number) < len(values[name]) for number in numbers):
        return content
    items: list[Any] = [values[name][int(number)] for number in numbers]
    texts = [item.get("raw") if isinstance(item, dict) else item for item in items]
    if len(items) == len(values[name]) or texts != [row.caption for row in rows]:
        return content  # all are selected, or the captions are from another file of the sample
    return json.dumps(values | {name: items}, ensure_ascii=False).encode()


def _samples(given: tarfile.TarFile) -> Iterator[list[tarfile.TarInfo]]:
    """Yield the files of each sample, grouped as for scoring; a truncated tar ends at its last complete file."""
    sample, endings = list[tarfile.TarInfo](), set[str]()
    for member in _complete(given):
        base = PurePosixPath(member.name).name
        if not member.isfile() or base.startswith("."):
            continue
        ending = base.partition(".")[2].lower()
        if sample and (sample_key(member.name) != sample_key(sample[0].name) or ending in endings):
            yield sample
            sample, endings = [], set()
        sample.append(member)
        endings.add(ending)
    if sample:
        yield sample


def _complete(given: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar up to the last complete one; reading on after a truncated one fails."""
    members = iter(given)
    member = next(members, None)
    while member is not None:
        try:
            following = next(members, None)
        except tarfile.ReadError:
            return
        yield member
        member = following
