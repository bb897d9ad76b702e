"""Shards on a Ray cluster: Ray Data hands them to actors that keep their scorer; a lost one is scored elsewhere."""

import faulthandler
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, MSDScoreError, require, shortened
from msdscore.io.stores import is_address
from msdscore.run.shards import ShardJob, ShardOptions, ShardResult, ShardWorker
from msdscore.scoring.spec import ScorerSpec

_BLOCKS = 10_000  # what Ray is asked to keep track of, however many shards there are
_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "output", "signature", "error")),
        *((name, pa.int64()) for name in ("rows", "failed", "warned")),
        *((name, pa.bool_()) for name in ("fresh", "unusable")),
        ("reasons", pa.list_(pa.string())),
        ("cache", pa.list_(pa.int64())),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Where the cluster is, and what every actor asks of it.

    Without an `address` the cluster that RAY_ADDRESS names is joined, else one of this machine alone is started. The
    pool grows to `most` actors as the cluster does. `gpus` per actor may be a fraction; without it, it is 1 where the
    scorer asks for CUDA or the cluster has GPUs.
    """

    address: str | None = None
    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float | None = None
    tries: int = 3  # of a shard whose actor is lost, beyond the first
    time_limit: float | None = None  # seconds; an actor that has a shard for longer ends itself, and it is tried again

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise ConfigError(f"expected at least 1 actor, and no fewer at most, got {self.least} to {self.most}")
        gpus = self.gpus or 0.0
        if self.time_limit is not None and not 0 < self.time_limit < inf:
            raise ConfigError(f"a time limit must be a positive number of seconds, got {self.time_limit:g}")
        if not (0 <= self.cpus < inf and 0 <= gpus < inf) or (gpus > 1 and gpus % 1):
            raise ConfigError(
                f"expected cores, and a part of one GPU or whole ones, per actor, got {self.cpus:g} and {gpus:g}"
            )


def score_on_ray(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, cluster: RayOptions | None = None
) -> Iterator[ShardResult]:
    """Score shards on the actors of a Ray cluster and give their results as they are done.

    Actors write the scores themselves, each shard's file in one step, so only results travel. The files are those of
    the other engines, byte for byte. Paths must mean the same on every machine: a shared disk, or addresses.
    """
    how, ray = cluster or RayOptions(), require("ray", extra="ray")
    require("ray.data", extra="ray")
    started = not ray.is_initialized()
    alone = _connect(ray, how.address) if started else False
    waiting = {job.output: job for job in jobs}
    try:
        if alone:  # where no other machine can come, actors without room would wait for ever
            there, gpus = ray.cluster_resources(), _gpus(ray, spec, how) or 0.0
            cpus_there, gpus_there = there.get("CPU", 0.0), there.get("GPU", 0.0)
            if how.cpus > cpus_there or gpus > gpus_there:
                raise ConfigError(
                    f"an actor asks for {how.cpus:g} cores and {gpus:g} GPUs, and this machine has {cpus_there:g} and "
                    f"{gpus_there:g}; ask for less, or join a cluster with --address"
                )
        for row in _rows(ray, (spec, jobs, options), how) if jobs else ():
            waiting.pop(row["output"], None)
            known = {name: value for name, value in row.items() if name != "unusable"}
            cache = None if row["cache"] is None else CacheUse(*row["cache"])
            yield ShardResult(**{**known, "reasons": tuple(row["reasons"]), "cache": cache})
    finally:
        if started:
            ray.shutdown()
    for job in waiting.values():
        yield _lost(job, "was given up by Ray")


def _connect(ray: Any, address: str | None) -> bool:
    """Join a cluster, or start one; whether it is this machine alone."""
    joined = address or os.environ.get("RAY_ADDRESS")
    more = {} if joined else {"include_dashboard": False}
    try:
        # Try a host and its port once; Ray itself would go on for many minutes.
        host, _, port = (joined or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = shortened(" ".join(str(error).split()), 200)
        where = joined or "this machine"
        is_locked = any(word in reason.lower() for word in ("token", "authenti", "unauthorized"))
        raise ConfigError(
            f"the Ray cluster at {where} asks for a token that is missing or wrong ({reason}); set RAY_AUTH_MODE="
            "token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as the cluster has them"
            if is_locked
            else f"no Ray cluster at {where} ({reason}); start one with: ray start --head, or, where it runs with "
            "tokens, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
    return not joined


def _rows(
    ray: Any, work: tuple[ScorerSpec, Sequence[ShardJob], ShardOptions], how: RayOptions
) -> Iterator[Mapping[str, Any]]:
    (spec, jobs, options), gpus = work, _gpus(ray, work[0], how)
    if spec.decoders is None:  # an actor has as many cores as it asked for, whatever it sees
        spec = replace(spec, decoders=max(1, int(how.cpus)) if gpus else 0)
    most = min(how.most or len(jobs), len(jobs))
    counter = _try_counter(ray, how.tries + 1)
    with _quiet_context(ray.data):
        # One block per shard: a block is what Ray schedules, and what it runs again when an actor is lost.
        blocks = ray.data.from_items([asdict(job) for job in jobs], override_num_blocks=min(len(jobs), _BLOCKS))
        scored = blocks.map_batches(
            ShardActor,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(
                spec,
                options,
                lambda job: ray.get(counter.allows.remote(job.output)),
                str(Path.cwd()),
                how.time_limit,
            ),
            compute=ray.data.ActorPoolStrategy(
                min_size=min(how.least, most), max_size=most, max_tasks_in_flight_per_actor=2
            ),
            num_cpus=how.cpus,
            num_gpus=gpus,
        )
        for row in scored.iter_rows():
            if row["unusable"]:
                raise ConfigError(f"the scorer cannot be built on the cluster: {row['error']}")
            yield row


def _try_counter(ray: Any, most: int) -> Any:
    """An actor that outlives those that score, and allows every shard so many tries; Ray alone would try for ever."""

    class TryCounter:  # defined here, it travels by value, and its process imports nothing
        def __init__(self) -> None:
            self._begun: dict[str, int] = {}

        def allows(self, output: str) -> bool:
            self._begun[output] = self._begun.get(output, 0) + 1
            return self._begun[output] <= most

    # Started again where its machine is lost; it counts anew then.
    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(TryCounter).remote()


@contextmanager
def _quiet_context(data: Any) -> Iterator[None]:
    """No bars but ours, and no run that ends with the first lost shard; the user's own settings come back after it."""
    context, log = data.DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, context.max_errored_blocks, log.level
    context.enable_progress_bars, context.max_errored_blocks = False, -1
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, context.max_errored_blocks = before[:2]
        log.setLevel(before[2])


def _gpus(ray: Any, spec: ScorerSpec, how: RayOptions) -> float | None:
    if how.gpus is not None:
        return how.gpus or None
    wanted = spec.device.startswith("cuda") or (spec.device == "auto" and ray.cluster_resources().get("GPU"))
    return 1.0 if wanted else None


class ShardActor:
    """A worker inside a Ray actor: builds its scorer once, and takes one shard per call.

    `may_try` is asked before every shard: one that ends every actor that begins it is given up. Relative paths are
    those of `folder`, the driver's, which must be there under the same name.
    """

    def __init__(
        self,
        spec: ScorerSpec,
        options: ShardOptions,
        may_try: Callable[[ShardJob], bool] = lambda job: True,
        folder: str | None = None,
        time_limit: float | None = None,
    ) -> None:
        import torch

        if spec.device == "auto" and torch.cuda.is_available():
            spec = replace(spec, device="cuda:0")  # the GPU that Ray has given to this actor is the first that it sees
        self._worker, self._may_try = ShardWorker(spec, options), may_try
        self._folder, self._time_limit = folder, time_limit
        if folder is not None and Path(folder).is_dir():
            os.chdir(folder)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The results of a batch of jobs."""
        return pa.Table.from_pylist([self._row(ShardJob(**job)) for job in batch.to_pylist()], schema=_COLUMNS)

    def _row(self, job: ShardJob) -> dict[str, Any]:
        unusable, folder = False, self._folder
        relative = [name for name in (job.source, job.output) if not is_address(name) and not Path(name).is_absolute()]
        try:
            if folder is not None and relative and not Path(folder).is_dir():  # they would mean other files
                raise ConfigError(
                    f"{shortened(relative[0])}: a path relative to {folder}, which is not on "
                    f"{socket.gethostname()}; give whole paths of a shared disk, or addresses"
                )
            if not self._may_try(job):
                result = _lost(job, "was lost every time that it was tried")
            else:
                if self._time_limit is not None:  # past it the process ends, even where it hangs outside of Python
                    faulthandler.dump_traceback_later(self._time_limit, exit=True)
                try:
                    result = self._worker(job)
                finally:
                    if self._time_limit is not None:
                        faulthandler.cancel_dump_traceback_later()
        except MSDScoreError as error:  # for every shard alike
            result, unusable = ShardResult(job.source, job.output, error=str(error)), True
        except Exception as error:  # noqa: BLE001, Ray would drop the block and go on without a word
            reason = f"{job.source}: {type(error).__name__}: {shortened(' '.join(str(error).split()), 300)}"
            result = ShardResult(job.source, job.output, error=reason)
        cache = None if result.cache is None else list(asdict(result.cache).values())
        return asdict(result) | {"reasons": list(result.reasons), "unusable": unusable, "cache": cache}


def _lost(job: ShardJob, how: str) -> ShardResult:
    reason = f"{shortened(job.source)}: {how}, with the actor that had it; out of memory? Ray's logs have more"
    return ShardResult(job.source, job.output, error=reason)
