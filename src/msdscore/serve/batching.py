"""Requests of several callers joined into batches: a bounded queue and one worker thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from msdscore.serve.guard import RefusedError

Job = TypeVar("Job")
Result = TypeVar("Result")


class _Entry(NamedTuple, Generic[Job, Result]):
    """A job in the queue, how many captions it has, whether it gains by company, and the future its caller awaits."""

    job: Job
    size: int
    alone: bool
    future: "asyncio.Future[Result]"


class Batcher(Generic[Job, Result]):
    """Passes jobs to `run` in batches of up to `max_batch` captions; `run` gives a result or an error per job.

    The first job of a batch waits at most `max_wait` seconds for others. A job whose caller has gone is dropped before
    it costs anything. `stop` finishes what was accepted.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._run, self._max_batch, self._max_wait, self._observe = run, max_batch, max_wait, observe
        self._queue: asyncio.Queue[_Entry[Job, Result]] = asyncio.Queue(max_queue)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="msdscore-worker")
        self._task: asyncio.Task[None] | None = None
        self._next: _Entry[Job, Result] | None = None  # did not fit into the last batch
        self._started: float | None = None  # when the worker began its batch
        self._closing = False

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._queue.qsize()

    @property
    def busy_seconds(self) -> float:
        """Time since the worker began its present batch; 0 where it has none."""
        return 0.0 if self._started is None else asyncio.get_running_loop().time() - self._started

    def start(self) -> None:
        """Start the worker; call it inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Accept nothing new, finish what was accepted, end the worker thread."""
        self._closing = True
        await self._queue.join()
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=True)

    async def submit(self, job: Job, *, size: int, alone: bool = False) -> Result:
        """The result of one job; refused at once where the queue is full or the service stops.

        A job that runs `alone` is answered as soon as it is done, not with others of a batch.
        """
        if self._closing:
            raise RefusedError(503, "the service is stopping")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Entry(job, size, alone, future))
        except asyncio.QueueFull:
            raise queue_full() from None
        # A caller that goes away cancels this await, and with it the future: the worker then skips the job.
        return await future

    async def _work(self) -> None:
        while True:
            # In a function of its own: no name here may keep the last batch alive while the next one is awaited.
            await self._answer(await self._collect())

    async def _collect(self) -> list[_Entry[Job, Result]]:
        """The next batch: what waits already, and what comes within `max_wait`."""
        loop = asyncio.get_running_loop()
        first = self._next or await self._queue.get()
        self._next = None
        batch, size, until = [first], first.size, loop.time() + self._max_wait
        while size < self._max_batch and not first.alone:
            try:
                left = until - loop.time()
                entry = self._queue.get_nowait() if left <= 0 else await asyncio.wait_for(self._queue.get(), left)
            except (asyncio.QueueEmpty, TimeoutError):
                break
            if entry.alone or size + entry.size > self._max_batch:
                self._next = entry
                break
            batch.append(entry)
            size += entry.size
        return batch

    async def _answer(self, batch: list[_Entry[Job, Result]]) -> None:
        loop = asyncio.get_running_loop()
        wanted = [entry for entry in batch if not entry.future.cancelled()]
        self._started = started = loop.time()
        results: Sequence[Result | Exception]
        try:
            jobs = [entry.job for entry in wanted]
            results = await loop.run_in_executor(self._thread, self._run, jobs) if jobs else []
        except Exception as error:  # noqa: BLE001, one bad batch must not end the worker
            results = [error] * len(wanted)
        finally:
            self._started = None
            for _ in batch:
                self._queue.task_done()
        self._observe(sum(entry.size for entry in wanted), loop.time() - started)
        for entry, result in zip(wanted, results, strict=True):
            if entry.future.cancelled():
                continue
            if isinstance(result, Exception):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)


def queue_full() -> RefusedError:
    """The refusal of a request for which there is no room."""
    return RefusedError(503, "the queue is full; try again in a second")
