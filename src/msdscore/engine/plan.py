"""The order of work: rows of one picture together, in chunks that are finished one after the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from msdscore.io.hashing import source_key
from msdscore.io.inputs.rows import Row
from msdscore.io.tar import TarImage

WINDOW_ROWS = 1 << 16  # rows that are looked at together: pictures repeated within them are read once
FIRST_ROWS = 1024  # of the first window, while nothing else has to be done; every further one is twice as large
WINDOW_BYTES = 512 << 20  # of pictures that come as bytes
Stamp = Callable[[Path], str]
_READERS = 8  # threads that look at picture files


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that become one part; `owner[i]` is the number of the picture of row i.

    `unusable` are those that cannot be scored. `key` stands for all rows of the chunk, with everything they say, and
    for the state of their picture files: where it is the same as before, so are the numbers.
    """

    number: int
    rows: tuple[Row, ...]
    images: tuple[Path | bytes | TarImage, ...]
    owner: tuple[int, ...]
    key: str = ""
    stamps: tuple[str, ...] = ()  # of the picture files when the chunk was planned
    unusable: tuple[Row, ...] = ()

    def has_changed(self, stamp: Stamp) -> bool:
        """Whether a picture file is not in the state that the key stands for."""
        return self.stamps != tuple(stamp(image) for image in self.images if isinstance(image, Path))


def plan(
    rows: Iterable[Row],
    *,
    chunk_rows: int,
    window_rows: int = WINDOW_ROWS,
    window_bytes: int = WINDOW_BYTES,
    stamp: Stamp | None = None,
) -> Iterator[Chunk]:
    """Chunks over all rows; the same rows give the same chunks, whichever of their pictures are there.

    `stamp` tells the state of a picture file; without it chunks have no keys.
    """
    number = 0
    with ThreadPoolExecutor(_READERS) as pool:
        stamps = None if stamp is None else partial(pool.map, stamp)
        for window in _windows(rows, window_rows, window_bytes):
            for together in _chunks(window, chunk_rows):
                yield _chunk(number, together, stamps)
                number += 1


def image_name(row: Row) -> str:
    """One name for equal pictures, before anything is decoded."""
    assert row.image is not None, "rows without a picture have an error and are not scored"
    return source_key(row.image)


def _windows(rows: Iterable[Row], most: int, most_bytes: int) -> Iterator[list[Row]]:
    """Consecutive rows, in the end as many as may be held at once."""
    stream, count = iter(rows), min(FIRST_ROWS, most)
    while window := list(_bounded(islice(stream, count), most_bytes)):
        yield window
        count = min(2 * count, most)


def _bounded(rows: Iterator[Row], most_bytes: int) -> Iterator[Row]:
    held = 0
    for row in rows:
        yield row
        held += len(row.image) if isinstance(row.image, bytes) else 0
        if held >= most_bytes:
            return


def _chunks(window: list[Row], chunk_rows: int) -> Iterator[list[list[Row]]]:
    """Sets of rows of one picture, gathered until they are `chunk_rows` rows."""
    sets: dict[str, list[Row]] = {}
    for row in window:
        sets.setdefault(_set_name(row), []).append(row)
    gathered: list[list[Row]] = []
    count = 0
    for one in sets.values():
        gathered.append(one)
        count += len(one)
        if count >= chunk_rows:
            yield gathered
            gathered, count = [], 0
    if gathered:
        yield gathered


def _set_name(row: Row) -> str:
    """What rows of one picture have in common, be the picture there or not."""
    if row.lookup is not None:
        return f"id {row.lookup}"
    return f"row {row.index}" if row.image is None else source_key(row.image)


def _chunk(number: int, sets: list[list[Row]], stamp_all: Callable[[Iterable[Path]], Iterator[str]] | None) -> Chunk:
    good = [[row for row in one if row.error is None] for one in sets]
    filled = [one for one in good if one]
    images = tuple(one[0].image for one in filled if one[0].image is not None)
    paths = _paths(row.image for one in sets for row in one)
    # Looked at once, and side by side: a file may lie on a slow or distant disk.
    stamps = {} if stamp_all is None else dict(zip(paths, stamp_all(paths), strict=True))
    return Chunk(
        number,
        rows=tuple(row for one in filled for row in one),
        images=images,
        owner=tuple(place for place, one in enumerate(filled) for _ in one),
        key="" if stamp_all is None else _key(sets, stamps),
        stamps=tuple(stamps[image] for image in images if image in stamps),
        unusable=tuple(row for one in sets for row in one if row.error is not None),
    )


def _paths(images: Iterable[object]) -> dict[Path, None]:
    return dict.fromkeys(image for image in images if isinstance(image, Path))


def _key(sets: list[list[Row]], stamps: Mapping[Path, str]) -> str:
    # Pictures given as bytes are part of the input, whose content the run knows.
    lines = [
        f"{row.key}\0{row.error or ''}\0{stamps[row.image] if isinstance(row.image, Path) else ''}\n"
        for one in sets
        for row in one
    ]
    return blake2b("".join(lines).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
