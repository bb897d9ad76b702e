"""Shards on the processes of this machine: one per GPU, or several on its cores; one that dies loses nothing."""

import signal
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from msdscore.engine.jobs import THREADS, ShardJob, ShardWorker, is_on_gpu, lost, score_jobs
from msdscore.engine.shard import ShardOptions, ShardResult
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io.kept_decoders import cores
from msdscore.scoring.spec import ScorerSpec

TRIES = 3  # of one shard, whose worker dies


def score_on_workers(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, *, workers: int | None = None
) -> Iterator[ShardResult]:
    """Score shards on worker processes and give their results as they are done.

    A worker that dies is replaced, and its shard tried again. Without `workers` there is one per GPU, else one for
    every two cores; with one, everything runs in this process.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    count = min(workers or default_workers(spec), len(jobs))
    if count <= 1:
        yield from score_jobs(spec, jobs, options)
        return
    pool = _Pool(_sharing_cores(spec, count), options, count)
    try:
        yield from pool.run(jobs)
    finally:
        pool.stop()


def default_workers(spec: ScorerSpec) -> int:
    """One process per GPU where the scorer may choose its device; else one for every two cores."""
    import torch

    if spec.device == "auto" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return 1 if spec.device.startswith("cuda") else max(1, cores() // THREADS)


def _sharing_cores(spec: ScorerSpec, workers: int) -> ScorerSpec:
    """The scorer of one of several workers: beside a GPU each has its share of the cores to decode, unless told."""
    share = max(1, cores() // workers) if is_on_gpu(spec) else 0
    return spec if spec.decoders is not None else replace(spec, decoders=share)


@dataclass
class _Member:
    """A worker process, the pipe to it, and the job that it has."""

    process: BaseProcess
    pipe: Connection
    number: int
    job: ShardJob | None = None


class _Pool:
    """Worker processes that get one shard at a time, so that it is known which one a dead worker had."""

    def __init__(self, spec: ScorerSpec, options: ShardOptions, count: int) -> None:
        self._spec, self._options, self._count = spec, options, count
        self._members: list[_Member] = []
        self._tries: Counter[ShardJob] = Counter()

    def run(self, jobs: Sequence[ShardJob]) -> Iterator[ShardResult]:
        waiting = deque(jobs)
        self._members = [self._start(number) for number in range(self._count)]
        while waiting or any(member.job for member in self._members):
            for member in self._members:
                if member.job is None and waiting:
                    self._give(member, waiting.popleft())
            ready = set(wait([member.pipe for member in self._members if member.job]))
            for member in [one for one in self._members if one.pipe in ready]:
                result = self._receive(member, waiting)
                if result is not None:
                    yield result

    def stop(self) -> None:
        """End all workers: they leave no half-written file behind."""
        for member in self._members:
            member.process.terminate()
        for member in self._members:
            member.process.join(timeout=10)
            member.pipe.close()

    def _give(self, member: _Member, job: ShardJob) -> None:
        member.job = job
        self._tries[job] += 1
        with suppress(BrokenPipeError):  # it has died; receiving from it will tell
            member.pipe.send(job)

    def _receive(self, member: _Member, waiting: deque[ShardJob]) -> ShardResult | None:
        """The result of a worker; where it has died, a new one in its place and its shard back among the waiting."""
        job = member.job
        assert job is not None, "only workers with a job are waited for"
        try:
            found = member.pipe.recv()
        except (EOFError, ConnectionError):
            found = None
        if isinstance(found, MSDScoreError):  # such as an encoder that is not there: it is so for every shard
            raise found
        if found is not None:
            member.job = None
            return found
        member.process.join()
        code = member.process.exitcode
        member.pipe.close()
        self._members[member.number] = self._start(member.number)
        if self._tries[job] < TRIES:
            waiting.appendleft(job)
            return None
        return ShardResult(job.source, job.output, error=lost(job, code))

    def _start(self, number: int) -> _Member:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        work = _Assignment(self._spec, self._options, number)
        process = context.Process(target=_serve, args=(work, theirs), daemon=True, name=f"msdscore-{number}")
        process.start()
        theirs.close()
        return _Member(process, ours, number)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """What one worker process needs to know."""

    spec: ScorerSpec
    options: ShardOptions
    number: int


def _serve(work: _Assignment, pipe: Connection) -> None:
    """Score the shards that come through a pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that asked us ends us
    signal.signal(signal.SIGTERM, _leave)
    worker = ShardWorker(_placed(work), work.options)
    with suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                pipe.send(worker(job))
            except MSDScoreError as error:
                pipe.send(error)


def _placed(work: _Assignment) -> ScorerSpec:
    """The scorer on this worker's device."""
    import torch

    if work.spec.device == "auto" and torch.cuda.is_available():
        return replace(work.spec, device=f"cuda:{work.number % torch.cuda.device_count()}")
    return work.spec


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
