"""Score shards on a Ray cluster: Ray Data distributes them to actors, and retries those of a lost actor."""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from msdscore.core.arrays import gpu_count
from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, MSDScoreError, one_line, require, shortened
from msdscore.io.arrow import pa
from msdscore.io.files import is_address
from msdscore.run.folder import ShardJob, ShardResult
from msdscore.run.shards import ShardOptions, ShardWorker, check_copied
from msdscore.scoring.spec import ScorerSpec

_BLOCKS = 10_000  # maximum number of blocks that Ray tracks
# Of Ray Data. On a busy machine, an actor that was started may be given up before it runs (Ray 2.60).
_SETTINGS = {"enable_progress_bars": False, "max_errored_blocks": -1, "max_consecutive_actor_init_deaths": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Address of the cluster, and resources of every actor.

    The default `address` is RAY_ADDRESS; without it a cluster of this machine is started. The pool grows to `most`
    actors as the cluster grows. `gpus` per actor may be a fraction; the default is 1 if the scorer uses CUDA or the
    cluster has GPUs.
    """

    address: str | None = None
    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float | None = None
    tries: int = 3  # additional tries of a shard whose actor is lost

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise ConfigError(f"expected at least 1 actor, and no fewer at most, got {self.least} to {self.most}")
        gpus = self.gpus or 0.0
        if not (0 <= self.cpus < inf and 0 <= gpus < inf) or (gpus > 1 and gpus % 1):
            raise ConfigError(
                f"expected cores, and a part of one GPU or whole ones, per actor, got {self.cpus:g} and {gpus:g}"
            )


def score_on_ray(
    spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, cluster: RayOptions | None = None
) -> Iterator[ShardResult]:
    """Score shards on the actors of a Ray cluster and yield their results as they are done.

    Actors write the scores themselves, atomically, and only send results. The files are identical to those of the other
    engines. Paths must be the same on every machine: a shared disk, or addresses.
    """
    check_copied(jobs, options)
    how, ray = cluster or RayOptions(), require("ray", extra="ray")
    require("ray.data", extra="ray")
    started = not ray.is_initialized()
    alone = _connect(ray, how.address) if started else False
    waiting = {job.output: job for job in jobs}
    try:
        if alone:  # no machine can join: an actor that does not fit would wait forever
            resources, gpus = ray.cluster_resources(), _gpus(ray, spec, how) or 0.0
            present_cpus, present_gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
            if how.cpus > present_cpus or gpus > present_gpus:
                raise ConfigError(
                    f"an actor asks for {how.cpus:g} cores and {gpus:g} GPUs, and this machine has {present_cpus:g} "
                    f"and {present_gpus:g}; ask for less, or join a cluster with --address"
                )
        results = _results(ray, spec, jobs, options, how) if jobs else iter(())
        while True:
            with _no_native_output():
                result = next(results, None)
            if result is None:
                break
            waiting.pop(result.output, None)
            yield result
    finally:
        if started:
            with _no_native_output():
                ray.shutdown()
    for job in waiting.values():
        yield _lost(job, "was given up by Ray")


@contextmanager
def _no_native_output() -> Iterator[None]:
    """Discard what Ray's native code writes to standard error, such as pages about an unreachable cluster.

    Its errors are raised, and logged in Ray's own files.
    """
    try:
        kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # closed
        yield
        return
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _connect(ray: Any, address: str | None) -> bool:
    """Join a cluster, or start one; return whether it is a new one of this machine."""
    joined = address or os.environ.get("RAY_ADDRESS")
    settings = {} if joined else {"include_dashboard": False}
    try:
        # Try host and port once; Ray itself would retry for many minutes.
        host, _, port = (joined or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with _no_native_output():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **settings)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = one_line(error, 200)
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


def _results(
    ray: Any, spec: ScorerSpec, jobs: Sequence[ShardJob], options: ShardOptions, how: RayOptions
) -> Iterator[ShardResult]:
    """Yield the results of all shards as they are done."""
    gpus = _gpus(ray, spec, how)
    if spec.decoders is None:  # an actor may use the cores that it requested, although it sees all
        spec = replace(spec, decoders=max(1, int(how.cpus)) if gpus else 0)
    most = min(how.most or len(jobs), len(jobs))
    counter = _try_counter(ray, how.tries + 1)
    with quiet_context(ray.data):
        # One block per shard: Ray schedules blocks, and runs those of a lost actor again.
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
            ),
            compute=ray.data.ActorPoolStrategy(
                min_size=min(how.least, most), max_size=most, max_tasks_in_flight_per_actor=2
            ),
            num_cpus=how.cpus,
            num_gpus=gpus,
        )
        for row in scored.iter_rows():
            yield result_of(row["result"])


def _try_counter(ray: Any, most: int) -> Any:
    """Start an actor that limits the tries of every shard; Ray itself would retry forever."""

    class TryCounter:  # defined here to be sent by value, so that its process imports nothing
        def __init__(self) -> None:
            self._begun: dict[str, int] = {}

        def allows(self, output: str) -> bool:
            self._begun[output] = self._begun.get(output, 0) + 1
            return self._begun[output] <= most

    # Restarted if its machine is lost; it then counts from zero.
    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(TryCounter).remote()


@contextmanager
def quiet_context(data: Any) -> Iterator[None]:
    """Disable Ray's progress bars, and do not stop at the first lost shard or actor; restore the settings afterwards.

    A lost actor or machine would log a traceback of 70 lines per shard; the result of a lost shard says so in one.
    """
    context, log = data.DataContext.get_current(), logging.getLogger("ray.data")
    before = {name: getattr(context, name) for name in _SETTINGS if hasattr(context, name)}
    level = log.level
    for name in before:
        setattr(context, name, _SETTINGS[name])
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        log.setLevel(level)


def _gpus(ray: Any, spec: ScorerSpec, how: RayOptions) -> float | None:
    if how.gpus is not None:
        return how.gpus or None
    wanted = spec.device.startswith("cuda") or (spec.device == "auto" and ray.cluster_resources().get("GPU"))
    return 1.0 if wanted else None


class ShardActor:
    """A worker in a Ray actor: builds its scorer once, and scores one shard per call.

    `may_try` is called before every shard, to give up one that ends every actor. Relative paths are relative to
    `folder`, that of the driver, which must exist under the same name.
    """

    def __init__(
        self,
        spec: ScorerSpec,
        options: ShardOptions,
        may_try: Callable[[ShardJob], bool] = lambda job: True,
        folder: str | None = None,
    ) -> None:
        if spec.device == "auto" and gpu_count():
            spec = replace(spec, device="cuda:0")  # the actor only sees its own GPU
        self._worker, self._may_try = ShardWorker(spec, options), may_try
        self._folder = folder
        if folder is not None and Path(folder).is_dir():
            os.chdir(folder)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the results of a batch of jobs."""
        results = [self._result(ShardJob(**job)) for job in batch.to_pylist()]
        texts = [{"error": str(item)} if isinstance(item, MSDScoreError) else asdict(item) for item in results]
        return pa.table({"result": [json.dumps(text) for text in texts]})

    def _result(self, job: ShardJob) -> ShardResult | MSDScoreError:
        """Return the result of a shard, or why no shard can be scored."""
        folder = self._folder
        relative = [name for name in (job.source, job.output) if not is_address(name) and not Path(name).is_absolute()]
        try:
            if folder is not None and relative and not Path(folder).is_dir():  # they would be other files
                raise ConfigError(
                    f"{shortened(relative[0])}: a path relative to {folder}, which is not on "
                    f"{socket.gethostname()}; give whole paths of a shared disk, or addresses"
                )
            if not self._may_try(job):
                return _lost(job, "was lost every time that it was tried")
            return self._worker(job)
        except MSDScoreError as error:
            return error
        except Exception as error:  # noqa: BLE001, Ray would silently drop the block
            reason = f"{job.source}: {type(error).__name__}: {one_line(error)}"
            return ShardResult(job.source, job.output, error=reason)


def result_of(text: str) -> ShardResult:
    """Return a result that an actor wrote as JSON; raise `ConfigError` if no shard can be scored."""
    values = json.loads(text)
    if "source" not in values:
        raise ConfigError(f"no shard can be scored on the cluster: {values['error']}")
    cache = None if values["cache"] is None else CacheUse(**values["cache"])
    return ShardResult(**{**values, "reasons": tuple(values["reasons"]), "cache": cache})


def _lost(job: ShardJob, how: str) -> ShardResult:
    reason = f"{shortened(job.source)}: {how}, with the actor that had it; out of memory? Ray's logs have more"
    return ShardResult(job.source, job.output, error=reason)
