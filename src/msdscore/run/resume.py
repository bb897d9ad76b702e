"""Score the parts of a run that an interrupted run has not written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from msdscore.io.arrow import pc
from msdscore.io.files import content_stamp, file_stamp
from msdscore.io.outputs.run import Run
from msdscore.run.parts import Part, part_table, row_keys, score_parts
from msdscore.scoring.pipeline import Pipeline

READERS = 8  # threads that read image files of finished parts


@dataclass(slots=True)
class Progress:
    """The parts of a run so far: their keys by number, and the rows scored by this call and by earlier ones."""

    keys: dict[int, str] = field(default_factory=dict)
    scored: int = 0
    earlier: int = 0


def score_missing(
    run: Run,
    pipeline: Pipeline,
    parts: Iterable[Part],
    *,
    worst: int | None,
    verify: bool,
    retry: bool,
    progress: Callable[[int], None] = lambda rows: None,
) -> Progress:
    """Score and write the parts that an earlier run has not written from the same rows and images.

    Unless `worst` is None, there is a column with up to that many of the least supported words. `verify` hashes image
    files of any size, `retry` scores parts with failed rows again. `progress` is called with the number of rows done.
    """
    written, done = run.keys(), Progress()
    if retry:
        for number in _failed_parts(run, written):
            run.drop(number)
            del written[number]

    def reuse(part: Part, key: str) -> None:
        done.keys[part.number] = key
        done.earlier += len(part.rows)
        progress(done.scored + done.earlier)

    def count(rows: int) -> None:
        done.scored += rows
        progress(done.scored + done.earlier)

    progress(0)
    unfinished, stamp = _unfinished(parts, written, reuse, verify=verify), partial(content_stamp, verify=verify)
    for part, results, stamps in score_parts(pipeline, unfinished, worst=worst or 0, stamp=stamp, scored=count):
        unread = (path for path in part.paths if path not in stamps)
        key = part.key(stamps | {path: file_stamp(path, verify=verify) for path in unread})
        run.write(part.number, part_table(row_keys(part), results, words=worst is not None), key=key)
        done.keys[part.number] = key
    for number in written.keys() - done.keys.keys():
        run.drop(number)
    return done


def _failed_parts(run: Run, written: Mapping[int, str]) -> list[int]:
    """Return the written parts with failed rows; rows that could not be tried have no image and do not count."""
    if not written:
        return []
    tables = zip(written, run.tables(["error", "image"]), strict=True)
    return [
        number
        for number, table in tables
        if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py()
    ]


def _unfinished(
    parts: Iterable[Part], written: Mapping[int, str], reuse: Callable[[Part, str], None], *, verify: bool
) -> Iterator[Part]:
    """Yield the parts to score; call `reuse` with each that is written with the same key, and its key."""
    with ThreadPoolExecutor(READERS) as pool:
        for part in parts:
            key = part.key(stamps_of(part.paths, pool, verify=verify)) if part.number in written else None
            if key is not None and key == written[part.number]:
                reuse(part, key)
            else:
                yield part


def stamps_of(paths: Sequence[str], pool: ThreadPoolExecutor, *, verify: bool) -> dict[str, str]:
    """Return the stamps of image files, which several threads read: the disk may be slow or remote."""
    shares = [paths[first::READERS] for first in range(min(READERS, len(paths)))]
    stamps = pool.map(lambda share: [(path, file_stamp(path, verify=verify)) for path in share], shares)
    return dict(chain.from_iterable(stamps))
