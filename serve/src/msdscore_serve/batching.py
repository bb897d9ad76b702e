"""Batching of requests: one priority queue, in which edits of the page come first, and one worker thread."""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from msdscore_serve.settings import RequestError

Job = TypeVar("Job")
Result = TypeVar("Result")
PATIENCE = 20.0  # seconds after which a job precedes later urgent ones
EDITING = 30.0  # seconds after an urgent job during which another one is expected
SHORT = 0.05  # target seconds per batch in that time, since an urgent job waits for its end
CALM = 0.15  # target at other times: the first edit under load waits for a batch too
LEAST = 4  # captions of a batch at any rate: on `mini` four take twice the time of one


class _Entry(NamedTuple, Generic[Job, Result]):
    """A job in the queue, in the order of `due` and `number`, and the future its caller awaits."""

    due: float
    number: int
    job: Job
    size: int
    cost: int
    alone: bool
    future: "asyncio.Future[Result]"


class Batcher(Generic[Job, Result]):
    """Passes jobs to `run` in batches of up to `max_batch` captions; `run` returns a result or an error per job.

    The first job of a batch waits at most `max_wait` seconds for others. The size of a batch is limited by the
    measured rate of the worker, in seconds per unit of cost; until it is known, a batch is one job, then at least
    `LEAST`: small batches have a low rate, which would keep them small. `spent` returns the cost of the work so far if
    it is lower than that of all jobs: cached results do not count towards the rate. A job whose caller has disconnected
    is dropped before it runs. `stop` finishes the accepted jobs.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
        spent: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._run, self._max_batch, self._max_wait, self._observe = run, max_batch, max_wait, observe
        self._spent = spent
        self._queue: asyncio.PriorityQueue[_Entry[Job, Result]] = asyncio.PriorityQueue()
        self.waiting = self._queue.qsize  # number of jobs in the queue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="msdscore-worker")
        self._task: asyncio.Task[None] | None = None
        self._numbers = count()
        self._started: float | None = None  # start time of the current batch
        self._urgent = -math.inf  # time of the last urgent job
        self._pace = math.inf  # seconds per unit of cost of the last batch
        self._closing = False

    @property
    def busy_seconds(self) -> float:
        """Time since the start of the current batch; 0 if there is none."""
        return 0.0 if self._started is None else asyncio.get_running_loop().time() - self._started

    async def stop(self) -> None:
        """Reject new jobs, finish the accepted ones, and end the worker thread."""
        self._closing = True
        await self._queue.join()
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=True)

    async def submit(
        self, job: Job, *, size: int, cost: int | None = None, alone: bool = False, urgent: bool = False
    ) -> Result:
        """Queue one job and wait for its result; raise `RequestError` if the service is stopping.

        `size` is its number of captions, and `cost` (by default the same) its share of a batch's time. A job that runs
        `alone` is a batch of its own, so that its caller does not wait for other jobs. An `urgent` job overtakes jobs
        that have not waited long.
        """
        if self._closing:
            raise RequestError(503, "the service is stopping")
        loop = asyncio.get_running_loop()
        self._task = self._task or loop.create_task(self._work())
        due, future = loop.time() + PATIENCE, loop.create_future()
        if urgent:
            self._urgent = due = loop.time()
        self._queue.put_nowait(_Entry(due, next(self._numbers), job, size, cost or size, alone, future))
        # If the caller disconnects, this await and the future are cancelled, and the worker skips the job.
        return await future

    async def _work(self) -> None:
        while True:
            # A separate function, so that no local name keeps the last batch in memory while the next one is awaited.
            await self._answer(await self._collect())

    async def _collect(self) -> list[_Entry[Job, Result]]:
        """Collect the next batch: queued jobs, and those that arrive within `max_wait`."""
        loop = asyncio.get_running_loop()
        first = await self._queue.get()
        batch, size, cost, until = [first], first.size, first.cost, loop.time() + self._max_wait
        seconds = SHORT if loop.time() - self._urgent < EDITING else CALM
        most = seconds / self._pace if self._pace > 0 else math.inf
        most = max(most, LEAST) if self._pace < math.inf else 1
        while size < self._max_batch and cost < most and not first.alone:
            try:
                left = until - loop.time()
                entry = self._queue.get_nowait() if left <= 0 else await asyncio.wait_for(self._queue.get(), left)
            except (asyncio.QueueEmpty, TimeoutError):
                break
            if entry.alone or size + entry.size > self._max_batch or cost + entry.cost > most:
                self._queue.put_nowait(entry)  # back to its position
                self._queue.task_done()
                break
            batch.append(entry)
            size, cost = size + entry.size, cost + entry.cost
        return batch

    async def _answer(self, batch: list[_Entry[Job, Result]]) -> None:
        loop = asyncio.get_running_loop()
        wanted = [entry for entry in batch if not entry.future.cancelled()]
        self._started, before = (started := loop.time()), self._spent()
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
        size, seconds = sum(entry.size for entry in wanted), loop.time() - started
        after = self._spent()
        cost = sum(entry.cost for entry in wanted) if before is None or after is None else after - before
        if cost and not batch[0].alone:
            self._pace = seconds / cost
        self._observe(size, seconds)
        for entry, result in zip(wanted, results, strict=True):
            if entry.future.cancelled():
                continue
            if isinstance(result, Exception):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)
