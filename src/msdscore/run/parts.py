"""Rows of a run in parts: planned with the rows of one image together, scored, and merged into one table."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice, pairwise
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, TypeAlias

import numpy as np

from msdscore.core.divergence import soften
from msdscore.core.evidence import verdict
from msdscore.errors import RowError, RunError
from msdscore.forms import references
from msdscore.forms.base import Form
from msdscore.forms.columns import COLUMNS
from msdscore.forms.columns import added as added_columns
from msdscore.forms.columns import numbers as number_names
from msdscore.io.arrow import pa
from msdscore.io.files import File, TarImage, source_key, text_key
from msdscore.io.images import Stamp
from msdscore.io.inputs.rows import Row
from msdscore.io.outputs.files import conform, unified
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Numbers
from msdscore.scoring.stream import Batch, split_pairs, stream_batches
from msdscore.text.warnings import withheld

WINDOW_ROWS = 1 << 16  # rows planned together: an image that is repeated within them is read once
FIRST_ROWS = 1024  # of the first window, for which scoring waits; each following one is twice as large
WINDOW_BYTES = 512 << 20  # of images that are bytes in memory
STORED_ROWS = 8192  # rows per stored table of input columns
STORED_BYTES = 256 << 20  # of input columns that are stored in memory; more are in a temporary file
SOFTENED_ROWS = 1 << 16  # rows whose candidate sets are computed together
MIXED = "its group holds several images, so its Soft-MSD compares captions of different images"
WORST = "worst_words"  # a list of the least supported words
_INPUT = "input_"  # prefix of an input column with the name of an added one
Scored: TypeAlias = list[Numbers | RowError]
Stamps: TypeAlias = Mapping[str, str]  # path of an image -> stamp of its content
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
RowValues: TypeAlias = tuple[Mapping[str, Any], int, str, bool, str | None]  # columns, index, id, has_id, caption


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are written together; `owner[i]` is the index of the image of row i, -1 if it only has references.

    `unusable` are rows that cannot be scored.
    """

    number: int
    rows: tuple[Row, ...] = ()
    images: tuple[File, ...] = ()
    owner: tuple[int, ...] = ()
    unusable: tuple[Row, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The image files of the rows to score."""
        return [image for image in self.images if isinstance(image, str)]

    def rows_key(self) -> str:
        """Return a hash of all values of all rows."""
        digest = blake2b(digest_size=8)
        for row in (*self.rows, *self.unusable):
            # Images that are bytes are part of the input, whose content the run knows.
            offset = row.source.offset if isinstance(row.source, TarImage) else None
            values = (row.index, offset, row.id, row.caption, row.group, row.columns, row.references, row.error)
            digest.update(f"{values!r}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def key(self, stamps: Stamps) -> str:
        """Return `rows_key` followed by a hash of the image files: parts with equal keys have equal scores."""
        images = "\n".join(stamps[path] for path in self.paths)
        return self.rows_key() + blake2b(images.encode(), digest_size=8).hexdigest()


def plan(
    rows: Iterable[Row], *, part_rows: int, window_rows: int = WINDOW_ROWS, window_bytes: int = WINDOW_BYTES
) -> Iterator[Part]:
    """Split rows into parts; the same rows give the same parts, whether or not their images exist.

    No rows give one empty part, so that an empty output has the usual columns.
    """
    stream, size, number = iter(rows), min(FIRST_ROWS, window_rows), 0
    while window := _window(stream, size, window_bytes):
        size = min(2 * size, window_rows)
        sets: dict[str | int, list[Row]] = {}  # rows of one image
        for row in window:
            sets.setdefault(_image_key(row), []).append(row)
        waiting, count = list[list[Row]](), 0
        for last, same_image in enumerate(sets.values(), start=1):
            waiting.append(same_image)
            count += len(same_image)
            if count >= part_rows or last == len(sets):
                yield _part(number, waiting)
                number, waiting, count = number + 1, [], 0
    if number == 0:
        yield Part(0)


def score_parts(
    pipeline: Pipeline,
    parts: Iterable[Part],
    *,
    worst: int = 0,
    stamp: Stamp | None = None,
    scored: Callable[[int], None] = lambda rows: None,
) -> Iterator[tuple[Part, Scored, dict[str, str]]]:
    """Yield each part with the numbers or the error of all its rows, and the stamps of its image files.

    The rows are those to score, then the unusable ones, as in `row_keys`; warnings of the input come before those of
    scoring. Stamps are computed from the bytes that were decoded; a file that could not be read has none. `scored` is
    called with the number of rows of each batch.
    """
    results, stamps = dict[int, Numbers | RowError](), dict[str, str]()
    for batch, rows, marks in stream_batches(pipeline, _batches(parts, pipeline), worst=worst, stamp=stamp):
        results.update(zip(batch.rows, rows, strict=True))
        stamps.update((str(image), mark) for image, mark in zip(batch.images, marks, strict=True) if mark is not None)
        scored(len(rows))
        if batch.is_last:
            for number, row in enumerate(batch.part.rows):
                if row.warning is not None and isinstance(result := results[number], Numbers):
                    results[number] = replace(result, warnings=(row.warning, *result.warnings))
            unusable = [RowError(row.error) for row in batch.part.unusable]
            yield batch.part, [*(results[number] for number in range(len(batch.part.rows))), *unusable], stamps
            results, stamps = {}, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartBatch(Batch):
    """A batch of a part: `rows` are the indices of its captions."""

    part: Part
    rows: list[int]
    is_last: bool


def _batches(parts: Iterable[Part], pipeline: Pipeline) -> Iterator[_PartBatch]:
    for part in parts:
        captions = [row.caption or "" for row in part.rows]
        references = [row.references for row in part.rows]
        if all(texts is None for texts in references):
            references = []
        split = split_pairs(part.images, captions, part.owner, size=pipeline.batch_size, references=references)
        if not split:  # no row can be scored
            split = [([], Batch((), (), ()))]
        for number, (rows, batch) in enumerate(split, start=1):
            yield _PartBatch(
                batch.images, batch.captions, batch.owner, batch.references,
                part=part, rows=rows, is_last=number == len(split),
            )  # fmt: skip


def _window(stream: Iterator[Row], most: int, most_bytes: int) -> list[Row]:
    rows, size = list[Row](), 0
    for row in islice(stream, most):
        rows.append(row)
        if isinstance(row.source, bytes):
            size += len(row.source)
            if size >= most_bytes:
                break
    return rows


def _image_key(row: Row) -> str | int:
    """Return what rows of one image have in common, whether or not the image exists."""
    if row.lookup is not None:
        return f"id {row.lookup}"
    if isinstance(row.source, TarImage):  # all rows are of one tar
        return row.source.offset
    return f"row {row.index}" if row.source is None else source_key(row.source)


def _part(number: int, sets: list[list[Row]]) -> Part:
    rows, images, owner, unusable = list[Row](), list[File](), list[int](), list[Row]()
    for same_image in sets:
        image = -1
        for row in same_image:
            if row.error is not None:
                unusable.append(row)
                continue
            if image < 0 and row.source is not None:
                image = len(images)
                images.append(row.source)
            rows.append(row)
            owner.append(image)
    return Part(number, tuple(rows), tuple(images), tuple(owner), tuple(unusable))


def row_keys(part: Part) -> pa.Table:
    """Return the index of every row of a part, the key of its candidate set and that of its image.

    Rows that cannot be scored come last and have no image.
    """
    # Shared by the rows of one image: its offset in the tar, else a hash of its name.
    keys = [image.offset if isinstance(image, TarImage) else text_key(source_key(image)) for image in part.images]
    images = [*(keys[image] if image >= 0 else None for image in part.owner), *[None] * len(part.unusable)]
    rows = (*part.rows, *part.unusable)
    groups = [_set_key(row, image) for row, image in zip(rows, images, strict=True)]
    columns = {"row": [row.index for row in rows], "group": groups, "image": images}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _set_key(row: Row, image: int | None) -> int | None:
    """Return the key of a row's candidate set: its group, else its list of captions, else its image."""
    if row.group is not None:
        return text_key(f"group {row.group}")
    return image if row.list_number is None else text_key(f"list {row.list_number}")


# Numbers of a row that depend only on its image, in files of parts.
STORED = tuple(name for name in number_names(tuple(COLUMNS)) if name not in ("uncertainty", "soft_msd"))


def part_table(keys: pa.Table, scored: Scored, *, words: bool = False) -> pa.Table:
    """Return the `row_keys` of a part with the numbers or errors of its rows.

    With `words` there is a column of the least supported words.
    """
    numbers = [result if isinstance(result, Numbers) else Numbers({}) for result in scored]
    errors = [str(result) if isinstance(result, RowError) else None for result in scored]
    columns: dict[str, Any] = {name: keys[name] for name in keys.column_names}
    columns["warnings"] = pa.array([row.warnings for row in numbers], pa.list_(pa.string()))
    columns["error"] = pa.array(errors, pa.string())
    if words:
        worst = [row.worst if error is None else None for row, error in zip(numbers, errors, strict=True)]
        columns[WORST] = pa.array(worst, pa.list_(pa.string()))
    present = {name for names in {tuple(row.values) for row in numbers} for name in names}
    for name in STORED:
        values = [row.values.get(name) for row in numbers] if name in present else [None] * len(numbers)
        columns[name] = pa.array(values, pa.int32() if COLUMNS[name].kind == "count" else pa.float64())
    return pa.table(columns)


def collect(parts: Iterable[pa.Table], form: Form) -> pa.Table:
    """Merge parts into one table of all rows in order, with the columns that scoring adds.

    Uncertainty and Soft-MSD are computed per candidate set; the worst words are included if the parts have them.
    """
    table = pa.concat_tables(parts).sort_by("row")
    count = len(table)
    group, image = (table[name].fill_null(0).to_numpy() for name in ("group", "image"))
    similarity, msd, match = (table[name].to_numpy() for name in ("similarity", "msd", "match"))
    good = np.flatnonzero(~np.isnan(msd))
    softened = np.full((2, count), np.nan)
    for rows in whole_sets(group, good, most=SOFTENED_ROWS):
        softened[:, rows] = soften(similarity[rows], msd[rows], group[rows], temperature=form.temperature)
    # Rows whose candidate set has captions of several images.
    sets, images = np.unique(np.unique(np.stack([group[good], image[good]]), axis=1)[0], return_counts=True)
    is_mixed = np.zeros(count, dtype=bool)
    is_mixed[good] = np.isin(group[good], sets[images > 1])
    warnings = table["warnings"].to_pylist()
    for row in np.flatnonzero(is_mixed).tolist():
        warnings[row].append(MIXED)
    verdicts = [
        None if np.isnan(value) else verdict(value, withheld=bool(withheld(row_warnings)))
        for value, row_warnings in zip(match.tolist(), warnings, strict=True)
    ]
    added = {
        "uncertainty": pa.array(softened[0], from_pandas=True),
        "soft_msd": pa.array(softened[1], from_pandas=True),
        "verdict": pa.array(verdicts, pa.string()),
        "warnings": pa.array(warnings, pa.list_(pa.string())) if is_mixed.any() else table["warnings"],
    }
    has_references = table[references.NAMES[0]].null_count < count
    names = list(added_columns(form.group, references=has_references))
    if WORST in table.column_names:
        names.insert(names.index("warnings"), WORST)
    return pa.table({name: added[name] if name in added else table[name] for name in names})


def whole_sets(group: Keys, rows: Keys, *, most: int) -> Iterator[Keys]:
    """Split rows into batches of at most `most` rows without splitting a candidate set, unless a set has more.

    >>> [rows.tolist() for rows in whole_sets(np.array([7, 5, 7, 5, 9]), np.arange(5), most=3)]
    [[1, 3], [0, 2, 4]]
    """
    ordered = rows[np.argsort(group[rows], kind="stable")]
    ends = [*(np.flatnonzero(np.diff(group[ordered])) + 1).tolist(), len(ordered)]
    start = 0
    for end, following in pairwise([*ends, ends[-1] + most + 1]):
        if following - start > most and end > start:
            yield ordered[start:end]
            start = end


class InputColumns:
    """Columns of the input, stored while its rows are scored, from which the output is built afterwards.

    `to_table` converts rows to a table. If the input has types (`typed`), all tables have those of the first one, else
    types that fit all values.
    """

    def __init__(self, to_table: Callable[[list[RowValues]], pa.Table], *, typed: bool = False) -> None:
        self.names, self.count = set[str](), 0  # columns and number of the rows so far
        self._to_table, self._typed = to_table, typed
        self._stored: list[tuple[int, pa.Schema]] = []  # offset of each table in the file
        self._file = SpooledTemporaryFile(max_size=STORED_BYTES)  # noqa: SIM115, closed with this

    def close(self) -> None:
        """Free memory and disk."""
        with suppress(OSError):  # a full disk was already reported
            self._file.close()

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the same rows, and store their columns."""
        waiting: list[RowValues] = []
        for row in rows:
            self.count += 1
            self.names.update(row.columns)
            waiting.append((row.columns, row.index, row.id, row.has_id, row.caption))
            if len(waiting) >= STORED_ROWS:
                self._store(waiting)
                waiting = []
            yield row
        if waiting or not self._stored:
            self._store(waiting)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the stored tables in order, cast to one schema."""
        schemas = [schema for _, schema in self._stored]
        common = schemas[0] if self._typed else unified(schemas)
        for offset, _ in self._stored:
            self._file.seek(offset)
            yield conform(pa.ipc.open_stream(self._file).read_all(), common)

    def _store(self, rows: list[RowValues]) -> None:
        table = self._to_table(rows)
        try:
            self._stored.append((self._file.tell(), table.schema))
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table)
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"{gettempdir()}: the columns of the input cannot be stored there ({error.strerror or error}); "
                "set TMPDIR to a folder with more space and run the command again, which resumes"
            ) from error


def renamed(names: Collection[str], added: Collection[str]) -> dict[str, str]:
    """Return new names of the input columns that have the name of an added one.

    >>> renamed(["caption", "msd", "input_msd"], ["msd", "error"])
    {'msd': 'input_input_msd'}
    """
    new_names: dict[str, str] = {}
    for name in sorted(set(names).intersection(added)):
        new_names[name] = _INPUT + name
        while new_names[name] in names or new_names[name] in added:
            new_names[name] = _INPUT + new_names[name]
    return new_names
