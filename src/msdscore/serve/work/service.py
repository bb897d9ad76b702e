"""The state behind the routes: a judge, the queue before it, threads that decode and draw, and counters."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msdscore.errors import RowError
from msdscore.scoring.embedded import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores
from msdscore.serve.requests.reading import Asked
from msdscore.serve.settings import ServeSettings
from msdscore.serve.work.gathering import Gatherer, QueueFullError
from msdscore.serve.work.judge import Explained, Judge, Question
from msdscore.serve.work.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

Found = TypeVar("Found")
DECODERS = 2  # threads that read pictures while the worker scores others


class GoneError(Exception):
    """The caller has gone before the answer was ready."""


@dataclass(frozen=True, slots=True)
class Task:
    """What the worker is given: a question to score with others, or to explain."""

    question: Question
    explain: bool = False


class Service:
    """Takes questions up to a limit, decodes their pictures in threads, and has the worker answer them in batches."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings, self.telemetry = settings, Telemetry()
        self.judge = Judge(pipeline, memory=settings.cache)
        self.queue: Gatherer[Task, Scores | Explained] = Gatherer(
            self._work,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            # A request may bring several pictures when there is room for one: they all find a place.
            max_queue=settings.max_queue + settings.max_items,
            observe=self.telemetry.worked,
        )
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="msdscore-decode")
        # Matplotlib's settings belong to the whole process: figures are drawn one after the other.
        self._drawer = ThreadPoolExecutor(1, thread_name_prefix="msdscore-draw")
        self._taken, self.ready = 0, False

    @property
    def full(self) -> bool:
        """Whether the next request is answered 503."""
        return self._taken >= self.settings.max_queue

    async def start(self) -> None:
        """Begin to take requests."""
        self.queue.start()
        self.ready = True

    async def stop(self) -> None:
        """Finish what was taken, then end all threads."""
        self.ready = False
        await self.queue.stop()
        self._decoders.shutdown(wait=True)
        self._drawer.shutdown(wait=True)

    async def score(self, asked: Sequence[Asked], *, apart: bool) -> list[Scores | str]:
        """The scores of every picture's captions, or the reason why the picture cannot be read."""
        with self._room(len(asked)):
            answers = await _all(self._ask(one, apart=apart) for one in asked)
        return [found for found in answers if not isinstance(found, Explained)]

    async def explain(self, asked: Sequence[Asked]) -> list[Explained | str]:
        """The explanations of every picture's captions, or the reason why the picture cannot be read."""
        with self._room(len(asked)):
            answers = await _all(self._ask(one, explain=True) for one in asked)
        return [found for found in answers if not isinstance(found, Scores)]

    async def draw(self, make: Callable[[], bytes]) -> bytes:
        """A figure, drawn in the thread for figures."""
        with self._room(1):
            return await asyncio.get_running_loop().run_in_executor(self._drawer, make)

    async def read(self, read: Callable[[], Found]) -> Found:
        """Something read in the threads for pictures."""
        with self._room(1):
            return await asyncio.get_running_loop().run_in_executor(self._decoders, read)

    @contextmanager
    def _room(self, pictures: int) -> "Iterator[None]":
        if self.full:
            raise QueueFullError
        self._taken += pictures
        try:
            yield
        finally:
            self._taken -= pictures

    async def _ask(self, asked: Asked, *, explain: bool = False, apart: bool = False) -> Scores | Explained | str:
        loop = asyncio.get_running_loop()
        try:
            read = partial(self.judge.decode, asked.picture, keep=explain)
            decoded: Decoded = await loop.run_in_executor(self._decoders, read)
            task = Task(Question(decoded, asked.captions, apart), explain)
            return await self.queue.submit(task, size=len(asked.captions))
        except RowError as error:
            self.telemetry.failed(len(asked.captions))
            return str(error)

    def _work(self, tasks: Sequence[Task]) -> list[Scores | Explained | Exception]:
        """Answers of one batch: all scores in one call of the encoder, explanations one after the other."""
        plain = [task.question for task in tasks if not task.explain]
        scores = iter(self.judge.score(plain) if plain else [])
        return [self._explain(task.question) if task.explain else next(scores) for task in tasks]

    def _explain(self, question: Question) -> Explained | Exception:
        try:
            return self.judge.explain(question)
        except RowError as error:
            return error


async def unless_gone(request: "Request", work: Coroutine[Any, Any, Found]) -> Found:
    """The result of some work, which is given up when the caller goes away; the body must have been read."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        task.cancel()
        watch.cancel()


async def _gone(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _all(works: "Iterator[Coroutine[Any, Any, Found]]") -> list[Found]:
    """All results; where one fails or the caller goes, the others are given up too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
