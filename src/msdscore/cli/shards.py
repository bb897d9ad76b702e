"""`msdscore score SHARD… -o FOLDER`: one file of scores per shard, on this machine's processes or on a Ray cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli.options import print_cache_use
from msdscore.cli.progress import bar, print_json, stoppable, tell, tell_reasons
from msdscore.errors import ConfigError, shortened, unknown_name

if TYPE_CHECKING:
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


# What says how shards are scored, and means nothing for one file.
_ALONE = {"engine": "local"} | dict.fromkeys(("workers", "address", "worker_cpus", "worker_gpus", "part", "time_limit"))


def check_engine(asked: Mapping[str, Any]) -> None:
    """Refuse an engine that there is not, and options of another one."""
    if asked["engine"] not in ENGINES:
        raise unknown_name("engine", asked["engine"], ENGINES)
    for name in ("address", "worker_cpus", "worker_gpus"):
        if asked[name] is not None and asked["engine"] != "ray":
            raise ConfigError(f"--{name.replace('_', '-')} is for a Ray cluster; add --engine ray")


def refuse_shards(asked: Mapping[str, Any], source: str, more: Sequence[str] | None) -> None:
    """Refuse shards, and engines for them, where the output is no folder."""
    from msdscore.io.inputs.shards import expand, is_shard

    several = is_shard(source) and (any(map(is_shard, more or ())) or len(expand(source)) > 1)
    if several or any(asked[name] != value for name, value in _ALONE.items()):
        raise ConfigError("shards are scored into a folder; give one: -o DIR (without a suffix)")


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
    spec: "ScorerSpec", sources: Sequence[str], folder: str, how: "ShardOptions", asked: Mapping[str, Any]
) -> bool:
    """Score shards into a folder; whether every row of every shard was scored."""
    from msdscore.run.workers import plan_jobs

    jobs, results = _part_of(plan_jobs(sources, folder), asked["part"]), list["ShardResult"]()
    with stoppable(_KEPT), bar("shards") as show:
        show(0, len(jobs))
        for result in _results(spec, jobs, how, asked):
            results.append(result)
            show(len(results), len(jobs))
    rows, failed = sum(result.rows for result in results), sum(result.failed for result in results)
    earlier = sum(not result.fresh and result.error is None for result in results)
    signature = next((result.signature for result in results if result.signature), "")
    reasons = [reason for result in results for reason in result.reasons][:3]
    errors = [result.error for result in results if result.error is not None]
    used = [result.cache for result in results if result.cache is not None]
    cache = reduce(add, used) if used else None
    done = f" ({earlier} of them already finished)" if earlier else ""
    tell(f"{len(results)} shards{done}, {rows} rows, {failed} failed -> {folder}")
    tell_reasons(reasons, failed, "the columns status and error have all")
    if errors:
        tell(f"{len(errors)} shards could not be scored:")
    for error in errors[:_SHOWN]:
        tell(f"  {shortened(error, 300)}")
    if signature:
        tell(signature)
    print_cache_use(None if spec.cache is None else Path(spec.cache.folder), cache)
    if asked["json"]:
        tally = {"shards": len(results), "earlier": earlier, "rows": rows, "failed": failed, "signature": signature}
        tally |= {"reasons": reasons, "errors": errors, "cache": None if cache is None else asdict(cache)}
        print_json({"output": folder, **tally})
    return not (failed or errors)


def _part_of(jobs: "Sequence[ShardJob]", part: str | None) -> "Sequence[ShardJob]":
    """The shards of one part, counted from 0; parts differ by at most one shard."""
    if part is None:
        return jobs
    number, slash, count = part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ConfigError(f"a part looks like 0/100 to 99/100, got {part!r}")
    return jobs[int(number) :: int(count)]


def _results(
    spec: "ScorerSpec", jobs: Sequence["ShardJob"], how: "ShardOptions", asked: Mapping[str, Any]
) -> "Iterator[ShardResult]":
    if asked["engine"] == "ray":
        from msdscore.run.ray_data import RayOptions, score_on_ray

        cluster = RayOptions(
            address=asked["address"], most=asked["workers"], cpus=asked["worker_cpus"] or 1.0,
            gpus=asked["worker_gpus"], time_limit=asked["time_limit"],
        )  # fmt: skip
        return score_on_ray(spec, jobs, how, cluster)
    from msdscore.run.workers import score_on_workers

    return score_on_workers(spec, jobs, how, workers=asked["workers"], time_limit=asked["time_limit"])
