"""The order of work: rows of one picture together, in chunks that are finished one after the other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from msdscore.io.hashing import source_key
from msdscore.io.inputs.rows import Row

WINDOW_ROWS = 1 << 16  # rows that are looked at together: pictures repeated within them are read once
WINDOW_BYTES = 512 << 20  # of pictures that come as bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that become one part; `owner[i]` is the number of the picture of row i."""

    number: int
    rows: tuple[Row, ...]
    images: tuple[Path | bytes, ...]
    owner: tuple[int, ...]


def plan(rows: Iterable[Row], *, chunk_rows: int) -> Iterator[Chunk]:
    """Chunks over all rows that can be scored; the same rows give the same chunks."""
    number = 0
    for window in _windows(rows):
        for together in _chunks(window, chunk_rows):
            yield _chunk(number, together)
            number += 1


def image_name(row: Row) -> str:
    """One name for equal pictures, before anything is decoded."""
    assert row.image is not None, "rows without a picture have an error and are not planned"
    return source_key(row.image)


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Consecutive scorable rows, as many as may be held at once."""
    stream = (row for row in rows if row.error is None)
    while window := list(_bounded(islice(stream, WINDOW_ROWS))):
        yield window


def _bounded(rows: Iterator[Row]) -> Iterator[Row]:
    held = 0
    for row in rows:
        yield row
        held += len(row.image) if isinstance(row.image, bytes) else 0
        if held >= WINDOW_BYTES:
            return


def _chunks(window: list[Row], chunk_rows: int) -> Iterator[list[list[Row]]]:
    """Sets of rows of one picture, gathered until they are `chunk_rows` rows."""
    sets: dict[str, list[Row]] = {}
    for row in window:
        sets.setdefault(image_name(row), []).append(row)
    gathered: list[list[Row]] = []
    for one in sets.values():
        gathered.append(one)
        if sum(map(len, gathered)) >= chunk_rows:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _chunk(number: int, sets: list[list[Row]]) -> Chunk:
    rows = tuple(row for one in sets for row in one)
    owner = tuple(place for place, one in enumerate(sets) for _ in one)
    images = tuple(one[0].image for one in sets if one[0].image is not None)
    return Chunk(number, rows, images, owner)
