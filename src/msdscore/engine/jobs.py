"""Shards to score, and the one who scores them one after the other in any process."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from msdscore.engine.shard import ShardOptions, ShardResult, score_shard
from msdscore.errors import MSDScoreError
from msdscore.io import stores
from msdscore.io.inputs.shards import expand_all, score_names
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec

# Of every worker on the CPU, whatever the machine has: sums over another number of threads differ in their last bits.
THREADS = 2


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
    _built: Pipeline | None = None
    _broken: MSDScoreError | None = None

    def __call__(self, job: ShardJob) -> ShardResult:
        """Score one shard; what is wrong with it as a whole is told in the result, and the next one can come.

        Raises:
            MSDScoreError: the scorer itself cannot be built, which is so for every shard.
        """
        torch.set_num_threads(THREADS)
        try:
            return score_shard(self.spec, job.source, job.output, self.options, build=self._pipeline)
        except MSDScoreError as error:
            if error is self._broken:
                raise
            return ShardResult(job.source, job.output, error=str(error))

    def _pipeline(self) -> Pipeline:
        if self._built is None:
            try:
                self._built = self.spec.build()
            except MSDScoreError as error:
                self._broken = error
                raise
        return self._built


def score_jobs(spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions) -> Iterator[ShardResult]:
    """Score shards one after the other in this process."""
    worker, before = ShardWorker(spec, options), torch.get_num_threads()
    for job in jobs:
        try:
            found = worker(job)
        finally:
            torch.set_num_threads(before)
        yield found


def lost(job: ShardJob, exit_code: int | None) -> str:
    """Why a shard was given up whose worker ended more than once."""
    code = exit_code or 0
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{job.source}: its worker process ended ({how}), and again when it was tried again; out of memory?"
