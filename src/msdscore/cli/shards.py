"""`msdscore score SHARD… -o FOLDER`: one file of scores per shard, on this machine's processes or on a Ray cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli.options import print_cache_use
from msdscore.cli.progress import bar, print_json, stoppable, tell, tell_reasons
from msdscore.errors import ConfigError, shortened, unknown_name

if TYPE_CHECKING:
    from msdscore.encoders.cached import CacheUse
    from msdscore.run.shards import ShardJob, ShardOptions, ShardResult
    from msdscore.scoring.spec import ScorerSpec

ENGINES = ("local", "ray")
_KEPT = "stopped; finished shards are kept, and the same command goes on with the others"
_SHOWN = 5  # shards that could not be scored, told on the console

Engine = Annotated[str, typer.Option(help="For shards: local (processes of this machine) or ray (a cluster).")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="For shards: processes or actors; without it one per GPU, or per two cores.")
]
Address = Annotated[
    str | None, typer.Option(help="For --engine ray: address of the cluster, e.g. auto or ray://HOST:10001.")
]
WorkerCpus = Annotated[
    float | None, typer.Option(help="For --engine ray: cores per actor (1); a GPU's actor decodes on these.")
]
WorkerGpus = Annotated[float | None, typer.Option(help="For --engine ray: GPUs per actor; a fraction shares one.")]
Part = Annotated[
    str | None, typer.Option(help="For shards: one of N equal parts, e.g. 3/100, for arrays of batch jobs.")
]
TimeLimit = Annotated[
    float | None, typer.Option(help="For shards: seconds that a worker may have a shard before it is ended as hung.")
]
CopyColumn = Annotated[list[str], typer.Option(help="For shards: input column to keep beside the scores. Repeatable.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine scores the shards, on how many workers, where; under the names of the command line."""

    engine: str = "local"
    workers: int | None = None
    address: str | None = None
    worker_cpus: float | None = None
    worker_gpus: float | None = None
    part: str | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        asked = {"--address": self.address, "--worker-cpus": self.worker_cpus, "--worker-gpus": self.worker_gpus}
        for option, value in asked.items():
            if value is not None and self.engine != "ray":
                raise ConfigError(f"{option} is for a Ray cluster; add --engine ray")

    def chosen(self, jobs: "Sequence[ShardJob]") -> "Sequence[ShardJob]":
        """The shards of one part, counted from 0; parts differ by at most one shard."""
        if self.part is None:
            return jobs
        number, slash, count = self.part.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise ConfigError(f"a part looks like 0/100 to 99/100, got {self.part!r}")
        return jobs[int(number) :: int(count)]

    def refuse_file(self, source: str, more: Sequence[str] | None) -> None:
        """Refuse shards, and engines for them, where the output is no folder."""
        from msdscore.io.inputs.shards import expand, is_shard

        several = is_shard(source) and (any(map(is_shard, more or ())) or len(expand(source)) > 1)
        if several or self != EngineChoice():
            raise ConfigError("shards are scored into a folder; give one: -o DIR (without a suffix)")


@dataclass(slots=True)
class _Tally:
    """What became of all shards so far."""

    shards: int = 0
    earlier: int = 0
    rows: int = 0
    failed: int = 0
    signature: str = ""
    reasons: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cache: "CacheUse | None" = None

    def add(self, result: "ShardResult") -> None:
        self.shards += 1
        self.earlier += not result.fresh and result.error is None
        self.rows += result.rows
        self.failed += result.failed
        self.signature = self.signature or result.signature
        self.reasons += result.reasons[: max(0, 3 - len(self.reasons))]
        if result.cache is not None:
            self.cache = result.cache if self.cache is None else self.cache + result.cache
        if result.error is not None:
            self.errors.append(result.error)


def is_folder(output: str, source: str) -> bool:
    """Whether scores go into a folder, one file per shard, and no image is scored.

    Its name has no suffix or ends in a slash, or it is there already and its suffix is not one of a file of scores.

    >>> is_folder("scores", "a.tar"), is_folder("a.parquet", "a.tar"), is_folder("s3://b/v1.2/", "a.tar")
    (True, False, True)
    """
    from msdscore.io.outputs.files import known_outputs
    from msdscore.io.stores import base_name
    from msdscore.io.tar import is_image_name

    if is_image_name(Path(source)):
        return False
    suffix = Path(base_name(output)).suffix.lower()
    return not suffix or output.endswith("/") or (suffix not in known_outputs() and Path(output).is_dir())


def score_shards(
    spec: "ScorerSpec", sources: Sequence[str], folder: str, how: "ShardOptions", *, engine: EngineChoice, as_json: bool
) -> bool:
    """Score shards into a folder; whether every row of every shard was scored."""
    from msdscore.run.workers import plan_jobs

    jobs, tally = engine.chosen(plan_jobs(sources, folder)), _Tally()
    with stoppable(_KEPT), bar("shards") as show:
        show(0, len(jobs))
        for result in _results(spec, jobs, how, engine):
            tally.add(result)
            show(tally.shards, len(jobs))
    _tell(tally, folder)
    print_cache_use(None if spec.cache is None else Path(spec.cache.folder), tally.cache)
    if as_json:
        print_json({"output": folder, **asdict(tally)})
    return not (tally.failed or tally.errors)


def _results(
    spec: "ScorerSpec", jobs: Sequence["ShardJob"], how: "ShardOptions", engine: EngineChoice
) -> "Iterator[ShardResult]":
    if engine.engine == "ray":
        from msdscore.run.ray_data import RayOptions, score_on_ray

        cluster = RayOptions(
            address=engine.address, most=engine.workers, cpus=engine.worker_cpus or 1.0, gpus=engine.worker_gpus,
            time_limit=engine.time_limit,
        )  # fmt: skip
        return score_on_ray(spec, jobs, how, cluster)
    from msdscore.run.workers import score_on_workers

    return score_on_workers(spec, jobs, how, workers=engine.workers, time_limit=engine.time_limit)


def _tell(tally: _Tally, folder: str) -> None:
    done = f" ({tally.earlier} of them already finished)" if tally.earlier else ""
    tell(f"{tally.shards} shards{done}, {tally.rows} rows, {tally.failed} failed -> {folder}")
    tell_reasons(tally.reasons, tally.failed, "the columns status and error have all")
    if tally.errors:
        tell(f"{len(tally.errors)} shards could not be scored:")
    for error in tally.errors[:_SHOWN]:
        tell(f"  {shortened(error, 300)}")
    if tally.signature:
        tell(tally.signature)
