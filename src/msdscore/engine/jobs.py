"""Shards to score, and the one who scores them one after the other in any process."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msdscore.engine.shard import ShardOptions, ShardResult, score_shard
from msdscore.errors import MSDScoreError
from msdscore.io import stores
from msdscore.io.inputs.shards import expand_all, score_names
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec

ShardProgress = Callable[[int, int], None]  # shards done, shards in all


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
    worker = ShardWorker(spec, options)
    return map(worker, jobs)


def lost(job: ShardJob, exit_code: int | None) -> str:
    """Why a shard was given up whose worker ended more than once."""
    code = exit_code or 0
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{job.source}: its worker process ended ({how}), and again when it was tried again; out of memory?"
