"""`msdscore score`: captions of one image, every row of a file, or shards into a folder.

Shards get one file of scores each, on this machine's processes or on a Ray cluster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, print_json, rows_file, stoppable, tell, tell_reasons
from msdscore.errors import ConfigError, shortened, unknown_name

if TYPE_CHECKING:
    from msdscore.io.inputs.rows import RowSource
    from msdscore.run.rows import RunOptions, ScoredFile
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


def score(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="An image, a file of rows, or a shard; - is JSON lines on standard input.")
    ],
    captions: Annotated[
        list[str] | None, typer.Argument(help="Captions of the image (one candidate set), or more shards.")
    ] = None,
    images: options.Images = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File (.parquet, .jsonl, .csv, .tsv or .json), or folder; - prints rows."),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(
            "--input-format", "--format", help="Format of the rows (jsonl, csv, …) if the input's name does not tell."
        ),
    ] = None,
    image_column: Annotated[str | None, typer.Option(help="Input column of the images.")] = None,
    caption_column: Annotated[str | None, typer.Option(help="Input column of the captions.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Input column of the row ids.")] = None,
    prefix: Annotated[str, typer.Option(help="Put before the names of the columns that are added.")] = "",
    overwrite: options.Overwrite = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try failed rows again, even if their images are the same.")
    ] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    verify: options.Verify = False,
    batch_size: options.BatchSize = None,
    decoders: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that decode images; 0: threads; without it one per core beside a GPU."),
    ] = None,
    max_pixels: options.MaxPixels = None,
    cache: options.Cache = None,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    cache_half: options.CacheHalf = False,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    worker_cpus: WorkerCpus = None,
    worker_gpus: WorkerGpus = None,
    part: Part = None,
    time_limit: TimeLimit = None,
    copy_column: CopyColumn = [],
    json: options.Json = False,
) -> None:
    """Score captions of one image, every row of a file, or shards into a folder.

    An image with captions prints a table. A file of rows (JSON lines, CSV, TSV, Parquet, COCO results or annotations,
    id-to-caption JSON, a saved dataset; text also with .gz or .zst) is scored in parts that survive any crash; the same
    command goes on where it stopped, and scores again what has changed since. Captions of one image are a candidate
    set, unless a column group says otherwise; a list of captions in a row is a set of its own. An output without a
    suffix is a folder: every shard (tar, Parquet, JSON lines; patterns such as 'shards/{00000..00999}.tar') gets one
    Parquet file of scores there.

    Exit codes: 0 all scored, 3 some rows failed and say why, 2 wrong usage.
    """
    from msdscore.io.inputs.columns import ColumnNames
    from msdscore.io.inputs.rows import open_rows
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.io.tar import is_image_name
    from msdscore.run.rows import RunOptions

    if output is not None and not output.strip():
        raise ConfigError("-o has no name; expected a file, a folder, or - for standard output")
    target = None if output is None or is_standard_output(output) else output
    spec = options.make_spec(context.params)
    _check_engine(context.params)
    names = ColumnNames(image=image_column, caption=caption_column, id=id_column)
    if target is not None and is_folder(target, source):
        if prefix or input_format:
            raise ConfigError("--prefix and --input-format are for files of rows; shards are told apart by their names")
        from msdscore.run.shards import ShardOptions

        how_to_read = ShardOptions(
            columns=names, images=None if images is None else str(images), copied=tuple(copy_column), retry=retry,
            overwrite=overwrite, verify=verify,
        )  # fmt: skip
        whole = score_shards(spec, [source, *(captions or [])], target, how_to_read, context.params)
        raise typer.Exit(0 if whole else options.SOME_FAILED)
    _refuse_shards(context.params, source, captions)
    file = None if target is None else Path(target)
    if captions:
        score_image(spec, source, captions, as_json=json, output=file, overwrite=overwrite)
        return
    if is_image_name(Path(source)):
        raise ConfigError(f"{source}: an image is scored with its captions: msdscore score IMAGE CAPTION…")
    how = RunOptions(overwrite=overwrite, retry=retry, prefix=prefix, verify=verify)
    with open_rows(source, images=images, format=input_format, columns=names) as rows:
        result = score_file(spec, rows, file, how, as_json=json)
    options.print_cache_use(cache, result.cache)
    raise typer.Exit(options.SOME_FAILED if result.failed else 0)


def score_image(
    spec: "ScorerSpec", image: str, captions: list[str], *, as_json: bool, output: Path | None, overwrite: bool
) -> None:
    """Rank the captions of one image and print or write them."""
    from msdscore.io.inputs.formats import known_inputs
    from msdscore.io.outputs.files import check_output, write_table
    from msdscore.scorer import Scorer

    if Path(image).suffix.lower().removeprefix(".") in known_inputs():
        raise ConfigError(f"{image} is a file of rows and takes no captions; give an image, or leave the captions out")
    if output is not None:
        check_output(output, inputs=[image])
    scores = Scorer.from_spec(spec).rank(image, captions)
    if output is not None:
        write_table(scores.to_arrow(), output, metadata={"msdscore": scores.signature}, overwrite=overwrite)
    if as_json:
        print_json({"image": image, **scores.to_dict()})
    elif output is None:
        typer.echo(str(scores))


def score_file(
    spec: "ScorerSpec", rows: "RowSource", output: Path | None, how: "RunOptions", *, as_json: bool
) -> "ScoredFile":
    """Score rows into the output, or as JSON lines to standard output."""
    from msdscore.run.rows import score_rows

    with rows_file(output) as target, bar("scoring") as show:
        result = score_rows(spec, rows, target, how, progress=show)
    _tell(result, output)
    if as_json and output is not None:
        print_json({"output": str(output), **asdict(result)})
    return result


def _tell(result: "ScoredFile", output: Path | None) -> None:
    """What became of the rows, on standard error: first how many scores need a second look."""
    if result.warned:
        tell(f"rows with warnings: {result.warned} (column warnings)")
    for warning in result.warnings:
        tell(f"  {shortened(warning, 300)}")
    where = f" -> {output}" if output else ""
    if result.earlier and not result.scored:
        done = "; already finished, nothing to do"
    else:
        done = f"; {result.earlier} of them scored by an earlier run" if result.earlier else ""
    tell(f"{result.rows} rows, {result.failed} failed{where}{done}")
    tell_reasons(result.reasons, result.failed, "the column error of the output has all")
    for name, new in result.renamed.items():
        tell(f"the input's own column {name} is kept as {new}; --prefix would keep its name")
    tell(result.signature)


def _check_engine(asked: Mapping[str, Any]) -> None:
    """Refuse an engine that there is not, and options of another one."""
    if asked["engine"] not in ENGINES:
        raise unknown_name("engine", asked["engine"], ENGINES)
    for name in ("address", "worker_cpus", "worker_gpus"):
        if asked[name] is not None and asked["engine"] != "ray":
            raise ConfigError(f"--{name.replace('_', '-')} is for a Ray cluster; add --engine ray")


def _refuse_shards(asked: Mapping[str, Any], source: str, more: Sequence[str] | None) -> None:
    """Refuse shards, and engines for them, where the output is no folder."""
    from msdscore.io.stores import expand, is_shard

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
    options.print_cache_use(None if spec.cache is None else Path(spec.cache.folder), cache)
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
