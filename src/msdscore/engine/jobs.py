"""Shards to score, and the one who scores them one after the other in any process."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event, Lock
from typing import Self

import torch

from msdscore.engine.shard import ShardOptions, ShardResult, Watch, score_shard
from msdscore.errors import MSDScoreError
from msdscore.io import stores
from msdscore.io.inputs.rows import Row
from msdscore.io.inputs.shards import expand_all, score_names
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec

# Of every worker on the CPU, whatever the machine has: sums over another number of threads differ in their last bits.
THREADS = 2
# Shards in work beside a GPU: one whose last rows are scored and written, and the next one, which is read meanwhile.
GPU_SHARDS = 2


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One input shard, and the file of its scores."""

    source: str
    output: str


def plan_jobs(patterns: Sequence[str], folder: str) -> list[ShardJob]:
    """One job per shard that the patterns name, with its scores in a folder or under an address."""
    shards = expand_all(patterns)
    return [ShardJob(shard, stores.join(folder, name)) for shard, name in zip(shards, score_names(shards), strict=True)]


@dataclass
class ShardWorker:
    """Scores shards with one scorer, which is built when the first unfinished shard comes."""

    spec: ScorerSpec
    options: ShardOptions
    at_once: int = 1  # shards that may be in work at a time
    _built: Pipeline | None = None
    _broken: MSDScoreError | None = None

    def __call__(self, job: ShardJob, *, watch: Watch | None = None) -> ShardResult:
        """Score one shard; what is wrong with it as a whole is told in the result, and the next one can come.

        Its rows pass through `watch` as they are read. Several threads may call it, of which one at a time reads rows.

        Raises:
            MSDScoreError: the scorer itself cannot be built, which is so for every shard.
        """
        torch.set_num_threads(THREADS)
        try:
            return score_shard(self.spec, job.source, job.output, self.options, build=self._pipeline, watch=watch)
        except MSDScoreError as error:
            if error is self._broken:
                raise
            return ShardResult(job.source, job.output, error=str(error))

    def _pipeline(self) -> Pipeline:
        if self._broken is not None:
            raise self._broken
        if self._built is None:
            try:
                self._built = self.spec.build()
                self._built.streams = self.at_once
            except MSDScoreError as error:
                self._broken = error
                raise
        return self._built


class StoppedError(Exception):
    """Nobody waits for the scores any more."""


class Overlapping:
    """Shards in threads: the next one begins when all rows of the one before are read; a context manager.

    At its end shards that are in work are left as soon as they ask for another row.
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
        """Have a shard scored, after those that were submitted before."""
        return self._pool.submit(self._score, job)

    def _score(self, job: ShardJob) -> ShardResult:
        with ExitStack() as held:

            def watch(rows: Iterator[Row]) -> Iterator[Row]:
                for row in rows:
                    self._check()
                    yield row
                held.close()

            held.enter_context(self._turn)
            self._check()
            return self._worker(job, watch=watch)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise StoppedError


def score_jobs(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, *, at_once: int | None = None
) -> Iterator[ShardResult]:
    """Score shards in this process, and give their results in order.

    At most `at_once` shards are in work: the next one begins when all rows of the one before are read. Without it there
    are two beside a GPU, which then does not wait at the end of a shard, else one.
    """
    count = min(shards_at_once(spec) if at_once is None else at_once, len(jobs))
    worker, before = ShardWorker(spec, options, max(1, count)), torch.get_num_threads()
    if count > 1:
        try:
            with Overlapping(worker) as shards:
                for result in [shards.submit(job) for job in jobs]:
                    yield result.result()
        finally:
            torch.set_num_threads(before)
        return
    for job in jobs:
        try:
            found = worker(job)
        finally:
            torch.set_num_threads(before)
        yield found


def is_on_gpu(spec: ScorerSpec) -> bool:
    """Whether a described scorer will compute on a GPU."""
    return spec.device.startswith("cuda") or (spec.device == "auto" and torch.cuda.is_available())


def shards_at_once(spec: ScorerSpec) -> int:
    """How many shards one process has in work unless it is told."""
    # A cache counts what it has spared shard by shard, and knows of one at a time.
    return GPU_SHARDS if is_on_gpu(spec) and spec.cache is None else 1


def lost(job: ShardJob, exit_code: int | None) -> str:
    """Why a shard was given up whose worker ended more than once."""
    code = exit_code or 0
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{job.source}: its worker process ended ({how}), and again when it was tried again; out of memory?"


def overdue(job: ShardJob, limit: float | None) -> str:
    """Why a shard was given up whose worker hung more than once."""
    return (
        f"{job.source}: its worker was ended after {limit:g} seconds (--time-limit), and again when it was tried again"
    )
