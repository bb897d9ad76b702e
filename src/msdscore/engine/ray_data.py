"""Shards on a Ray cluster: Ray Data hands them to actors that keep their scorer; a lost one is scored elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from msdscore.engine.jobs import ShardJob, ShardWorker
from msdscore.engine.shard import ShardOptions, ShardResult
from msdscore.errors import ConfigError, MSDScoreError, require
from msdscore.scoring.spec import ScorerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Where the cluster is, and what every actor asks of it.

    Without an `address` a cluster of this machine alone is started, or the one joined that RAY_ADDRESS names. The pool
    grows from `least` to `most` actors as the cluster does; `gpus` per actor may be a fraction.
    """

    address: str | None = None
    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    tries: int = 3  # of a shard whose actor is lost, beyond the first

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise ConfigError(f"expected actors from at least 1 to no less, got {self.least} to {self.most}")


def score_on_ray(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, cluster: RayOptions | None = None
) -> Iterator[ShardResult]:
    """Score shards on the actors of a Ray cluster and give their results as they are done.

    Actors write the scores themselves, each shard's file in one step, so only results travel. The files are those of
    the other engines, byte for byte. Paths must be the same on every machine: a shared disk, or addresses.
    """
    how = cluster or RayOptions()
    ray = require("ray", extra="ray")
    data = require("ray.data", extra="ray")
    started = not ray.is_initialized()
    if started:
        _connect(ray, how.address)
    try:
        yield from _results(ray, data, (spec, jobs, options), how)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if address is None else None,
        )
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address or 'RAY_ADDRESS'} ({error}); start one: ray start --head"
        ) from error


def _results(
    ray: Any, data: Any, work: tuple[ScorerSpec, Sequence[ShardJob], ShardOptions], how: RayOptions
) -> Iterator[ShardResult]:
    spec, jobs, options = work
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    most = min(how.most or len(jobs), len(jobs))
    # One block per shard: a block is what Ray schedules, and what it runs again when an actor is lost.
    rows = data.from_items([asdict(job) for job in jobs], override_num_blocks=len(jobs))
    scored = rows.map_batches(
        ShardActor,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_args=(spec, options),
        compute=data.ActorPoolStrategy(min_size=min(how.least, most), max_size=most, max_tasks_in_flight_per_actor=2),
        num_cpus=how.cpus,
        num_gpus=how.gpus or None,
        max_restarts=-1,
        max_task_retries=how.tries,
    )
    try:
        for row in scored.iter_rows():
            yield _result(row)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, MSDScoreError) else error) from None


class ShardActor:
    """A worker inside a Ray actor: builds its scorer once, takes one shard per call."""

    def __init__(self, spec: ScorerSpec, options: ShardOptions) -> None:
        self._worker = ShardWorker(_placed(spec), options)

    def __call__(self, batch: Any) -> Any:
        """The results of a batch of jobs, as a table."""
        import pyarrow as pa

        return pa.Table.from_pylist(
            [_row(self._worker(ShardJob(**job))) for job in batch.to_pylist()], schema=_schema()
        )


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"rows": pa.int64(), "failed": pa.int64(), "warned": pa.int64(), "fresh": pa.bool_()}
    texts = ("source", "output", "signature", "error")
    return pa.schema([*kinds.items(), *((name, pa.string()) for name in texts), ("reasons", pa.list_(pa.string()))])


def _row(result: ShardResult) -> dict[str, Any]:
    return asdict(result) | {"reasons": list(result.reasons)}


def _result(row: Mapping[str, Any]) -> ShardResult:
    return ShardResult(**{**row, "reasons": tuple(row["reasons"])})


def _placed(spec: ScorerSpec) -> ScorerSpec:
    """The scorer on the GPU that Ray has given to this actor, which is the first that it sees."""
    import torch

    if spec.device == "auto" and torch.cuda.is_available():
        return replace(spec, device="cuda:0")
    return spec
