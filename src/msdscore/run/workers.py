"""Score shards on worker processes of this machine: one per GPU, or one for every two cores."""

import os
import signal
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Lock
from typing import Self

from msdscore import threads
from msdscore.core.arrays import gpu_count
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io import stores
from msdscore.io.files import is_address
from msdscore.io.stores import expand_all, score_names
from msdscore.io.targets import refuse_inputs
from msdscore.rows.rules import Row
from msdscore.run.folder import ShardJob, ShardResult
from msdscore.run.shards import THREADS, ShardOptions, ShardWorker, check_copied
from msdscore.scoring.spec import ScorerSpec

TRIES = 3  # of a shard whose worker dies
# Concurrent shards per GPU: one whose last rows are scored and written, and the next one, which is read meanwhile.
GPU_SHARDS = 2


def plan_jobs(patterns: Sequence[str], folder: str) -> list[ShardJob]:
    """Return one job per shard that matches the patterns, with its scores in a folder or under an address."""
    shards = expand_all(patterns)
    outputs = [stores.join(folder, name) for name in score_names(shards)]
    # All inputs of all shards: the scores of one may have the name of another's table of images.
    refuse_inputs([] if is_address(folder) else map(Path, outputs), shards)
    return [ShardJob(shard, output) for shard, output in zip(shards, outputs, strict=True)]


def score_on_workers(
    spec: ScorerSpec,
    jobs: Sequence[ShardJob],
    options: ShardOptions,
    *,
    workers: int | None = None,
    at_once: int | None = None,
) -> Iterator[ShardResult]:
    """Score shards on worker processes and yield their results as they are done.

    A worker that dies is replaced, and its shards are tried again. The default number of `workers` is one per GPU, else
    one for every two cores; a single one is this process. Each scores `at_once` shards concurrently, see `score_jobs`.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    check_copied(jobs, options)
    count = min(workers or default_workers(spec), len(jobs))
    if count <= 1:
        yield from score_jobs(spec, jobs, options, at_once=at_once)
        return
    each = shards_at_once(spec) if at_once is None else at_once
    pool = _Pool([spec_of_worker(spec, number, count) for number in range(count)], options, each)
    try:
        yield from pool.run(jobs)
    finally:
        pool.stop()


def default_workers(spec: ScorerSpec) -> int:
    """Return one process per GPU if the scorer may choose its device, else one for every two cores."""
    if spec.device == "auto" and (count := gpu_count()):
        return count
    return 1 if spec.device.startswith("cuda") else max(1, threads.available() // (spec.threads or THREADS))


def spec_of_worker(spec: ScorerSpec, number: int, workers: int) -> ScorerSpec:
    """Return the scorer of one of several workers: on its GPU, with its share of the cores for decoding by default."""
    if spec.decoders is None:
        spec = replace(spec, decoders=max(1, threads.available() // workers) if is_on_gpu(spec) else 0)
    if spec.device == "auto" and (count := gpu_count()):
        spec = replace(spec, device=f"cuda:{number % count}")
    return spec


@dataclass
class _Member:
    """A worker process, the pipe to it, and its jobs."""

    process: BaseProcess
    pipe: Connection
    number: int
    jobs: list[ShardJob] = field(default_factory=list)


class _Pool:
    """Worker processes that receive few shards at a time, so that the shards of a dead worker are known.

    They are tried again one by one: a shard is never given up because of another one.
    """

    def __init__(self, specs: Sequence[ScorerSpec], options: ShardOptions, at_once: int) -> None:
        self._specs, self._options, self._at_once = specs, options, at_once
        self._members: list[_Member] = []
        self._tries: Counter[ShardJob] = Counter()

    def run(self, jobs: Sequence[ShardJob]) -> Iterator[ShardResult]:
        waiting = deque(jobs)
        self._members = [self._start(number) for number in range(len(self._specs))]
        while waiting or any(member.jobs for member in self._members):
            for most, member in product(range(self._at_once), self._members):
                # A shard that was lost before runs alone.
                was_lost = waiting and (self._tries[waiting[0]] or any(self._tries[job] > 1 for job in member.jobs))
                if waiting and len(member.jobs) <= most and not (member.jobs and was_lost):
                    job = waiting.popleft()
                    member.jobs.append(job)
                    self._tries[job] += 1
                    with suppress(BrokenPipeError):  # it has died, which `_receive` notices
                        member.pipe.send(job)
            ready = set(wait([member.pipe for member in self._members if member.jobs]))
            for member in [member for member in self._members if member.pipe in ready]:
                result = self._receive(member, waiting)
                if result is not None:
                    yield result

    def stop(self) -> None:
        """End all workers; they leave no partial file."""
        for member in self._members:
            member.process.terminate()
        for member in self._members:
            member.process.join(timeout=10)
            member.process.kill()  # a process that hangs ignores SIGTERM
            member.pipe.close()

    def _receive(self, member: _Member, waiting: deque[ShardJob]) -> ShardResult | None:
        """Return the result of a worker; if it has died, replace it and requeue its shards."""
        try:
            result = member.pipe.recv()
        except (EOFError, ConnectionError):
            result = None
        if isinstance(result, MSDScoreError):  # such as a missing encoder: no shard can be scored
            raise result
        if result is not None:
            member.jobs = [job for job in member.jobs if job.output != result.output]
            return result
        member.process.join()
        member.pipe.close()
        self._members[member.number] = self._start(member.number)
        again = [job for job in member.jobs if self._tries[job] < TRIES]
        waiting.extendleft(reversed(again))
        if again:
            return None
        (job,) = member.jobs  # a shard that was tried before runs alone
        code, again_lost = member.process.exitcode or 0, "and again when it was tried again"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reason = f"its worker process ended ({how}), {again_lost}; out of memory?"
        return ShardResult(job.source, job.output, error=f"{job.source}: {reason}")

    def _start(self, number: int) -> _Member:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        work = (self._specs[number], self._options, self._at_once, theirs)
        process = context.Process(target=_serve, args=work, daemon=True, name=f"msdscore-{number}")
        process.start()
        theirs.close()
        return _Member(process, ours, number)


def _serve(spec: ScorerSpec, options: ShardOptions, at_once: int, pipe: Connection) -> None:
    """Score the shards received through a pipe; exit with the process at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends this one
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sending = Lock()

    def answer(done: "Future[ShardResult]") -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or isinstance(error, CancelledError):
            return
        if error is not None and not isinstance(error, MSDScoreError):  # a bug ends the worker
            traceback.print_exception(error)
            os._exit(1)
        with sending, suppress(BrokenPipeError):
            pipe.send(error or done.result())

    with Overlapping(ShardWorker(spec, options, at_once)) as shards:
        try:
            while True:
                shards.submit(pipe.recv()).add_done_callback(answer)
        except (EOFError, ConnectionError):
            # The parent was killed: exit at once, since another run may finish these shards first.
            os._exit(1)


class Overlapping:
    """Scores shards in threads: the next one starts when all rows of the previous one are read; a context manager.

    On exit, unfinished shards are cancelled when they read their next row.
    """

    def __init__(self, worker: ShardWorker) -> None:
        self._worker, self._turn, self._stopped = worker, Lock(), Event()
        self._pool = ThreadPoolExecutor(worker.at_once, thread_name_prefix="msdscore-shard")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, job: ShardJob) -> "Future[ShardResult]":
        """Score a shard after those that were submitted before."""
        return self._pool.submit(self._score, job)

    def _score(self, job: ShardJob) -> ShardResult:
        with ExitStack() as turn:

            def watch(rows: Iterator[Row]) -> Iterator[Row]:
                for row in rows:
                    if self._stopped.is_set():
                        raise CancelledError
                    yield row
                turn.close()

            turn.enter_context(self._turn)
            if self._stopped.is_set():
                raise CancelledError
            return self._worker(job, watch=watch)


def score_jobs(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, *, at_once: int | None = None
) -> Iterator[ShardResult]:
    """Score shards in this process, and yield their results in order.

    At most `at_once` shards run concurrently: the next one starts when all rows of the previous one are read. The
    default is two on a GPU, which then does not wait at the end of a shard, else one.
    """
    count = min(shards_at_once(spec) if at_once is None else at_once, len(jobs))
    worker = ShardWorker(spec, options, max(1, count))
    if count > 1:
        with threads.restored(), Overlapping(worker) as shards:
            for future in [shards.submit(job) for job in jobs]:
                yield future.result()
        return
    for job in jobs:
        with threads.restored():
            result = worker(job)
        yield result


def is_on_gpu(spec: ScorerSpec) -> bool:
    """Return whether a scorer will run on a GPU."""
    return spec.device.startswith("cuda") or (spec.device == "auto" and gpu_count() > 0)


def shards_at_once(spec: ScorerSpec) -> int:
    """Return the default number of concurrent shards of one process."""
    # The statistics of a cache are per shard, and count one shard at a time.
    return GPU_SHARDS if is_on_gpu(spec) and spec.cache is None else 1
