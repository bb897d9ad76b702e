"""Scoring of many pairs in constant memory: images are decoded while the previous ones are scored."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TypeAlias, TypeVar

from msdscore import threads
from msdscore.core.arrays import is_gpu, is_launching, torch_part
from msdscore.errors import RowError
from msdscore.io.images import ImageSource
from msdscore.scoring.decoder import Decoded, DecodingProcesses
from msdscore.scoring.pipeline import Finish, Pipeline
from msdscore.scoring.results import Numbers

DECODERS = (8, 32)  # minimum and maximum of the threads that read images; in between, one per core


@dataclass(frozen=True, slots=True)
class Batch:
    """Captions to score together; `owner[i]` is the index of the image of caption i, -1 for none.

    `references[i]` are the references of caption i, or None; an empty sequence means none at all.
    """

    images: Sequence[ImageSource]
    captions: Sequence[str]
    owner: Sequence[int]
    references: Sequence[Sequence[str] | None] = ()


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Result: TypeAlias = tuple[AnyBatch, list[Numbers | RowError]]  # a batch, and the numbers or errors of its captions


def score_batches(
    pipeline: Pipeline, batches: Iterable[Batch], *, worst: int = 0
) -> Iterator[list[Numbers | RowError]]:
    """Yield numbers or an error for every caption of each batch, in order; see `stream_batches`."""
    with closing(stream_batches(pipeline, batches, worst=worst)) as stream:
        for _, results in stream:
            yield results


def stream_batches(
    pipeline: Pipeline, batches: Iterable[AnyBatch], *, worst: int = 0
) -> Generator[Result[AnyBatch], None, None]:
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
    with (
        ThreadPoolExecutor(min(max(threads.available(), DECODERS[0]), DECODERS[1])) as pool,
        ThreadPoolExecutor(ahead) as reader,
        pipeline.decoder.start_processes(pool) or nullcontext() as processes,
    ):
        work = _Work(
            pipeline.remembering_texts() if on_gpu else pipeline.remembering(),
            pool, processes, worst,
        )  # fmt: skip
        waiting: deque[Callable[[], Result[AnyBatch]]] = deque()
        try:
            for batch in batches:
                if overlaps:
                    waiting.append(reader.submit(work.decode_and_score, batch).result)
                else:  # decoded ahead, scored by this thread
                    waiting.append(partial(work.score_decoded, batch, reader.submit(work.decode, batch.images)))
                if len(waiting) > ahead:
                    yield waiting.popleft()()
            while waiting:
                yield waiting.popleft()()
        finally:
            # A caller that stops iterating does not wait for images that are still to be read.
            work.stopped.set()
            for executor in (reader, pool):
                executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work on the batches of one stream, which several threads share."""

    pipeline: Pipeline
    pool: ThreadPoolExecutor  # threads that read images
    processes: DecodingProcesses | None
    worst: int
    stopped: Event = field(default_factory=Event)

    def decode(self, sources: Sequence[ImageSource]) -> list[Decoded | RowError]:
        """Return images ready for the encoder."""
        if self.processes is None:
            return self.pipeline.decode(sources, pool=self.pool)
        items = self.processes.decode(sources)
        decoded = [item if isinstance(item, RowError) else Decoded(item) for item in items]
        return self.pipeline.decoder.decode_on_device(sources, decoded)

    def score(self, batch: AnyBatch, images: Sequence[Decoded | RowError]) -> Result[AnyBatch]:
        """Score the captions of a batch; raise `CancelledError` if nobody waits for them any more."""

        def launch() -> Finish:
            if self.stopped.is_set():
                raise CancelledError
            return self.pipeline.launch(
                images, batch.captions, batch.owner, worst=self.worst, references=batch.references
            )

        return batch, self.pipeline.completed(launch) if batch.captions else []

    def score_decoded(self, batch: AnyBatch, decoded: "Future[list[Decoded | RowError]]") -> Result[AnyBatch]:
        """Score a batch whose images another thread decodes."""
        return self.score(batch, decoded.result())

    def decode_and_score(self, batch: AnyBatch) -> Result[AnyBatch]:
        """Decode the images of a batch in this thread, and score it."""
        return self.score(batch, self.decode(batch.images))
