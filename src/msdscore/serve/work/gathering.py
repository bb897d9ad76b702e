"""Requests gathered into one call of the encoder: a bounded queue and one worker thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Work = TypeVar("Work")
Answer = TypeVar("Answer")


class QueueFullError(Exception):
    """More requests wait than may wait."""


class ClosingError(Exception):
    """The service is about to stop and takes nothing new."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Work, Answer]):
    """A piece of work, how many captions it holds, and the future that its caller waits for."""

    work: Work
    size: int
    future: "asyncio.Future[Answer]"


class Gatherer(Generic[Work, Answer]):
    """Hands work to `do` in batches of up to `max_batch` captions; `do` answers each piece with a value or an error.

    The first piece waits at most `max_wait` seconds for others. A piece whose caller has gone is dropped before it
    costs anything. `stop` finishes what was taken.
    """

    def __init__(
        self,
        do: Callable[[Sequence[Work]], Sequence[Answer | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._do, self._max_batch, self._max_wait, self._observe = do, max_batch, max_wait, observe
        self._queue: asyncio.Queue[_Waiting[Work, Answer]] = asyncio.Queue(max_queue)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="msdscore-worker")
        self._task: asyncio.Task[None] | None = None
        self._held: _Waiting[Work, Answer] | None = None
        self._closing = False

    @property
    def waiting(self) -> int:
        """Pieces of work in the queue."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to work; call it inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take nothing new, finish what was taken, end the worker thread."""
        self._closing = True
        await self._queue.join()
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=True)

    async def submit(self, work: Work, *, size: int) -> Answer:
        """The answer to one piece of work; raises `QueueFullError` at once where no more can wait."""
        if self._closing:
            raise ClosingError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Waiting(work, size, future))
        except asyncio.QueueFull:
            raise QueueFullError from None
        # A caller that goes away cancels this await, and with it the future: the worker then skips the work.
        return await future

    async def _run(self) -> None:
        while True:
            some = await self._gather()
            wanted = [one for one in some if not one.future.cancelled()]
            try:
                if wanted:
                    await self._answer(wanted)
            finally:
                for _ in some:
                    self._queue.task_done()

    async def _gather(self) -> list[_Waiting[Work, Answer]]:
        """The next batch: what waits already, and what comes within the time for company."""
        loop = asyncio.get_running_loop()
        first = self._held or await self._queue.get()
        self._held = None
        some, size, until = [first], first.size, loop.time() + self._max_wait
        while size < self._max_batch:
            try:
                left = until - loop.time()
                following = self._queue.get_nowait() if left <= 0 else await asyncio.wait_for(self._queue.get(), left)
            except (asyncio.QueueEmpty, TimeoutError):
                break
            if size + following.size > self._max_batch:
                self._held = following
                break
            some.append(following)
            size += following.size
        return some

    async def _answer(self, some: Sequence[_Waiting[Work, Answer]]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        answers: Sequence[Answer | Exception]
        try:
            answers = await loop.run_in_executor(self._thread, self._do, [one.work for one in some])
        except Exception as error:  # noqa: BLE001, one bad batch must not end the worker
            answers = [error] * len(some)
        self._observe(sum(one.size for one in some), loop.time() - started)
        for one, answer in zip(some, answers, strict=True):
            if one.future.cancelled():
                continue
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
