"""`msdscore score`: score captions of one image, a file of rows, or shards (local processes or Ray)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SPEED, option
from msdscore.cli.progress import bar, print_json, rows_file, stoppable, tell, tell_reasons, visible
from msdscore.errors import CaptionError, ConfigError, shortened, unknown_name

if TYPE_CHECKING:
    from msdscore.rows.files import ReferenceFile, RowSource
    from msdscore.rows.rules import ColumnNames
    from msdscore.run.folder import ShardJob, ShardResult
    from msdscore.run.shards import ShardOptions
    from msdscore.scoring.spec import ScorerSpec

T = TypeVar("T")
ENGINES = ("local", "ray")
SHARDS = "Shards, into a folder"
_STOPPED = "stopped; finished shards are saved, and the same command resumes with the others"
_STOPPED_READING = "stopped while the rows were read; nothing was written"
_FIRST = 1000  # rows of which one must have references, if a file of them is passed
_ROWS = frozenset((".jsonl", ".json", ".csv", ".tsv"))  # suffixes of files that name their images
_WORST = 3  # least supported words per caption of a shard
_SHOWN = 5  # failed shards that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Format and columns of the input."""

    images: options.Images = None
    input_format: str | None = option(
        INPUT, None, "--input-format", "--format", help="Format of the rows (jsonl, csv, …); default: by file name."
    )
    image_column: str | None = option(INPUT, None, help="Input column of the images.")
    caption_column: str | None = option(INPUT, None, help="Input column of the captions.")
    id_column: str | None = option(INPUT, None, help="Input column of the row ids.")
    references: Path | None = option(
        INPUT, None, help="File of reference captions by image: COCO annotations, JSON lines, or id to list."
    )
    reference: list[str] = option(INPUT, [], help="A caption of the one image by people; adds ref_msd. Repeatable.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Output of the scores."""

    output: str | None = option(
        OUTPUT, None, "--output", "-o", help="File (.parquet, .jsonl, .csv, .tsv, .json) or folder; - prints rows."
    )
    copy_column: list[str] = option(OUTPUT, [], help="For shards: input column to copy next to the scores. Repeatable.")
    worst_words: int | None = option(
        OUTPUT, None, min=0, help="Number of least supported words in a column; default: 3 for shards, 0 for files."
    )
    overwrite: options.Overwrite = False
    retry: bool = option(OUTPUT, False, "--retry", help="Score failed rows again.")
    json: options.Json = False

    def __post_init__(self) -> None:
        if self.output is not None and not self.output.strip():
            raise ConfigError("-o is empty; expected a file, a folder, or - for standard output")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Distribution of shards; only `decoders` also applies to one file."""

    decoders: int | None = option(
        SPEED, None, min=0, help="Processes that decode images; 0: threads; default: one per core on a GPU."
    )
    engine: str = option(SHARDS, "local", help="local (processes on this machine) or ray (a cluster).")
    workers: int | None = option(
        SHARDS, None, min=1, help="Processes or actors; default: one per GPU, or per two cores."
    )
    part: str | None = option(SHARDS, None, help="One of N equal parts, e.g. 3/100, for array jobs.")
    address: str | None = option(
        SHARDS, None, help="For --engine ray: address of the cluster, e.g. auto or ray://HOST:10001."
    )
    worker_cpus: float | None = option(SHARDS, None, help="For --engine ray: cores per actor (1).")
    worker_gpus: float | None = option(SHARDS, None, help="For --engine ray: GPUs per actor; fractions share one.")

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        for name in ("address", "worker_cpus", "worker_gpus"):
            if getattr(self, name) is not None and self.engine != "ray":
                raise ConfigError(f"--{name.replace('_', '-')} is for a Ray cluster; add --engine ray")


def score(
    source: Annotated[
        str, typer.Argument(help="An image, a file of rows, or a shard; - reads JSON lines from standard input.")
    ],
    rows: RowOptions,
    target: TargetOptions,
    scorer: options.ScorerOptions,
    batch: options.BatchOptions,
    workers: WorkerOptions,
    captions: Annotated[
        list[str] | None, typer.Argument(help="Captions of the image (one candidate set), or more shards.")
    ] = None,
) -> None:
    """Score captions of one image, every row of a file, or shards into a folder.

    An image with captions prints a table. A file of rows (JSON lines, CSV, TSV, Parquet, COCO results or annotations,
    id-to-caption JSON; text also with .gz or .zst) is scored in parts; the same command resumes an
    interrupted run. Captions of one image are a candidate
    set, unless a column group defines the sets; a list of captions in a row is a separate set. Reference captions, in
    a column references (a list) or in --references FILE, add ref_msd; rows that have them need no image. An output
    without a suffix is a folder: every shard (tar, Parquet, JSON lines; patterns such as
    'shards/{00000..00999}.tar') gets one Parquet file of scores there.

    Exit codes: 0 all rows scored, 3 some rows failed (their errors are in the output), 2 invalid usage.
    """
    from msdscore.io.files import is_address, is_image_name
    from msdscore.io.targets import is_same_file, is_standard_output
    from msdscore.rows.rules import ColumnNames

    output = None if target.output is None or is_standard_output(target.output) else target.output
    sources, spec = [source, *(captions or [])], scorer.spec(batch, decoders=workers.decoders)
    names = ColumnNames(image=rows.image_column, caption=rows.caption_column, id=rows.id_column)
    if output is not None and is_folder(output, source):
        if not is_address(output) and any(Path(name).is_dir() and is_same_file(Path(output), name) for name in sources):
            raise ConfigError(f"{output}: is the folder of the shards; expected another folder for their scores")
        is_complete = run_shards(spec, sources, output, names, rows, target, workers)
        raise typer.Exit(0 if is_complete else options.SOME_FAILED)
    _reject_shards(workers, sources)
    file = None if output is None else Path(output)
    known = None
    if rows.references is not None:
        from msdscore.rows.files import ReferenceFile

        known = ReferenceFile(rows.references)
    if rows.reference and (known is not None or not captions):
        raise ConfigError("--reference is for one image and its captions; for other inputs pass --references FILE")
    if captions:
        _reject_row_options(rows, target)
        references = rows.reference or None
        if known is not None and (references := known.find({"image": source})) is None:
            raise ConfigError(f"{known.path}: no references for {source}; expected its file name or id as a key")
        is_complete = run_image(spec, source, captions, references, file, target)
    elif is_image_name(Path(source)):
        raise ConfigError(f"{source}: an image needs captions: msdscore score IMAGE CAPTION…")
    else:
        from msdscore.rows.files import open_rows

        with (
            stoppable(_STOPPED_READING),  # which deletes what was read from standard input
            open_rows(source, images=rows.images, format=rows.input_format, columns=names, references=known) as opened,
        ):
            is_complete = run_file(spec, opened, known, file, target)
    raise typer.Exit(0 if is_complete else options.SOME_FAILED)


def run_image(
    spec: "ScorerSpec",
    image: str,
    captions: list[str],
    references: Sequence[str] | None,
    output: Path | None,
    target: TargetOptions,
) -> bool:
    """Rank the captions of one image, and print or write the result; return whether all were scored."""
    from msdscore.core.evidence import limits_text
    from msdscore.io.files import INPUT_FORMATS
    from msdscore.scorer import Scorer

    if Path(image).suffix.lower().removeprefix(".") in INPUT_FORMATS:
        raise ConfigError(f"{image} is a file of rows; pass an image, or omit the captions")
    if output is not None:
        from msdscore.io.tables import check_output, text_in_csv, write_table

        check_output(output, inputs=[image])
    scorer = Scorer.from_spec(spec)
    try:
        scores = scorer.rank(image, captions, references)
    except CaptionError:
        scores = scorer.rank(image, captions, references, errors="row")
        if scores.failed == len(captions):
            raise
    if output is not None:
        table = text_in_csv(scores.to_arrow(), output.suffix)
        facts = {"msdscore": scores.signature, "verdict_at": limits_text(scores.verdict_at)}
        write_table(table, output, metadata=facts, overwrite=target.overwrite)
        if scores.failed:
            tell(f"{scores.failed} of {len(captions)} captions failed; see the column error of {output}")
    if target.json:
        print_json({"image": image, **scores.to_dict()})
    elif output is None:
        typer.echo(visible(str(scores)))
    return not scores.failed


def run_file(
    spec: "ScorerSpec",
    rows: "RowSource",
    references: "ReferenceFile | None",
    output: Path | None,
    target: TargetOptions,
) -> bool:
    """Score rows into the output, or as JSON lines to standard output; return whether all were scored."""
    from msdscore.run.options import RunOptions
    from msdscore.run.rows import score_file

    if references is not None:
        first = [row.references for row in islice(rows.read(), _FIRST)]
        if first and not any(first):  # the file probably has other names
            name = next(iter(sorted(references.without)), "an image without a name")
            raise ConfigError(
                f"{references.path}: no references for the first {len(first)} rows of {rows.name}; expected file names "
                f"or ids such as {name}, got such as {references.example}"
            )
    how = RunOptions(
        overwrite=target.overwrite, retry=target.retry,
        worst=target.worst_words or 0,
    )  # fmt: skip
    with rows_file(output) as path, bar("scoring") as show:
        result = score_file(spec, rows, path, how, progress=show)
    if references is not None and (without := sorted(references.without)):
        names = ", ".join(without[:3])
        tell(f"{references.path}: no references for {len(without)} images ({names} …); their ref_msd is missing")
    if result.warned:
        tell(f"rows with warnings: {result.warned} (column warnings)")
    for warning in result.warnings:
        tell(f"  {shortened(warning, 300)}")
    if result.earlier and not result.scored:
        done = "; already finished, nothing to do"
    else:
        done = f"; {result.earlier} of them scored by an earlier run" if result.earlier else ""
    tell(f"{result.rows} rows, {result.failed} failed{f' -> {output}' if output else ''}{done}")
    tell_reasons(result.reasons, result.failed, "see the column error of the output")
    if rows.images is None and any(reason.endswith(": no such file") for reason in result.reasons):
        tell("  relative paths start at the folder of the rows; if the images are elsewhere, pass --images FOLDER")
    for name, new in result.renamed.items():
        tell(f"the input column {name} is renamed to {new}")
    for name in rows.layout.without_bytes if output is not None else ():
        tell(
            f"the image bytes of column {name} are not copied, only their paths; for a subset with images, score into "
            "a folder (-o DIR) and run select"
        )
    tell(result.signature)
    if target.json and output is not None:
        print_json({"output": str(output), **asdict(result)})
    options.print_cache_use(spec, result.cache)
    return not result.failed


def _reject_row_options(rows: RowOptions, target: TargetOptions) -> None:
    """Raise for an option of rows, which has no effect on one image and its captions."""
    values = {name: getattr(rows, name) for name in ("images", "input_format", "image_column", "caption_column")}
    values |= {"id_column": rows.id_column, "copy_column": target.copy_column, "retry": target.retry}
    if passed := [f"--{name.replace('_', '-')}" for name, value in values.items() if value]:
        raise ConfigError(f"{', '.join(passed)}: only for a file of rows; omit it for one image and its captions")


def _reject_shards(workers: WorkerOptions, sources: Sequence[str]) -> None:
    """Raise for several shards or options of shards if the output is not a folder."""
    several = False
    if len(sources) > 1 or not Path(sources[0]).is_file():
        from msdscore.io.files import has_input_suffix
        from msdscore.io.stores import expand

        is_rows = has_input_suffix(sources[0])
        several = is_rows and (any(map(has_input_suffix, sources[1:])) or len(expand(sources[0])) > 1)
    if several or workers != WorkerOptions(decoders=workers.decoders):
        raise ConfigError("shards are scored into a folder; pass one: -o DIR (without a suffix)")


def is_folder(output: str, source: str) -> bool:
    """Return whether scores are written into a folder, one file per shard.

    A folder has no suffix, or ends in a slash, or exists and its suffix is not one of a score file.

    >>> is_folder("scores", "a.tar"), is_folder("a.parquet", "a.tar"), is_folder("s3://b/v1.2/", "a.tar")
    (True, False, True)
    """
    from msdscore.io.files import base_name, is_address, is_image_name
    from msdscore.io.tables import OUTPUT_SUFFIXES

    if is_image_name(Path(source)):
        return False
    if not is_address(output) and Path(output).exists() and not Path(output).is_dir():
        return False  # a file without a suffix, or a device such as /dev/null
    suffix = Path(base_name(output)).suffix.lower()
    return not suffix or output.endswith("/") or (suffix not in OUTPUT_SUFFIXES and Path(output).is_dir())


def run_shards(
    spec: "ScorerSpec",
    sources: Sequence[str],
    folder: str,
    names: "ColumnNames",
    rows: RowOptions,
    target: TargetOptions,
    workers: WorkerOptions,
) -> bool:
    """Score shards into a folder; return whether every row of every shard was scored."""
    from msdscore.run.folder import RunRecord
    from msdscore.run.shards import ShardOptions
    from msdscore.run.workers import plan_jobs

    jobs = part_of(plan_jobs(sources, folder), workers.part)
    if rows.input_format:
        raise ConfigError("--input-format is for files of rows, not for shards")
    if rows.references is not None or rows.reference:
        raise ConfigError("--references is for files of rows; shards have references in their column references")
    how = ShardOptions(
        columns=names, images=None if rows.images is None else str(rows.images), copied=tuple(target.copy_column),
        worst=_WORST if target.worst_words is None else target.worst_words, retry=target.retry,
        overwrite=target.overwrite,
    )  # fmt: skip
    run = RunRecord(folder, jobs, spec.to_dict(), how.recorded(), workers.part)
    with stoppable(_STOPPED):
        try:
            with bar("shards") as show:
                show(0, len(jobs))
                for result in _scored_shards(spec, jobs, how, workers):
                    run.add(result)
                    # Finished shards, which come first, have no rate.
                    show(len(run.results), len(jobs), f"{run.rate:.1f} rows per second" if run.rate else "")
        finally:
            record = run.finish()  # also of a run that is stopped
    if spec.cache is None and sum(Path(job.source).suffix in _ROWS for job in jobs) > 1:
        tell("if these files have the same images, --cache DIR encodes each image once")
    return print_shards(spec, run.results, folder, record, as_json=target.json)


def _scored_shards(
    spec: "ScorerSpec", jobs: "Sequence[ShardJob]", how: "ShardOptions", workers: WorkerOptions
) -> "Iterator[ShardResult]":
    """Score shards with local processes or on a Ray cluster, in any order."""
    if workers.engine == "ray":
        from msdscore.run.ray_data import RayOptions, score_on_ray

        cluster = RayOptions(
            address=workers.address, most=workers.workers, cpus=workers.worker_cpus or 1.0,
            gpus=workers.worker_gpus,
        )  # fmt: skip
        return score_on_ray(spec, jobs, how, cluster)
    from msdscore.run.workers import score_on_workers

    return score_on_workers(spec, jobs, how, workers=workers.workers)


def print_shards(
    spec: "ScorerSpec", results: "Sequence[ShardResult]", folder: str, record: str, *, as_json: bool
) -> bool:
    """Print a summary of scored shards; return whether every row of every shard was scored."""
    rows, failed = sum(result.rows for result in results), sum(result.failed for result in results)
    warned = sum(result.warned for result in results)
    earlier = sum(not result.fresh and result.error is None for result in results)
    signature = next((result.signature for result in results if result.signature), "")
    reasons = [reason for result in results for reason in result.reasons][:3]
    errors = [result.error for result in results if result.error is not None]
    used = [result.cache for result in results if result.cache is not None]
    cache, failures = reduce(add, used) if used else None, f"see {record}/failures.parquet"
    done = f" ({earlier} of them already finished)" if earlier else ""
    tell(f"{len(results)} shards{done}, {rows} rows, {failed} failed -> {folder}")
    tell_reasons(reasons, failed, failures)
    if warned:
        tell(f"rows with warnings: {warned} (column warnings)")
    if errors:
        tell(f"{len(errors)} shards could not be scored:")
        kinds = _distinct_errors(results)
        tell_reasons(kinds[:_SHOWN], len(kinds), failures)
    if signature:
        tell(signature)
    options.print_cache_use(spec, cache)
    if as_json:
        tally = {"shards": len(results), "earlier": earlier, "rows": rows, "failed": failed, "signature": signature}
        tally |= {"warned": warned, "reasons": reasons, "errors": errors}
        tally |= {"cache": None if cache is None else asdict(cache)}
        print_json({"output": folder, **tally})
    return not (failed or errors)


def _distinct_errors(results: "Sequence[ShardResult]") -> list[str]:
    """Return each error of shards once, with the first shard and the number of others that have it."""
    shards: dict[str, list[str]] = {}
    for result in results:
        if result.error is not None:
            shards.setdefault(result.error.removeprefix(f"{shortened(result.source)}: "), []).append(result.source)
    return [
        f"{shortened(names[0])}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {error}"
        for error, names in shards.items()
    ]


def part_of(shards: list[T], part: str | None) -> list[T]:
    """Return one part of the shards such as 3/100, all without a part; parts differ by at most one shard."""
    if part is None:
        return shards
    number, slash, count = part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ConfigError(f"expected a part from 0/100 to 99/100, got {part!r}")
    return shards[int(number) :: int(count)]
