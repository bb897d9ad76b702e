"""The state behind the routes: the pipeline, the queue in front of it, threads that decode and draw, counters."""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import pyarrow as pa

from msdscore.encoders.cached import CachedEncoder
from msdscore.errors import ImageError, RowError, require
from msdscore.explain.explanation import Explanations, explain
from msdscore.explain.overlay import thumbnail
from msdscore.scoring.embedded import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores
from msdscore.serve.batching import Batcher, queue_full
from msdscore.serve.page import explanation_documents
from msdscore.serve.reading import Asked, Stored
from msdscore.serve.rows import RowsQuery, read_table, worst_rows
from msdscore.serve.settings import ServeSettings

Result = TypeVar("Result")
DECODERS = 2  # threads that decode images while the worker scores others
FIGURES = 4  # explanations that wait to be drawn
FIGURE_PIXELS = 2048  # longest side of an image that waits to be drawn; figures show it smaller
LARGE = 8_000_000  # pixels of an image after which memory is trimmed
IDLE_SECONDS = 0.5  # without a request, until freed memory goes back to the system


@dataclass(frozen=True, slots=True)
class Job:
    """One image and its captions for the worker.

    They are scored `alone` or as one candidate `set` from a decoded image; or explained from the bytes of its file, as
    plain values (`document`) or to be drawn (`figure`).
    """

    image: Decoded | bytes
    captions: tuple[str, ...]
    kind: Literal["alone", "set", "document", "figure"]


class Service:
    """Accepts requests up to a limit, decodes their images in threads, and has one worker score them in batches."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self._pipeline = copy(pipeline)
        if settings.cache:
            self._pipeline.encoder = CachedEncoder(pipeline.encoder, memory=settings.cache)
        self.queue: Batcher[Job, Any] = Batcher(
            self._run,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            # A request may bring several images when there is room for one: all of them are accepted.
            max_queue=settings.max_queue + settings.max_items,
            observe=self.metrics.observe_batch,
        )
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="msdscore-decode")
        # Matplotlib's settings belong to the whole process: figures are drawn one after the other.
        self._drawer = ThreadPoolExecutor(1, thread_name_prefix="msdscore-draw")
        self._pixels = PixelBudget(settings.max_decoded)
        self._figures, self._files = asyncio.Semaphore(FIGURES), asyncio.Semaphore(1)
        self.images = Stored[bytes]("image", "/v1/images", settings.max_stored)
        self._tables = Stored[pa.Table]("file", "/v1/rows", settings.max_stored)
        self._accepted, self._started = 0, False
        self._idle: asyncio.TimerHandle | None = None
        self.body_bytes = 0  # of requests in flight; kept by the guard
        self.closing = asyncio.Event()

    @property
    def signature(self) -> str:
        """The signature that every answer carries."""
        return self._pipeline.signature

    @property
    def problem(self) -> str | None:
        """Why the next request would not be answered; None where it would."""
        settings = self.settings
        if not self._started or self.closing.is_set():
            return "starting or stopping"
        if self._accepted >= settings.max_queue:
            return "the queue is full"
        if self.body_bytes >= max(settings.max_held, settings.max_body):
            return "the memory for requests is full"
        if self.queue.busy_seconds > settings.timeout:
            return f"the worker has been busy for more than {settings.timeout:g} seconds"
        return None

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self.metrics.observe_request(path, status, seconds)

    async def start(self) -> None:
        """Begin to accept requests."""
        self.queue.start()
        self._started = True

    async def stop(self) -> None:
        """Finish what was accepted, then end all threads."""
        self.closing.set()
        await self.queue.stop()
        if self._idle is not None:
            self._idle.cancel()
        self._decoders.shutdown(wait=True)
        self._drawer.shutdown(wait=True)

    async def score(self, asked: Sequence[Asked], *, kind: Literal["alone", "set"]) -> list[Scores | str]:
        """The scores of every image's captions, or the reason why the image cannot be read."""
        with self._accept(len(asked)):
            return await gather_all(self._score(item, kind) for item in asked)

    async def explain(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """Plain values of the explanations of every image's captions, with reasons for what cannot be read."""
        with self._accept(len(asked)):
            return await gather_all(self._explain(item) for item in asked)

    async def figure(self, asked: Asked, draw: Callable[[Explanations | None, dict[int, str]], bytes]) -> bytes:
        """What `draw` makes of the explanations of an image's captions; raises `RowError` for an unreadable image."""
        with self._accept(1):
            async with self._figures:
                job = Job(_content(asked), asked.captions, "figure")
                explanations, reasons = await self.queue.submit(job, size=len(asked.captions), alone=True)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._drawer, draw, explanations, reasons)

    async def read_rows(self, name: str, content: bytes) -> str:
        """Read a scored file, one at a time; returns the name by which `rows` knows it."""
        with self._accept(1):
            async with self._files:
                table = await read_table(name, content, self.settings)
                return self._tables.add(content, table, table.nbytes)

    async def rows(self, name: str, query: RowsQuery) -> dict[str, Any]:
        """The worst rows of a scored file that was read before; raises `ValueError` for another."""
        return await asyncio.to_thread(worst_rows, self._tables.get(name), query) | {"file": name}

    @contextmanager
    def _accept(self, images: int) -> Iterator[None]:
        if self._accepted >= self.settings.max_queue:
            raise queue_full()
        if self._idle is not None:
            self._idle.cancel()
        self._accepted += images
        try:
            yield
        finally:
            self._accepted -= images
            if not self._accepted and not self.closing.is_set():
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._decoders.submit, trim_memory)

    async def _score(self, asked: Asked, kind: Literal["alone", "set"]) -> Scores | str:
        try:
            async with self._decoded(_content(asked)) as image:
                return await self.queue.submit(Job(image, asked.captions, kind), size=len(asked.captions))
        except RowError as error:
            self.metrics.failed(len(asked.captions))
            return str(error)

    async def _explain(self, asked: Asked) -> dict[str, Any]:
        try:
            # Decoded by the worker, one at a time: an explanation needs the image in full size.
            job = Job(_content(asked), asked.captions, "document")
            return await self.queue.submit(job, size=len(asked.captions), alone=True)
        except RowError as error:
            self.metrics.failed(len(asked.captions))
            count, reason = len(asked.captions), str(error)
            return {"error": reason, "explanations": [None] * count, "errors": [reason] * count}

    @asynccontextmanager
    async def _decoded(self, content: bytes) -> AsyncIterator[Decoded]:
        """An image ready for the encoder; its pixels count as in memory until the end of the context."""
        held = min(self.settings.max_pixels, self.settings.max_decoded)
        await self._pixels.take(held)
        try:
            image = await asyncio.get_running_loop().run_in_executor(self._decoders, self._decode, content)
            prepared = min(held, image.prepared.pixels.numel() // 3)
            self._pixels.give(held - prepared)
            held = prepared
            yield image
        finally:
            self._pixels.give(held)

    def _decode(self, content: bytes) -> Decoded:
        image = self._pipeline.decode([content])[0]
        if isinstance(image, RowError):
            raise ImageError(str(image)) from image
        _trim_after(image.prepared.view.size)
        return image

    def _run(self, jobs: Sequence[Job]) -> list[Any]:
        """The results of one batch: all scores in one call of the encoder, explanations one after the other."""
        scores = self._run_scores([job for job in jobs if isinstance(job.image, Decoded)])
        return [next(scores) if isinstance(job.image, Decoded) else self._run_explanation(job) for job in jobs]

    def _run_scores(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        captions = [caption for job in jobs for caption in job.captions]
        owner = [number for number, job in enumerate(jobs) for _ in job.captions]
        images = [job.image for job in jobs if isinstance(job.image, Decoded)]
        numbers = self._pipeline.score(images, captions, owner) if jobs else []
        start = 0
        for job in jobs:
            size = len(job.captions)
            sets = list(range(size)) if job.kind == "alone" else [0] * size
            own = numbers[start : start + size]
            yield Scores.of(job.captions, own, sets, self._pipeline.config, self.signature)
            start += size

    def _run_explanation(self, job: Job) -> Any:
        """Explanations of the captions that can be read, and by index why the others cannot; or the image's error."""
        assert isinstance(job.image, bytes), "explanations are made from the bytes of a file"
        try:
            refused = self._pipeline.embed_texts(job.captions).reasons
            good = [caption for number, caption in enumerate(job.captions) if number not in refused]
            explanations = explain(self._pipeline, job.image, good) if good else None
        except RowError as error:
            return error
        if explanations is not None:
            _trim_after(explanations[0].patches.size)
        reasons = {number: str(reason) for number, reason in refused.items()}
        if job.kind == "document":
            return explanation_documents(explanations, reasons, len(job.captions))
        return None if explanations is None else _smaller(explanations), reasons


def _smaller(explanations: Explanations) -> Explanations:
    """The same with a smaller image, which is all that figures show."""
    image = thumbnail(explanations[0].picture, FIGURE_PIXELS)
    return Explanations(tuple(replace(item, image=image) for item in explanations))


def _content(asked: Asked) -> bytes:
    if asked.error is not None:
        raise ImageError(asked.error)
    return asked.image


class PixelBudget:
    """A number of pixels that all requests share; `take` waits until enough of it is free."""

    def __init__(self, pixels: int) -> None:
        self._free, self._given = pixels, asyncio.Event()

    async def take(self, pixels: int) -> None:
        """Wait for room."""
        while self._free < pixels:
            await self._given.wait()
        self._free -= pixels

    def give(self, pixels: int) -> None:
        """Make room for others."""
        self._free += pixels
        self._given.set()
        self._given = asyncio.Event()


def trim_memory() -> None:
    """Give memory that the allocator keeps after large images back to the system, where it can (glibc)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _trim_after(size: tuple[int, int]) -> None:
    """Trim at once after a large image: the next ones would take new memory instead of what it left in pieces."""
    if size[0] * size[1] >= LARGE:
        trim_memory()


async def gather_all(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results; where one fails or the caller goes, the others are given up too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Metrics:
    """Counters of one service for Prometheus; in a registry of its own, so that two services do not mix."""

    def __init__(self) -> None:
        self._library: Any = require("prometheus_client", extra="serve")
        self._registry = self._library.CollectorRegistry()
        kinds, own = self._library, {"registry": self._registry}
        self._requests = kinds.Counter("msdscore_requests", "Requests answered.", ["path", "status"], **own)
        self._seconds = kinds.Histogram("msdscore_request_seconds", "Time to answer.", ["path"], **own)
        self._batch = kinds.Histogram(
            "msdscore_batch_captions", "Captions per call of the encoder.", buckets=(1, 2, 4, 8, 16, 32, 64), **own
        )
        self._busy = kinds.Counter("msdscore_worker_seconds", "Time that the worker spent on batches.", **own)
        self._failed = kinds.Counter("msdscore_captions_failed", "Captions without a score.", **own)
        self._waiting = kinds.Gauge("msdscore_queue", "Jobs that wait.", **own)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def observe_batch(self, captions: int, seconds: float) -> None:
        """Count one call of the encoder."""
        self._batch.observe(captions)
        self._busy.inc(seconds)

    def failed(self, captions: int) -> None:
        """Count captions that could not be scored."""
        self._failed.inc(captions)

    def text(self, waiting: int) -> tuple[bytes, str]:
        """All numbers in Prometheus' text form, and its content type."""
        self._waiting.set(waiting)
        return self._library.generate_latest(self._registry), self._library.CONTENT_TYPE_LATEST
