"""From rows to scores: `score_rows` scores any number of rows, `finish` adds the columns of candidate sets.

Rows are scored in batches and in constant memory; images are decoded while the previous batch is scored.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from msdscore import threads
from msdscore.core.arrays import is_gpu, is_launching, torch_part
from msdscore.core.divergence import CaptionFloats, soften
from msdscore.errors import ConfigError, RowError
from msdscore.forms.base import Form, Numbers
from msdscore.forms.registry import score_columns
from msdscore.io.files import File, TarImage, source_key, text_key
from msdscore.io.images import ImageSource
from msdscore.rows.rules import Row
from msdscore.scoring import references
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Finish, Pipeline
from msdscore.scoring.results import Ints, Scores

MIXED = "its group holds several images, so its Soft-MSD compares captions of different images"
CAPTIONS = 64  # rows per image of a batch, at most
DECODERS = (8, 32)  # minimum and maximum of the threads that read images; in between, one per core
_FILES = (TarImage, str, bytes, Path)  # as `File`, and tested in a third of the time of that union
Errors = Literal["raise", "row"]  # raise the first error, or return a row with it
PairResults: TypeAlias = list[Numbers | RowError]  # one per caption of a batch


@dataclass(frozen=True, slots=True)
class Batch:
    """Captions to score together; `owner[i]` is the index of the image of caption i, -1 for none.

    `references[i]` are the references of caption i, or None; an empty sequence means none at all. The captions are
    those of the `rows` without an error.
    """

    images: Sequence[ImageSource]
    captions: Sequence[str]
    owner: Sequence[int]
    references: Sequence[Sequence[str] | None] = ()
    rows: Sequence[Row] = ()
    is_last: bool = False


def score_rows(
    pipeline: Pipeline, rows: Iterable[Row], *, worst: int = 0, errors: Errors = "row"
) -> Generator[Scores, None, None]:
    """Yield the scores of rows in their order, some at a time, in constant memory; see `finish`.

    At least one table is yielded, for its columns. Images are decoded while earlier rows are scored. With `worst`, the
    scores name up to that many of the least supported words; `errors` is whether to raise the first error.
    """
    check_errors(errors)
    batches = row_batches(rows, pipeline.batch_size)
    first = next(batches, None)
    if first is None:
        yield scores_of(pipeline, [], [], [])
        return
    if first.is_last and len(first.images) <= 1:  # needs no other threads
        yield scores_of_rows(pipeline, first.rows, _score_one_image(pipeline, first, worst), errors)
        return
    with closing(score_batches(pipeline, chain([first], batches), worst=worst, errors=errors)) as stream:
        for _, scores in stream:
            yield scores


def score_batches(
    pipeline: Pipeline, batches: Iterable[Batch], *, worst: int = 0, errors: Errors = "row"
) -> Generator[tuple[Batch, Scores], None, None]:
    """Yield batches of rows in order, each with the scores of its rows; see `score_rows`."""
    with closing(stream_batches(pipeline, batches, worst=worst)) as stream:
        for batch, numbers in stream:
            yield batch, scores_of_rows(pipeline, batch.rows, numbers, errors)


def stream_batches(
    pipeline: Pipeline, batches: Iterable[Batch], *, worst: int = 0
) -> Generator[tuple[Batch, PairResults], None, None]:
    """Yield each batch with numbers or an error for every caption.

    Every distinct image and caption is embedded once, in whichever batches it appears; on a GPU only captions,
    because recognising an image costs as much as encoding it. With `worst`, the numbers name up to that many of the
    least supported words.
    """
    # A GPU works on one batch while the host finishes another; on a CPU both would share the same cores. An encoder
    # that scores in the launching thread must not wait for that thread.
    on_gpu = is_gpu(pipeline.encoder.device)
    overlaps = on_gpu and not is_launching()
    ahead = 1
    if overlaps:
        images = pipeline.streams * pipeline.batch_size
        ahead = torch_part("feeding.images").batches_ahead(images, pipeline.can.preprocessing)
    shared, stopped = pipeline.remembering_texts() if on_gpu else pipeline.remembering(), Event()

    def decode(sources: Sequence[ImageSource]) -> list[Decoded | RowError]:
        if processes is None:
            return shared.decode(sources, pool=pool)
        items = processes.decode(sources)
        decoded = [item if isinstance(item, RowError) else Decoded(item) for item in items]
        return shared.decoder.decode_on_device(sources, decoded)

    def launch(batch: Batch, images: Sequence[Decoded | RowError]) -> Finish:
        if stopped.is_set():  # nobody waits for the scores
            raise CancelledError
        return shared.launch(images, batch.captions, batch.owner, worst=worst, references=batch.references)

    def score(batch: Batch, decoded: Callable[[], Sequence[Decoded | RowError]]) -> PairResults:
        images = decoded()
        return shared.completed(partial(launch, batch, images)) if batch.captions else []

    with (
        ThreadPoolExecutor(min(max(threads.available(), DECODERS[0]), DECODERS[1])) as pool,
        ThreadPoolExecutor(ahead) as reader,
        pipeline.decoder.start_processes(pool) or nullcontext() as processes,
    ):
        waiting: deque[tuple[Batch, Callable[[], PairResults]]] = deque()
        try:
            for batch in batches:
                if overlaps:
                    waiting.append((batch, reader.submit(score, batch, partial(decode, batch.images)).result))
                else:  # decoded ahead, scored by this thread
                    waiting.append((batch, partial(score, batch, reader.submit(decode, batch.images).result)))
                if len(waiting) > ahead:
                    done, result = waiting.popleft()
                    yield done, result()
            while waiting:
                done, result = waiting.popleft()
                yield done, result()
        finally:
            # A caller that stops iterating does not wait for images that are still to be read.
            stopped.set()
            for executor in (reader, pool):
                executor.shutdown(wait=False, cancel_futures=True)


def score_all(
    pipeline: Pipeline,
    rows: Sequence[Row],
    *,
    worst: int = 0,
    errors: Errors = "row",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Return the scores of rows in their order, each image read and encoded once; see `score_rows`.

    `progress` is called with the number of rows done and in total.
    """
    parts, done, numbers = list[Scores](), 0, dict[object, list[int]]()
    for number, row in enumerate(rows):
        numbers.setdefault(identity(row), []).append(number)
    order = list(chain(*numbers.values()))  # rows of one image follow each other
    progress(0, len(rows))
    for scores in score_rows(pipeline, (rows[number] for number in order), worst=worst, errors=errors):
        parts.append(scores)
        done += len(scores)
        progress(done, len(rows))
    scores = Scores.join(parts)
    return scores if order == sorted(order) else scores[np.argsort(order)]


def check_errors(errors: str) -> None:
    """Raise `ConfigError` unless this is a way to handle errors."""
    if errors not in get_args(Errors):
        raise ConfigError(f"errors must be 'raise' or 'row', got {errors!r}")


def row_batches(rows: Iterable[Row], size: int) -> Iterator[Batch]:
    """Yield batches of consecutive rows with at most `size` images; an image that they share is in a batch once."""
    waiting, keys, distinct = list[Row](), list[object](), set[object]()
    for row in rows:
        key = identity(row)
        is_full = len(distinct) >= size and key not in distinct
        if waiting and (is_full or len(waiting) >= CAPTIONS * size):
            yield _batch(waiting, keys, is_last=False)
            waiting, keys, distinct = [], [], set()
        waiting.append(row)
        keys.append(key)
        distinct.add(key)
    if waiting:
        yield _batch(waiting, keys, is_last=True)


def _batch(rows: Sequence[Row], keys: Sequence[object], *, is_last: bool) -> Batch:
    """Return a batch of rows, of which those of one image have equal keys."""
    images, owner, position = list[ImageSource](), list[int](), dict[object, int]()
    good = [row for row in rows if row.error is None]
    for row, key in zip(rows, keys, strict=True):
        if row.error is not None:
            continue
        index = -1 if row.image is None else position.setdefault(key, len(images))
        if row.image is not None and index == len(images):
            images.append(row.image)
        owner.append(index)
    lists = [row.references for row in good]
    references = lists if any(texts is not None for texts in lists) else ()
    return Batch(images, [row.caption for row in good], owner, references, rows=rows, is_last=is_last)


def identity(row: Row) -> object:
    """Return what rows of the same image have in common; a row without an image takes its place in a batch."""
    if row.image is None:
        return row.index, row.set
    return row.image if isinstance(row.image, _FILES) else id(row.image)


def _score_one_image(pipeline: Pipeline, batch: Batch, worst: int) -> list[Numbers | RowError]:
    """Score the captions of one image, or of none, in this thread."""
    if not batch.captions:
        return []
    if batch.images and pipeline.embedder.known_texts is not None:
        pipeline.start_texts(batch.captions)  # while this thread decodes
    decoded = pipeline.decode(batch.images)
    return pipeline.score(decoded, batch.captions, batch.owner, worst=worst, references=batch.references)


def scores_of_rows(
    pipeline: Pipeline, rows: Sequence[Row], numbers: Iterable[Numbers | RowError], errors: Errors = "row"
) -> Scores:
    """Return the scores of all rows, in their order; `numbers` are the results of those without an error."""
    results, scored = iter(numbers), list[Numbers | RowError]()
    for row in rows:
        result = row.error or next(results)
        if row.warning is not None and isinstance(result, Numbers):  # those of the input come first
            result = replace(result, warnings=(row.warning, *result.warnings))
        if errors == "raise" and isinstance(result, RowError):
            raise result
        scored.append(result)
    names = list(map(identity, rows))
    keys = {name: image_key(row.image) for name, row in dict(zip(names, rows, strict=True)).items()}
    images = [keys[name] for name in names]
    sets = [
        text_key(row.set) if row.set is not None else image if image else text_key(f"row {row.index}")
        for row, image in zip(rows, images, strict=True)
    ]
    return scores_of(pipeline, [row.caption for row in rows], scored, sets, images=images)


def image_key(image: ImageSource | None) -> int:
    """Return a positive key that is the same for equal paths, bytes or objects; 0 for no image."""
    if image is None:
        return 0
    return 1 + text_key(source_key(image) if isinstance(image, File) else f"object {id(image)}") // 2


def scores_of(
    pipeline: Pipeline,
    captions: Sequence[str],
    scored: Sequence[Numbers | RowError],
    sets: Sequence[int],
    *,
    images: Sequence[int] = (),
) -> Scores:
    """Build scores from numbers or errors; the columns of candidate sets are added by `finish`.

    Captions with equal numbers in `sets` are one candidate set; `images` has equal numbers for those of one image.
    """
    valid = [index for index, row in enumerate(scored) if isinstance(row, Numbers)]
    rows = [row.values for row in scored if isinstance(row, Numbers)]
    has_references = any(references.NAMES[0] in row for row in rows)
    columns = dict[str, Any]()
    for column in score_columns(pipeline.form, references=has_references):
        name, kind = column.name, column.kind
        if kind in ("text", "list"):
            continue
        # Captions without a number have 0 as counts, else NaN.
        columns[name] = np.zeros(len(scored), dtype=np.int64) if kind == "count" else np.full(len(scored), np.nan)
        columns[name][valid] = [np.nan if (value := row.get(name)) is None else value for row in rows]
    return Scores(
        tuple(captions),
        columns,
        np.ones(len(scored), dtype=np.int64),
        tuple(row.warnings if isinstance(row, Numbers) else () for row in scored),
        tuple(str(row) if isinstance(row, RowError) else None for row in scored),
        pipeline.signature,
        sets=np.asarray(sets, dtype=np.int64),
        images=np.asarray(images or [0] * len(scored), dtype=np.int64),
        worst=tuple(row.worst if isinstance(row, Numbers) else () for row in scored),
        doubtful=tuple(row.doubtful if isinstance(row, Numbers) else None for row in scored),
        verdict_at=pipeline.verdict_at,
    )


def finish(scores: Scores, form: Form) -> Scores:
    """Return scores with the columns of their candidate sets, all of whose rows they must have.

    These are uncertainty, Soft-MSD, the number of candidates that were scored, the warning about sets with several
    images, and the numbers of references in the signature. A row that was compared with references only is no
    candidate of Soft-MSD.
    """
    columns = dict(scores.columns)
    uncertainty, soft, is_mixed = set_columns(
        columns["similarity"], columns["msd"], scores.sets, scores.images, temperature=form.temperature
    )
    columns |= {"uncertainty": uncertainty, "soft_msd": soft}
    distinct, inverse = np.unique(scores.sets, return_inverse=True)
    scored = [index for index, error in enumerate(scores.errors) if error is None]
    candidates = np.bincount(inverse[scored], minlength=len(distinct))[inverse]
    warnings = list(scores.warnings)
    for index in np.flatnonzero(is_mixed).tolist():
        warnings[index] = (*warnings[index], MIXED)
    counts, signature = columns.get(references.NAMES[0]), scores.signature
    if counts is not None:
        signature = references.signed(signature, counts)
    return replace(scores, columns=columns, candidates=candidates, warnings=tuple(warnings), signature=signature)


def set_columns(
    similarity: CaptionFloats, msd: CaptionFloats, sets: Ints, images: Ints, *, temperature: float
) -> tuple[CaptionFloats, CaptionFloats, npt.NDArray[np.bool_]]:
    """Return uncertainty and Soft-MSD of all rows, and whether each is in a set with captions of several images."""
    good = np.flatnonzero(~np.isnan(msd))
    uncertainty, soft = np.full((2, len(msd)), np.nan)
    uncertainty[good], soft[good] = soften(similarity[good], msd[good], sets[good], temperature=temperature)
    is_mixed = np.zeros(len(msd), dtype=bool)
    if (images[good] != images[good][:1]).any():
        pairs = np.unique(np.stack([sets[good], images[good]]), axis=1)
        several, counts = np.unique(pairs[0], return_counts=True)
        is_mixed[good] = np.isin(sets[good], several[counts > 1])
    return uncertainty, soft, is_mixed


def finish_stream(chunks: Iterable[Scores], form: Form) -> Iterator[Scores]:
    """Yield finished scores of a stream, in which the rows of a candidate set follow each other."""
    waiting: Scores | None = None
    for chunk in chunks:
        scores = chunk if waiting is None else Scores.join([waiting, chunk])
        whole = len(scores)
        while whole and scores.sets[whole - 1] == scores.sets[-1]:
            whole -= 1
        if whole:
            yield finish(scores[:whole], form)
        waiting = scores[whole:]
    if waiting is not None:
        yield finish(waiting, form)
