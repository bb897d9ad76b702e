"""State of the service: pipeline, queue, threads that decode and draw, and metrics."""

import asyncio
import ctypes
import math
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import prometheus_client as prometheus

from msdscore import threads
from msdscore.errors import ImageError, RowError
from msdscore.explain.explanation import Explanation, Explanations, encoded, explain_embedded, image_of
from msdscore.explain.maps import thumbnail
from msdscore.forms.base import LIKELY_WRONG, finding
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Score, Scores
from msdscore.scoring.rows import finish, scores_of_rows
from msdscore_serve.batching import Batcher
from msdscore_serve.page import explanation_documents
from msdscore_serve.reading import RequestItem, Stored
from msdscore_serve.schema import ExplainQuery, FigureQuery
from msdscore_serve.settings import RequestError, ServeSettings

Result = TypeVar("Result")
DECODERS = 2  # threads that decode images while the worker scores others
MAX_FIGURES = 4  # explanations that are drawn or wait to be drawn
FIGURE_PIXELS = 1120  # longest side of an image that is explained: twice that of figures and pages
IMAGE = 8  # captions whose encoding takes as long as that of an image
LATEST = 8  # uploads whose pixels are cached for further captions
LARGE = 8_000_000  # pixels of an image after which memory is trimmed
IDLE_SECONDS = 0.5  # without a request, until freed memory is returned to the system


@dataclass(frozen=True, slots=True)
class Job:
    """Captions of one image for the worker, to score or, as one candidate set, to explain."""

    image: Decoded
    captions: tuple[str, ...]
    references: tuple[str, ...] | None
    is_explained: bool = False
    is_edit: bool = False  # of an image that was explained before


class Service:
    """Accepts requests up to a limit, decodes their images in threads, and has one worker score them in batches."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self._pipeline = pipeline.remembering(settings.cache << 19) if settings.cache else pipeline
        self.signature, self.verdict_at = self._pipeline.signature, self._pipeline.verdict_at

        def observe(captions: int, seconds: float) -> None:
            self.metrics.batch.observe(captions)
            self.metrics.busy.inc(seconds)

        self.queue: Batcher[Job, Any] = Batcher(
            self._run,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait / 1000,
            observe=observe,
            spent=self._encoded,
        )
        self.metrics.waiting.set_function(self.queue.waiting)
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="msdscore-decode")
        # Matplotlib's settings are global: figures are drawn one at a time.
        self._drawer = ThreadPoolExecutor(1, thread_name_prefix="msdscore-draw")
        self._slots = asyncio.Semaphore(settings.max_decoded)
        self._figures = asyncio.Semaphore(MAX_FIGURES)
        self.images = Stored(settings.max_stored)
        self._prepared = OrderedDict[str, Decoded]()  # the latest uploads; used by the event loop only
        self._accepted = 0  # images that wait or are processed
        self._requests = 0  # that wait or are processed
        self._idle: asyncio.TimerHandle | None = None
        self.body_bytes = 0  # of requests in flight; updated by the guard
        self.stopping = False  # a signal to stop was received
        self.closing = asyncio.Event()  # no more input is read

    @property
    def problem(self) -> str | None:
        """Return the reason why the next request would be rejected; None if it would be accepted."""
        settings = self.settings
        if self.stopping or self.closing.is_set():
            return "the service is stopping"
        if self._accepted >= settings.max_queue:
            return "the queue is full"
        if self.body_bytes >= max(settings.max_held, settings.max_body):
            return "the memory for requests is full"
        if self.queue.busy_seconds > settings.timeout:
            return f"the worker has been busy for more than {settings.timeout:g} seconds"
        return None

    async def stop(self) -> None:
        """Finish accepted requests, then end all threads."""
        self.closing.set()
        await self.queue.stop()
        if self._idle is not None:
            self._idle.cancel()
        self._decoders.shutdown(wait=True)
        self._drawer.shutdown(wait=True)

    async def score(self, items: Sequence[RequestItem], *, together: bool = False) -> list[Scores]:
        """Return the scores of every image's captions, separately or `together` as one candidate set.

        If an image cannot be read, each of its captions has that error.
        """
        with self._accept(len(items)):
            return await gather_all(self._score(item, together) for item in items)

    async def explain(self, items: Sequence[RequestItem], query: ExplainQuery) -> list[dict[str, Any]]:
        """Explain every image's captions as plain values, with errors for those that cannot be read."""
        with self._accept(len(items)):
            return await gather_all(self._explain(item, query) for item in items)

    async def figure(self, item: RequestItem, query: FigureQuery) -> bytes:
        """Draw the explanations of an image's captions; raises `RowError` for an image or caption without one."""
        with self._accept(1):
            async with self._figures:
                explanations, reasons = await self._explanations(item, query.set)
                if explanations is None:
                    raise RowError(next(iter(reasons.values())))
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._drawer, encoded, explanations.items, query.kind)

    @contextmanager
    def _accept(self, images: int) -> Iterator[None]:
        if self._accepted >= self.settings.max_queue:
            raise RequestError(503, "the queue is full; try again in a second")
        if self._idle is not None:
            self._idle.cancel()
        self._accepted += images
        self._requests += 1
        try:
            yield
        finally:
            self._accepted -= images
            self._requests -= 1
            if not self._accepted and not self.closing.is_set():
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._decoders.submit, trim_memory)

    async def _score(self, item: RequestItem, together: bool) -> Scores:
        rows = item.rows(together=together)
        good = [row for row in rows if row.error is None]
        numbers: list[Any] = []
        try:
            if good:
                is_known = item.name in self._prepared and bool(self.settings.cache)
                async with self._decoded(item) as image:
                    # One caption per job: a batch consists of whole jobs, and an edit of the page waits for its end.
                    jobs = [Job(image, (row.caption,), row.references) for row in good]
                    results = await gather_all(
                        self.queue.submit(job, size=1, cost=1 if number or is_known else 1 + IMAGE)
                        for number, job in enumerate(jobs)
                    )
                numbers = [result for (result,) in results]
        except RowError as error:
            numbers = [error] * len(good)
        scores = finish(scores_of_rows(self._pipeline, rows, numbers), self._pipeline.form)
        self.metrics.failed.inc(scores.failed)
        for score in scores:
            if score.error is None:
                self.metrics.observe(score)
        return scores

    async def _explain(self, item: RequestItem, query: ExplainQuery) -> dict[str, Any]:
        count = len(item.captions)
        try:
            explained = await self._explanations(item, query.set)
            for explanation in explained[0] or ():
                self.metrics.observe_words(explanation)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoders, explanation_documents, *explained, count, query)
        except RowError as error:
            self.metrics.failed.inc(count)
            return {"error": str(error), "explanations": [None] * count, "errors": [str(error)] * count}

    async def _explanations(self, item: RequestItem, together: bool) -> tuple[Explanations | None, dict[int, str]]:
        """Return explanations of the readable captions, and the errors of the others by index."""
        if item.error is not None:
            raise ImageError(item.error)
        rows = item.rows(together=together)
        reasons = {number: str(row.error) for number, row in enumerate(rows) if row.error is not None}
        good = [number for number in range(len(rows)) if number not in reasons]
        if not good:
            return None, reasons
        step = len(good) if together else 1
        is_edit = item.name in self._prepared
        async with self._decoded(item, keep=True) as image:
            jobs = [
                Job(
                    image,
                    tuple(rows[at].caption for at in good[start : start + step]),
                    rows[0].references,
                    True,
                    is_edit,
                )
                for start in range(0, len(good), step)
            ]
            # An upload is explained for a user who edits its captions.
            parts = await gather_all(
                self.queue.submit(job, size=len(job.captions), alone=True, urgent=bool(item.name)) for job in jobs
            )
        items = [item for explanations, _ in parts for item in explanations]
        reasons |= {
            good[step * part + number]: error
            for part, (_, errors) in enumerate(parts)
            for number, error in errors.items()
        }
        return Explanations(tuple(items)) if items else None, reasons

    @asynccontextmanager
    async def _decoded(self, item: RequestItem, *, keep: bool = False) -> AsyncIterator[Decoded]:
        """Decode an image for the encoder, and with `keep` for figures; it counts as in memory until the context ends.

        The latest uploads stay in memory: what is kept of an image is small.
        """
        known = self._prepared.get(item.name)
        if known is not None and (known.image is not None or not keep):
            self._prepared.move_to_end(item.name)
            yield known
            return
        async with self._slots:
            image = await asyncio.get_running_loop().run_in_executor(self._decoders, self._decode, item.image, keep)
            if item.name:
                self._prepared[item.name] = image
                if len(self._prepared) > LATEST:
                    self._prepared.popitem(last=False)
            yield image

    def _decode(self, content: bytes, keep: bool) -> Decoded:
        image = self._pipeline.decode([content], keep=keep)[0]
        if isinstance(image, RowError):
            raise ImageError(str(image)) from image
        if keep:
            image = replace(image, image=thumbnail(image_of(image), FIGURE_PIXELS))
        trim_memory(image.prepared.view.size)
        return image

    def _encoded(self) -> int | None:
        """Return the cost of the images and captions encoded so far; None without a cache."""
        images, texts = self._pipeline.embedder.known_images, self._pipeline.embedder.known_texts
        return None if images is None or texts is None else IMAGE * images.encoded + texts.encoded

    def _run(self, jobs: Sequence[Job]) -> list[Any]:
        """Run one batch: the scores of all jobs in one call of the encoder, or one explanation.

        With several requests one thread computes: two that wait for each other on busy cores take more time in sum.
        """
        with _one_thread() if jobs[0].is_edit or self._requests > 1 else nullcontext():
            return [self._explained(job) for job in jobs] if jobs[0].is_explained else self._scored(jobs)

    def _scored(self, jobs: Sequence[Job]) -> list[Any]:
        images = {id(job.image): job.image for job in jobs}
        number = {image: number for number, image in enumerate(images)}
        captions = [caption for job in jobs for caption in job.captions]
        owner = [number[id(job.image)] for job in jobs]
        lists = [job.references for job in jobs]
        scores = self._pipeline.score(list(images.values()), captions, owner, references=lists if any(lists) else ())
        return [(row,) for row in scores]  # the error of a caption is a result of its job

    def _explained(self, job: Job) -> Any:
        """Return explanations of the readable captions and the errors of the others by index, or the image's error."""
        embedder = self._pipeline.embedder
        try:
            embedded = embedder.images([job.image]).require()
            errors = embedder.texts(job.captions).errors
            good = [caption for number, caption in enumerate(job.captions) if number not in errors]
            image = image_of(job.image)
            explained = explain_embedded(self._pipeline, image, embedded, good, job.references) if good else ()
        except RowError as error:
            return error
        return tuple(explained), {number: str(error) for number, error in errors.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit the encoder to one thread: one caption gains little from more, and loses much on busy cores."""
    with threads.restored():
        threads.use(1)
        yield


def trim_memory(size: tuple[int, int] | None = None) -> None:
    """Return free memory to the system if the allocator can (glibc); after an image only if it is large.

    After a large image this is done at once, because later images would not reuse its fragmented memory.
    """
    if size is None or size[0] * size[1] >= LARGE:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)


async def gather_all(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Await all results; if one fails or the caller disconnects, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Metrics:
    """Counters of one service for Prometheus; in a separate registry, so that two services do not mix."""

    def __init__(self) -> None:
        registry = prometheus.CollectorRegistry()
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each one, which no dashboard uses
        prometheus.ProcessCollector(registry=registry)
        counter = partial(prometheus.Counter, registry=registry)
        histogram = partial(prometheus.Histogram, registry=registry)
        self.text, self.content_type = partial(prometheus.generate_latest, registry), prometheus.CONTENT_TYPE_LATEST
        self.requests = counter("msdscore_requests", "Requests answered.", ["method", "path", "status"])
        self.seconds = histogram("msdscore_request_seconds", "Time to answer.", ["method", "path"])
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self.batch = histogram("msdscore_batch_captions", "Captions per call of the encoder.", buckets=sizes)
        self.busy = counter("msdscore_worker_seconds", "Time that the worker spent on batches.")
        self.failed = counter("msdscore_captions_failed", "Captions without a score.")
        self.waiting = prometheus.Gauge("msdscore_queue", "Jobs in the queue.", registry=registry)
        # What the captions are like: a change shows that images, captions or their source have changed.
        tenths = [number / 10 for number in range(1, 10)]
        self.match = histogram("msdscore_match", "Probability that a caption belongs to its image.", buckets=tenths)
        self.verdicts = counter("msdscore_verdicts", "Scored captions by verdict.", ["verdict"])
        self.unreadable = counter("msdscore_captions_unreadable", "Captions that the encoder cannot read.")
        self.warnings = counter("msdscore_warnings", "Warnings about captions and images, by kind.", ["warning"])
        self.words = counter("msdscore_words", "Judged words of explained captions.")
        self.flagged = counter("msdscore_words_flagged", "Judged words that are likely wrong.")

    def observe(self, score: Score) -> None:
        """Count a scored caption: its match, verdict and warnings."""
        if not score.readable:
            self.unreadable.inc()
        elif score.match is not None and math.isfinite(score.match):  # one NaN would stay in the sum for good
            self.match.observe(score.match)
        self.verdicts.labels((score.verdict if score.readable else None) or "none").inc()
        for warning in score.warnings:
            self.warnings.labels(kind_of(warning)).inc()

    def observe_words(self, explanation: Explanation) -> None:
        """Count an explained caption and its words."""
        self.observe(explanation.score)
        judged = [unit for unit in explanation.units if unit.content and unit.p_value is not None]
        self.words.inc(len(judged))
        self.flagged.inc(sum(finding(unit.text, unit.p_value, unit.probability) == LIKELY_WRONG for unit in judged))


def kind_of(warning: str) -> str:
    """Return the constant part of a warning: without the words and numbers of the caption.

    >>> kind_of("unknown words: zyzzyva"), kind_of("2 of 5 references ignored: empty or not text")
    ('unknown words', 'references ignored')
    """
    return re.sub(r"^[\d\W]*(of \d+ )?", "", warning).partition(":")[0][:40]
