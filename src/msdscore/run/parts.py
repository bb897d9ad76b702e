"""Parts of a run: rows of one image together, scored unless an earlier run has, and merged into one table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain, islice, pairwise
from typing import Any, TypeAlias

import numpy as np

from msdscore.core.divergence import soften
from msdscore.core.evidence import VERDICT_AT, verdict
from msdscore.errors import RowError
from msdscore.forms import references
from msdscore.forms.base import Form
from msdscore.forms.columns import COLUMNS
from msdscore.forms.columns import added as added_columns
from msdscore.forms.columns import numbers as number_names
from msdscore.io.arrow import pa, pc
from msdscore.io.files import File, TarImage, content_stamp, file_stamp, source_key, text_key
from msdscore.io.runs import Run
from msdscore.rows.rules import Row
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Numbers
from msdscore.scoring.stream import Batch, split_pairs, stream_batches
from msdscore.text.warnings import withheld

WINDOW_ROWS = 1 << 16  # rows planned together: an image that is repeated within them is read once
FIRST_ROWS = 1024  # of the first window, for which scoring waits; each following one is twice as large
WINDOW_BYTES = 512 << 20  # of images that are bytes in memory
SOFTENED_ROWS = 1 << 16  # rows whose candidate sets are computed together
READERS = 8  # threads that read image files of finished parts
MIXED = "its group holds several images, so its Soft-MSD compares captions of different images"
WORST = "worst_words"  # a list of the least supported words
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


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
            offset = row.image.offset if isinstance(row.image, TarImage) else None
            values = (row.index, offset, row.id, row.caption, row.set, row.columns, row.references, row.error)
            digest.update(f"{values!r}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def key(self, stamps: Mapping[str, str]) -> str:
        """Return `rows_key` followed by a hash of the stamps of the image files: equal keys mean equal scores."""
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


def _window(stream: Iterator[Row], most: int, most_bytes: int) -> list[Row]:
    """Read up to `most` rows, or until their images in memory have `most_bytes`."""
    rows, size = list[Row](), 0
    for row in islice(stream, most):
        rows.append(row)
        if isinstance(row.image, bytes):
            size += len(row.image)
            if size >= most_bytes:
                break
    return rows


def _image_key(row: Row) -> str | int:
    """Return what rows of one image have in common, whether or not the image exists."""
    if row.lookup is not None:
        return f"id {row.lookup}"
    if isinstance(row.image, TarImage):  # all rows are of one tar
        return row.image.offset
    return source_key(row.image) if isinstance(row.image, File) else f"row {row.index}"


def _part(number: int, sets: list[list[Row]]) -> Part:
    """Build a part from the rows of each image."""
    rows, images, owner, unusable = list[Row](), list[File](), list[int](), list[Row]()
    for same_image in sets:
        image = -1
        for row in same_image:
            if row.error is not None:
                unusable.append(row)
                continue
            if image < 0 and isinstance(row.image, File):
                image = len(images)
                images.append(row.image)
            rows.append(row)
            owner.append(image)
    return Part(number, tuple(rows), tuple(images), tuple(owner), tuple(unusable))


def score_missing(
    run: Run,
    pipeline: Pipeline,
    parts: Iterable[Part],
    *,
    worst: int | None,
    verify: bool,
    retry: bool,
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[list[str], int, int]:
    """Score and write the parts that an earlier run has not written from the same rows and images.

    Return the keys of all parts in order, the number of rows scored, and that of rows that were scored before. Unless
    `worst` is None, there is a column with up to that many of the least supported words. `verify` hashes image files
    of any size, `retry` scores parts with failed rows again. `progress` is called with the number of rows done.
    """
    written, keys, scored, earlier = run.keys(), dict[int, str](), 0, 0
    for number in _failed_parts(run, list(written)) if retry else ():
        run.drop(number)
        del written[number]

    def unfinished() -> Iterator[Part]:
        nonlocal earlier
        with ThreadPoolExecutor(READERS) as pool:
            for part in parts:
                key = part.key(stamps_of(part.paths, pool, verify=verify)) if part.number in written else None
                if key is None or key != written[part.number]:
                    yield part
                    continue
                keys[part.number] = key
                earlier += len(part.rows)
                progress(scored + earlier)

    progress(0)
    results, stamps = dict[int, Numbers | RowError](), dict[str, str]()  # of the rows and images of one part
    batches, stamp = _batches(unfinished(), pipeline), partial(content_stamp, verify=verify)
    for batch, numbers, marks in stream_batches(pipeline, batches, worst=worst or 0, stamp=stamp):
        results.update(zip(batch.rows, numbers, strict=True))
        stamps.update((str(image), mark) for image, mark in zip(batch.images, marks, strict=True) if mark is not None)
        scored += len(numbers)
        progress(scored + earlier)
        if batch.is_last:
            part = batch.part
            # Stamps are computed from the bytes that were decoded; a file that could not be read has none.
            stamps |= {path: file_stamp(path, verify=verify) for path in part.paths if path not in stamps}
            keys[part.number] = part.key(stamps)
            table = part_table(row_keys(part), _results(part, results), words=worst is not None)
            run.write(part.number, table, key=keys[part.number])
            results, stamps = {}, {}
    for number in written.keys() - keys.keys():
        run.drop(number)
    return [keys[number] for number in sorted(keys)], scored, earlier


def _failed_parts(run: Run, written: Sequence[int]) -> list[int]:
    """Return the written parts with failed rows; rows that could not be tried have no image and do not count."""
    tables = zip(written, run.tables(["error", "image"]) if written else (), strict=True)
    return [
        number
        for number, table in tables
        if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py()
    ]


def stamps_of(paths: Sequence[str], pool: ThreadPoolExecutor, *, verify: bool) -> dict[str, str]:
    """Return the stamps of image files, which several threads read: the disk may be slow or remote."""
    shares = [paths[first::READERS] for first in range(min(READERS, len(paths)))]
    stamps = pool.map(lambda share: [(path, file_stamp(path, verify=verify)) for path in share], shares)
    return dict(chain.from_iterable(stamps))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartBatch(Batch):
    """A batch of a part: `rows` are the indices of its captions."""

    part: Part
    rows: list[int]
    is_last: bool


def _batches(parts: Iterable[Part], pipeline: Pipeline) -> Iterator[_PartBatch]:
    for part in parts:
        captions = [row.caption for row in part.rows]
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


def _results(part: Part, results: Mapping[int, Numbers | RowError]) -> list[Numbers | RowError]:
    """Return the numbers or the error of all rows of a part, in the order of `row_keys`.

    Warnings of the input come before those of scoring.
    """
    scored = [results[number] for number in range(len(part.rows))]
    for number, row in enumerate(part.rows):
        if row.warning is not None and isinstance(result := scored[number], Numbers):
            scored[number] = replace(result, warnings=(row.warning, *result.warnings))
    return [*scored, *(row.error or RowError("") for row in part.unusable)]


def row_keys(part: Part) -> pa.Table:
    """Return the index of every row of a part, the key of its candidate set and that of its image.

    Rows that cannot be scored come last and have no image.
    """
    # Shared by the rows of one image: its offset in the tar, else a hash of its name.
    keys = [image.offset if isinstance(image, TarImage) else text_key(source_key(image)) for image in part.images]
    images = [*(keys[image] if image >= 0 else None for image in part.owner), *[None] * len(part.unusable)]
    rows = (*part.rows, *part.unusable)
    # A candidate set is a group, else a list of captions, else the captions of an image.
    groups = [
        image if row.set is None else text_key(row.set)
        for row, image in zip(rows, images, strict=True)
    ]  # fmt: skip
    columns = {"row": [row.index for row in rows], "group": groups, "image": images}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def part_table(keys: pa.Table, scored: Sequence[Numbers | RowError], *, words: bool = False) -> pa.Table:
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
    for name in number_names(tuple(COLUMNS)):
        if name in ("uncertainty", "soft_msd"):  # depend on the whole candidate set, see `collect`
            continue
        values = [row.values.get(name) for row in numbers] if name in present else [None] * len(numbers)
        columns[name] = pa.array(values, pa.int32() if COLUMNS[name].kind == "count" else pa.float64())
    return pa.table(columns)


def collect(parts: Iterable[pa.Table], form: Form, *, verdict_at: tuple[float, float] = VERDICT_AT) -> pa.Table:
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
        None if np.isnan(value) else verdict(value, at=verdict_at, withheld=bool(withheld(row_warnings)))
        for value, row_warnings in zip(match.tolist(), warnings, strict=True)
    ]
    added = {
        "uncertainty": pa.array(softened[0], from_pandas=True),
        "soft_msd": pa.array(softened[1], from_pandas=True),
        "verdict": pa.array(verdicts, pa.string()),
        "warnings": pa.array(warnings, pa.list_(pa.string())) if is_mixed.any() else table["warnings"],
    }
    has_references = table[references.NAMES[0]].null_count < count
    names = list(added_columns(form, references=has_references))
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
