"""Parts of a job: some rows with their input columns and numbers, scored unless an earlier run has, and merged."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from msdscore.core.evidence import VERDICT_AT, verdict
from msdscore.errors import RunError, shortened
from msdscore.forms.base import Form
from msdscore.forms.registry import COLUMNS, number_columns
from msdscore.forms.registry import added as added_columns
from msdscore.io.arrow import pa, pc
from msdscore.io.files import TarImage, fingerprint, size_and_time
from msdscore.io.runs import Run
from msdscore.rows.rules import Row
from msdscore.scoring import references
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores
from msdscore.scoring.rows import (
    MIXED,
    Batch,
    identity,
    row_batches,
    score_batches,
    scores_of,
    set_columns,
)
from msdscore.text.warnings import withheld

PART_BATCHES = 8  # batches of images in a part, whose rows a crash loses
WINDOW_ROWS = 1 << 16  # rows planned together: an image that is repeated within them is read once
FIRST_ROWS = 1024  # of the first window, for which scoring waits; each following one is twice as large
WINDOW_BYTES = 128 << 20  # of images that are bytes in memory
READERS = 8  # threads that ask for the sizes and times of image files: the disk may be remote
WORST = "worst_words"  # a list of the least supported words
OBJECTS = "objects"  # the input column of a JSON output: the text of one object per row
_INPUT = "input "  # prefix of input columns in a part, which may have the names of the numbers
_SETS = ("row", "set", "image", "similarity", "msd")  # columns that candidate sets are computed from
ToTable = Callable[[Sequence[Row]], pa.Table]  # returns the input columns of rows


class Part(NamedTuple):
    """Rows that are written together, those of one image after each other.

    Equal fingerprints mean equal values of all rows, and equal sizes and times of their image files.
    """

    number: int
    rows: Sequence[Row]
    fingerprint: str


class Plan:
    """The parts of some rows, which are read once; the same rows give the same parts.

    No rows give one empty part, so that an empty output has the usual columns. After the last part, `count` is the
    number of rows, `names` are their columns, and `images` is the fingerprint of sizes and times of image files.
    """

    def __init__(self, rows: Iterable[Row], *, part_rows: int, window_rows: int = WINDOW_ROWS) -> None:
        self.count, self.names, self.images = 0, set[str](), ""
        self._rows, self._part_rows, self._window_rows = iter(rows), part_rows, window_rows

    def __iter__(self) -> Iterator[Part]:
        size, number, files = min(FIRST_ROWS, self._window_rows), 0, ImageFiles()
        with closing(files):
            while window := self._window(size):
                size = min(2 * size, self._window_rows)
                states = files.states(window)
                images, part = dict[object, list[Row]](), list[Row]()
                for row in window:
                    images.setdefault(identity(row), []).append(row)
                for count, rows in enumerate(images.values(), start=1):
                    part += rows
                    if len(part) >= self._part_rows or count == len(images):
                        yield Part(number, part, _fingerprint(part, states))
                        number, part = number + 1, []
            self.images = files.fingerprint
        if number == 0:
            yield Part(0, (), "")

    def _window(self, most: int) -> list[Row]:
        """Read up to `most` rows, or until their images in memory are too large."""
        rows, size = list[Row](), 0
        for row in islice(self._rows, most):
            rows.append(row)
            self.names.update(row.columns)
            if isinstance(row.image, bytes):
                size += len(row.image)
                if size >= WINDOW_BYTES:
                    break
        self.count += len(rows)
        return rows


def _fingerprint(rows: Sequence[Row], states: Mapping[str, str]) -> str:
    """Return a hash of all values of rows; images that are bytes are part of the input, whose content the run knows."""
    lines = list[str]()
    for row in rows:
        image = row.image
        state = image.offset if isinstance(image, TarImage) else states[image] if isinstance(image, str) else None
        values = (row.index, state, row.id, row.caption, row.set, row.columns, row.references, row.error)
        lines.append(repr(values))
    return fingerprint("\n".join(lines))


class ImageFiles:
    """Sizes and times of the image files of rows; `fingerprint` is a hash of all of them so far, empty without any."""

    def __init__(self) -> None:
        self._digest, self._last, self._pool = blake2b(digest_size=16), "", ThreadPoolExecutor(READERS)
        self.close = self._pool.shutdown

    @property
    def fingerprint(self) -> str:
        """A hash of the sizes and times, in the order of the rows."""
        return self._digest.hexdigest() if self._last else ""

    def states(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return size and time of the image files of some rows, as they are before they are read."""
        paths = dict.fromkeys(row.image for row in rows if isinstance(row.image, str))
        names = list(paths)
        shares = [names[first::READERS] for first in range(min(READERS, len(names)))]
        found = self._pool.map(lambda share: [(name, size_and_time(name)) for name in share], shares)
        states = dict(chain.from_iterable(found))
        for row in rows:
            name = row.image if isinstance(row.image, str) else row.lookup
            if name is not None and name != self._last:  # an image that was looked up in vain is missing too
                self._last = name
                self._digest.update(f"{states.get(name, 'missing')}\n".encode())
        return states


def check_images(output: Path | str, before: str, rows: Iterable[Row]) -> None:
    """Raise `RunError` unless the image files of all rows have the fingerprint of a finished output."""
    stream, files = iter(rows), ImageFiles()
    with closing(files):
        while window := list(islice(stream, FIRST_ROWS)):
            files.states(window)
    if files.fingerprint != before:
        raise RunError(
            f"{shortened(str(output))}: image files were changed after they were scored; pass --overwrite to score "
            "them again"
        )


def score_missing(
    run: Run,
    pipeline: Pipeline,
    parts: Iterable[Part],
    to_table: ToTable,
    *,
    worst: int | None,
    retry: bool,
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[int, int]:
    """Score and write the parts that an earlier run has not written from the same rows and images.

    Return the number of rows scored, and that of rows that were scored before. `to_table` returns the input columns of
    a part. Unless `worst` is None, there is a column with up to that many of the least supported words. `retry` scores
    parts with failed rows again. `progress` is called with the number of rows done.
    """
    written, scored, earlier, last = run.keys(), 0, 0, -1
    for number in _failed_parts(run) if retry else ():
        run.drop(number)
        del written[number]
    waiting = deque[Part]()  # parts that are being scored

    def write(part: Part, scores: Sequence[Scores]) -> None:
        table = part_table(part.rows, Scores.join(scores), to_table(part.rows), words=worst is not None)
        run.write(part.number, table, key=part.fingerprint)

    def batches() -> Iterator[Batch]:
        nonlocal earlier, last
        for part in parts:
            last = part.number
            if written.get(part.number) == part.fingerprint:
                earlier += sum(row.error is None for row in part.rows)
                progress(scored + earlier)
            elif part.rows:
                waiting.append(part)
                yield from row_batches(part.rows, pipeline.batch_size)
            else:
                write(part, [scores_of(pipeline, [], [], [])])

    progress(0)
    done = list[Scores]()  # of the first of the waiting parts
    with closing(score_batches(pipeline, batches(), worst=worst or 0)) as stream:
        for batch, scores in stream:
            done.append(scores)
            scored += len(batch.captions)
            progress(scored + earlier)
            if batch.is_last:
                write(waiting.popleft(), done)
                done = []
    for number in written:
        if number > last:
            run.drop(number)
    return scored, earlier


def _failed_parts(run: Run) -> list[int]:
    """Return the written parts with failed rows; rows that could not be tried have no image and do not count."""
    written = run.keys()
    tables = zip(written, run.tables(["error", "image"]) if written else (), strict=True)
    return [
        number
        for number, table in tables
        if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py()
    ]


def part_table(rows: Sequence[Row], scores: Scores, inputs: pa.Table, *, words: bool = False) -> pa.Table:
    """Return the position, set and image of rows, their numbers, and their input columns.

    With `words` there is a column of the least supported words.
    """
    failed = np.array([error is not None for error in scores.errors], dtype=bool)
    unusable = np.array([row.error is not None for row in rows], dtype=bool)
    columns: dict[str, Any] = {
        "row": pa.array([row.index for row in rows], pa.int64()),
        "set": pa.array(scores.sets, pa.int64()),
        "image": pa.array(scores.images, pa.int64(), mask=unusable | (scores.images == 0)),
        "word_notes": pa.array(scores.all_word_notes(), pa.list_(pa.string())),
        "language": pa.array(map(scores.language, range(len(scores))), pa.string()),
        "warnings": pa.array(scores.warnings, pa.list_(pa.string())),
        "error": pa.array(scores.errors, pa.string()),
    }
    if words:
        worst = [None if error else words for words, error in zip(scores.worst, scores.errors, strict=True)]
        columns[WORST] = pa.array(worst, pa.list_(pa.string()))
    for name in number_columns((*scores.columns, references.NAMES[0])):
        if name in ("uncertainty", "soft_msd"):  # depend on the whole candidate set, see `Merged`
            continue
        kind = pa.int32() if COLUMNS[name].kind == "count" else pa.float64()
        values = scores.columns.get(name, np.full(len(rows), np.nan))
        columns[name] = pa.array(values, mask=failed | np.isnan(values)).cast(kind)
    columns |= {_INPUT + name: inputs[name] for name in inputs.column_names}
    kinds = [inputs.schema.field(name).with_name(_INPUT + name) for name in inputs.column_names]
    kinds = [pa.field(name, column.type) for name, column in columns.items() if not name.startswith(_INPUT)] + kinds
    return pa.table(list(columns.values()), schema=pa.schema(kinds))


class Merged:
    """The rows of the finished parts in order, with the columns of candidate sets; `has_references` if a row has any.

    Uncertainty and Soft-MSD are computed for all rows at once; the other columns are read part by part.
    """

    def __init__(self, run: Run, form: Form, *, verdict_at: tuple[float, float] = VERDICT_AT) -> None:
        self._run, self._verdict_at = run, verdict_at
        tables = list(run.tables([*_SETS, references.NAMES[0]]))
        table = pa.concat_tables(tables)
        order = np.argsort(table["row"].to_numpy())
        similarity, msd = (table[name].to_numpy()[order] for name in ("similarity", "msd"))
        sets, images = (table[name].fill_null(0).to_numpy()[order] for name in ("set", "image"))
        self._softened = set_columns(similarity, msd, sets, images, temperature=form.temperature)
        counts = table[references.NAMES[0]]
        self.reference_counts = counts.drop_null().to_pylist()
        self.has_references = counts.null_count < len(counts)
        self._names = list(added_columns(form, references=self.has_references))

    def tables(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the input columns of consecutive rows, and the columns that scoring adds to them."""
        waiting, start, end, highest = list[pa.Table](), 0, 0, -1
        for part in self._run.tables():
            waiting.append(part)
            end, highest = end + len(part), max(highest, *part["row"].to_pylist(), -1)
            if highest >= end:  # rows between these are in the next parts
                continue
            table = pa.concat_tables(waiting)
            if (np.diff(table["row"].to_numpy()) < 0).any():
                table = table.sort_by("row")
            inputs = [name for name in table.column_names if name.startswith(_INPUT)]
            names = [name.removeprefix(_INPUT) for name in inputs]
            yield table.select(inputs).rename_columns(names), self._added(table, slice(start, end))
            waiting, start = [], end

    def _added(self, table: pa.Table, rows: slice) -> pa.Table:
        uncertainty, soft, is_mixed = (values[rows] for values in self._softened)
        warnings = table["warnings"]
        if is_mixed.any():
            texts = zip(warnings.to_pylist(), is_mixed.tolist(), strict=True)
            warnings = pa.array([[*row, MIXED] if mixed else row for row, mixed in texts], pa.list_(pa.string()))
        matches = zip(table["match"].to_pylist(), warnings.to_pylist(), strict=True)
        verdicts = [
            None if match is None else verdict(match, at=self._verdict_at, withheld=bool(notes and withheld(notes)))
            for match, notes in matches
        ]
        made = {
            "uncertainty": pa.array(uncertainty, from_pandas=True),
            "soft_msd": pa.array(soft, from_pandas=True),
            "verdict": pa.array(verdicts, pa.string()),
            "warnings": warnings.cast(pa.list_(pa.string())),
        }
        names = list(self._names)
        if WORST in table.column_names:
            names.insert(names.index("warnings"), WORST)
            made[WORST] = table[WORST].cast(pa.list_(pa.string()))
        return pa.table({name: made[name] if name in made else table[name] for name in names})


def joined(inputs: pa.Table, added: pa.Table, new_names: Mapping[str, str]) -> pa.Table:
    """Return the rows of an output: input columns first, under their new names, then the added ones."""
    names = [*(new_names.get(name, name) for name in inputs.column_names), *added.column_names]
    return pa.Table.from_arrays([*inputs.columns, *added.columns], names=names)
