"""Split rows into parts with the rows of one image together, and score the parts batch by batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

from msdscore.errors import RowError
from msdscore.io.hashing import source_key
from msdscore.io.images import Stamp
from msdscore.io.inputs.rows import Row
from msdscore.io.tar import File, TarImage
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Numbers
from msdscore.scoring.stream import Batch, split_pairs, stream_batches

WINDOW_ROWS = 1 << 16  # rows planned together: an image that is repeated within them is read once
FIRST_ROWS = 1024  # of the first window, for which scoring waits; each following one is twice as large
WINDOW_BYTES = 512 << 20  # of images that are bytes in memory
Scored = list[Numbers | RowError]
Stamps = Mapping[str, str]  # path of an image -> stamp of its content


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
    """Yield each part with the numbers, or the error, of every row, and the stamps of its image files.

    Stamps are computed from the bytes that were decoded; a file that could not be read has none. `scored` is called
    with the number of rows of each batch.
    """
    results, stamps = dict[int, Numbers | RowError](), dict[str, str]()
    for batch, rows, marks in stream_batches(pipeline, _batches(parts, pipeline), worst=worst, stamp=stamp):
        results.update(zip(batch.rows, rows, strict=True))
        stamps.update((str(image), mark) for image, mark in zip(batch.images, marks, strict=True) if mark is not None)
        scored(len(rows))
        if batch.is_last:
            yield batch.part, [results[row] for row in range(len(results))], stamps
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
        given = references if any(own is not None for own in references) else ()
        split = split_pairs(part.images, captions, part.owner, size=pipeline.batch_size, references=given)
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
