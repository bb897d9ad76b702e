"""Rows become parts, parts become tables: rows of one image together, finished parts written one after the other."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa

from msdscore.errors import RowError
from msdscore.io.hashing import source_key
from msdscore.io.inputs.rows import Row
from msdscore.io.outputs.run import Run, open_run
from msdscore.io.tar import File, FileState, TarImage, file_state
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Batch, score_batches, split_pairs

WINDOW_ROWS = 1 << 16  # rows that are looked at together: images repeated within them are read once
FIRST_ROWS = 1024  # of the first window, while nothing else has to be done; every further one is twice as large
WINDOW_BYTES = 512 << 20  # of images that come as bytes
_READERS = 8  # threads that look at image files
_CHANGED = "the image was changed while it was scored; the same command scores it again"
Stamp = Callable[[str], str]
Scored = list[Numbers | RowError]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are finished together; `owner[i]` is the index of the image of row i, -1 if it has only references.

    `unusable` are rows that cannot be scored. `key` stands for all rows with everything they say and for the state of
    their image files: where it is the same as before, so are the numbers.
    """

    number: int
    rows: tuple[Row, ...] = ()
    images: tuple[File, ...] = ()
    owner: tuple[int, ...] = ()
    unusable: tuple[Row, ...] = ()
    key: str = ""
    states: Mapping[str, tuple[FileState | None, str]] = field(default_factory=dict)  # of image files, with stamps

    def warn_of_changed(self, stamp: Stamp, *, verify: bool) -> "Part | None":
        """The part with a warning at every row whose image is not what the key stands for; None where all are.

        Files with the same size, time and inode are read again only with `verify`.
        """
        # One after the other: 7 µs per file, which eight new threads per part take thirty times over.
        doubtful = (path for path, (state, _) in self.states.items() if verify or file_state(path) != state)
        changed = {path for path in doubtful if stamp(path) != self.states[path][1]}
        if not changed:
            return None
        rows = (
            replace(row, warning="; ".join(filter(None, (row.warning, _CHANGED)))) if row.source in changed else row
            for row in self.rows
        )
        return replace(self, rows=tuple(rows))


def plan(
    rows: Iterable[Row],
    *,
    part_rows: int,
    window_rows: int = WINDOW_ROWS,
    window_bytes: int = WINDOW_BYTES,
    stamp: Stamp | None = None,
) -> Iterator[Part]:
    """Split rows into parts; the same rows give the same parts, whichever of their images are there.

    `stamp` tells the state of an image file; without it parts have no keys.
    """
    stream, size, number = iter(rows), min(FIRST_ROWS, window_rows), 0
    with ThreadPoolExecutor(_READERS) as pool:
        while window := _window(stream, size, window_bytes):
            size = min(2 * size, window_rows)
            sets: dict[str, list[Row]] = {}  # of rows of one image
            for row in window:
                sets.setdefault(_set_name(row), []).append(row)
            gathered, count = list[list[Row]](), 0
            for last, own in enumerate(sets.values(), start=1):
                gathered.append(own)
                count += len(own)
                if count >= part_rows or last == len(sets):
                    part = _part(number, gathered)
                    yield part if stamp is None else _keyed(part, stamp, pool)
                    number, gathered, count = number + 1, [], 0


def score_parts(
    pipeline: Pipeline, parts: Iterable[Part], *, worst: int = 0, scored: Callable[[int], None] = lambda rows: None
) -> Iterator[tuple[Part, Scored]]:
    """Score parts batch by batch, in order; each comes with the numbers, or the reasons, of its rows.

    `scored` is called with the number of rows of each batch.
    """
    waiting: deque[tuple[Part, list[int], bool]] = deque()

    def batches() -> Iterator[Batch]:
        for part in parts:
            captions = [row.caption or "" for row in part.rows]
            references = [row.references for row in part.rows]
            given = references if any(own is not None for own in references) else ()
            split = split_pairs(part.images, captions, part.owner, size=pipeline.batch_size, references=given)
            waiting.extend([] if split else [(part, [], True)])  # all its rows are unusable
            for number, (rows, batch) in enumerate(split, start=1):
                waiting.append((part, rows, number == len(split)))
                yield batch

    def untried() -> Iterator[tuple[Part, Scored]]:
        while waiting and not waiting[0][1]:
            yield waiting.popleft()[0], []

    numbers: dict[int, Numbers | RowError] = {}
    for results in score_batches(pipeline, batches(), worst=worst):
        yield from untried()
        part, rows, is_last = waiting.popleft()
        numbers.update(zip(rows, results, strict=True))
        scored(len(rows))
        if is_last:
            yield part, [numbers[row] for row in range(len(numbers))]
            numbers = {}
    yield from untried()


def write_parts(
    run: Run,
    parts: Iterable[tuple[str, P]],
    compute: Callable[[Iterator[tuple[str, P]]], Iterable[tuple[str, pa.Table]]],
    *,
    known: Callable[[str, P], pa.Table | None] = lambda key, part: None,
    reused: Callable[[P], None] = lambda part: None,
) -> list[str]:
    """Write the parts that a run does not hold yet, and return the keys of all of them.

    Every part comes with the key of what it is made from; one that was written with the same key is kept. `known` may
    return the table of a part from an earlier output. `compute` turns the others into tables, in their order, each
    with its key; `reused` is called with every part that it need not see. Parts beyond the last are dropped.
    """
    written, keys, missing = run.keys(), list[str](), deque[int]()

    def unfinished() -> Iterator[tuple[str, P]]:
        for number, (key, part) in enumerate(parts):
            keys.append(key)
            if written.get(number) != key:
                table = known(key, part)
                if table is None:
                    missing.append(number)
                    yield key, part
                    continue
                run.write(number, table, key=key)
            reused(part)

    for key, table in compute(unfinished()):
        number = missing.popleft()
        keys[number] = key
        run.write(number, table, key=key)
    for number in run.done():
        if number >= len(keys):
            run.drop(number)
    return keys


def keep_answers(
    path: Path | None,
    manifest: Mapping[str, Any],
    batches: Sequence[P],
    measure: Callable[[int, P], Any],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Any]:
    """`measure(number, batch)` of every batch: plain values, each computed once and kept beside `path` if given.

    They stay there until they are discarded; those of another manifest are refused.
    """

    def compute(missing: Iterator[tuple[str, tuple[int, P]]]) -> Iterator[tuple[str, pa.Table]]:
        for key, (number, batch) in missing:
            yield key, pa.table({"answer": [json.dumps(measure(number, batch))]})
            progress(number + 1, len(batches))

    with TemporaryDirectory() as folder:
        place = Path(folder) / "answers.parquet" if path is None else path
        place.parent.mkdir(parents=True, exist_ok=True)
        with open_run(place, manifest) as run:
            parts = (("", numbered) for numbered in enumerate(batches))
            write_parts(run, parts, compute, reused=lambda numbered: progress(numbered[0] + 1, len(batches)))
            return [json.loads(part["answer"][0].as_py()) for part in run.tables()] if batches else []


def _window(stream: Iterator[Row], most: int, most_bytes: int) -> list[Row]:
    """The next rows, as many as may be held at once."""
    rows, size = list[Row](), 0
    for row in islice(stream, most):
        rows.append(row)
        size += len(row.source) if isinstance(row.source, bytes) else 0
        if size >= most_bytes:
            break
    return rows


def _set_name(row: Row) -> str:
    """What rows of one image have in common, be the image there or not."""
    if row.lookup is not None:
        return f"id {row.lookup}"
    return f"row {row.index}" if row.source is None else source_key(row.source)


def _part(number: int, sets: list[list[Row]]) -> Part:
    usable = [[row for row in rows if row.error is None] for rows in sets]
    filled = [rows for rows in usable if rows]
    return Part(
        number,
        rows=tuple(row for rows in filled for row in rows),
        images=tuple(rows[0].source for rows in filled if rows[0].source is not None),
        owner=tuple(_owners(filled)),
        unusable=tuple(row for rows in sets for row in rows if row.error is not None),
    )


def _owners(sets: list[list[Row]]) -> Iterator[int]:
    """The index of the image of every row; -1 for rows that have only references."""
    image = -1
    for rows in sets:
        image += rows[0].source is not None
        yield from [-1 if rows[0].source is None else image] * len(rows)


def _keyed(part: Part, stamp: Stamp, pool: ThreadPoolExecutor) -> Part:
    rows = (*part.rows, *part.unusable)
    paths = list({row.source: None for row in rows if isinstance(row.source, str)})

    def look(share: list[str]) -> list[tuple[str, tuple[FileState | None, str]]]:
        # In this order: what changes in between shows in the next state.
        return [(path, (file_state(path), stamp(path))) for path in share]

    # Looked at once, and side by side: a file may lie on a slow or distant disk.
    shares = [paths[first::_READERS] for first in range(min(_READERS, len(paths)))]
    states = dict(chain.from_iterable(pool.map(look, shares)))
    digest = blake2b(digest_size=8)
    for row in rows:
        # Images given as bytes are part of the input, whose content the run knows.
        state = states[row.source][1] if isinstance(row.source, str) else ""
        offset = row.source.offset if isinstance(row.source, TarImage) else None
        line = f"{(row.index, offset, row.id, row.caption, row.group, row.columns)!r}\0{row.error or ''}\0{state}\n"
        line += "" if row.references is None else f"{row.references!r}\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
    kept = {image: states[image] for image in part.images if isinstance(image, str)}
    return replace(part, key=digest.hexdigest(), states=kept)
