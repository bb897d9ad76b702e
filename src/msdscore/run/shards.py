"""Score one shard into one Parquet file; any scheduler can run it, and run it again."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from msdscore import threads
from msdscore.core.arrays import is_gpu, torch_part
from msdscore.errors import ConfigError, InputError, MSDScoreError, RunError, shortened, unknown_name
from msdscore.forms.registry import COLUMNS
from msdscore.io import stores
from msdscore.io.arrow import pa, pc
from msdscore.io.files import is_address
from msdscore.io.runs import Run, drop_parts, hidden_parts, open_parts
from msdscore.io.tables import table_from_columns
from msdscore.io.targets import check_manifest, is_same_file, refuse_inputs
from msdscore.rows.files import open_rows
from msdscore.rows.rules import ColumnNames, Row, first_of
from msdscore.run.folder import Facts, ShardJob, ShardResult, claim_folder, is_intact, read_facts, write_shard
from msdscore.run.parts import PART_BATCHES, WORST, Merged, Plan, check_images, joined, score_missing
from msdscore.run.rows import renamed
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec

# Rows of a shard that are planned together, which a GPU waits for; captions of one image are next to each other.
WINDOW_ROWS = 1024
_IDENTIFYING = pa.schema([(name, pa.string()) for name in ("key", "uid", "caption")])  # first columns of a score shard
_COPIED = "copied "  # prefix of stored columns that are copied: they may have the names of others
_REASONS = 3  # errors of failed rows in the facts of a shard
_TYPO = 0.8  # similarity of column names from which one is taken for a typo of the other
# Per worker on the CPU, on every machine: sums over another number of threads differ in their last bits.
THREADS = 2
BuildPipeline = Callable[[], Pipeline]
Watch = Callable[[Iterator[Row]], Iterator[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """How rows of a shard are read, and which columns its scores have besides the numbers.

    `copied` are input columns that are copied to the scores. `retry` scores a finished shard with failed rows again,
    `overwrite` any shard.
    """

    columns: ColumnNames = field(default_factory=ColumnNames)
    images: str | None = None
    copied: tuple[str, ...] = ()
    worst: int = 3  # least supported words per caption
    retry: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.worst < 0:
            raise ConfigError(f"worst must not be negative, got {self.worst}")

    def recorded(self) -> dict[str, Any]:
        """Return the options that change the content of a score shard, which records them."""
        copied = list(self.copied)
        return {"columns": asdict(self.columns), "images": self.images, "copied": copied, "worst": self.worst}


def score_shard(
    scorer: ScorerSpec | Pipeline,
    source: str | Path,
    output: str | Path,
    options: ShardOptions | None = None,
    *,
    build: BuildPipeline | None = None,
    watch: Watch | None = None,
) -> ShardResult:
    """Score every row of a shard (tar, Parquet, JSON lines, …) into one Parquet file, written atomically.

    An interrupted call resumes, with an identical output: finished parts are in a hidden folder next to it.

    A finished output of the same scorer and input is left unchanged, without loading the encoder; one of another input
    or scorer is only replaced with `overwrite`. `build` returns the pipeline of a `ScorerSpec`, for workers that use
    one pipeline for many shards. Rows pass through `watch` as they are read. Both names may be addresses (s3://…).

    Raises:
        InputError: the shard cannot be read at all.
        RunError: the output has other content, or is an input of the shard.
    """
    how, name, target = options or ShardOptions(), str(source), str(output)
    # The same for every worker on every device.
    record = replace(scorer, device="auto").record() if isinstance(scorer, ScorerSpec) else None
    reading = {"input": _fingerprint(name, target), **how.recorded()}
    refuse_inputs([Path(target)], [name])  # the shard and its metadata table
    facts = None if how.overwrite else read_facts(target)
    is_finished = facts is not None and not (how.retry and facts.failed) and is_intact(target)
    read = partial(_read, name, how)
    if facts is not None and is_finished and record is not None and facts.spec == record:
        check_manifest(shortened(target), {option: facts.manifest.get(option) for option in reading}, reading)
        return _finished(facts, target, read)
    pipeline = scorer if isinstance(scorer, Pipeline) else build() if build else scorer.build()
    scoring = scorer_manifest(pipeline)
    manifest, before = {**reading, **scoring}, pipeline.cache_use
    if facts is not None:
        compared = manifest if is_finished else scoring  # an unfinished shard may have another input
        check_manifest(shortened(target), {option: facts.manifest.get(option) for option in compared}, compared)
        if is_finished:
            return _finished(facts, target, read)
    with ExitStack() as stack:
        rows = read(stack, ahead=is_gpu(pipeline.encoder.device) and os.name == "posix")
        run = stack.enter_context(open_parts(target, manifest, again=how.overwrite))
        plan = Plan(
            watch(rows) if watch else rows,
            part_rows=PART_BATCHES * pipeline.batch_size, window_rows=WINDOW_ROWS,
        )  # fmt: skip
        # Reads all rows, and writes each part as soon as it is scored.
        score_missing(run, pipeline, plan, partial(input_columns, copied=how.copied), worst=how.worst, retry=how.retry)
        table = shard_table(run, pipeline)
        if _fingerprint(name, target) != reading["input"]:
            raise RunError(f"{shortened(name)}: was changed while it was scored; nothing was written, run again")
        reasons = table["error"].drop_null().to_pylist()
        facts = Facts(
            source=name,
            manifest=manifest,
            images=plan.images,
            rows=len(table),
            failed=len(reasons),
            warned=pc.sum(pc.greater(pc.list_value_length(table["warnings"]), 0)).as_py() or 0,
            spec=record,
            reasons=tuple(reasons[:_REASONS]),
        )
        write_shard(table, target, facts)
        run.remove()
    use = pipeline.cache_use
    return replace(_result(facts, target, fresh=True), cache=None if use is None else use.since(before))


def scorer_manifest(pipeline: Pipeline) -> dict[str, Any]:
    """Return everything about a scorer that must be the same in all shards of a folder."""
    limits = {"limits": asdict(pipeline.limits), "verdict_at": list(pipeline.verdict_at)}
    return {"signature": pipeline.signature, **limits}


def input_columns(rows: Sequence[Row], *, copied: Sequence[str] = ()) -> pa.Table:
    """Return key, uid and caption of rows, and the columns to copy."""
    keys, uids, names, key_name, uid_name = list[str](), list[str | None](), tuple[str, ...](), "key", "uid"
    for row in rows:
        if names != tuple(row.columns):
            names = tuple(row.columns)
            key_name, uid_name = (first_of(names, (name,)) or name for name in ("key", "uid"))
        uid = row.columns.get(uid_name)
        keys.append(str(row.columns.get(key_name) or (row.id if row.has_id or uid is None else uid)))
        uids.append(None if uid is None else str(uid))
    table = pa.table([keys, uids, [row.caption or None for row in rows]], schema=_IDENTIFYING)
    copies = table_from_columns([{name: row.columns.get(name) for name in copied} for row in rows] if copied else [])
    for entry, column in zip(copies.schema, copies.columns, strict=True):
        table = table.append_column(entry.with_name(_COPIED + entry.name), column)
    return table


def shard_table(run: Run, pipeline: Pipeline) -> pa.Table:
    """Return the table of a score shard: all rows in order, with the numbers of their parts."""
    tables = list[pa.Table]()
    for inputs, added in Merged(run, pipeline.form, verdict_at=pipeline.verdict_at).tables():
        copied = [name.removeprefix(_COPIED) for name in inputs.column_names if name.startswith(_COPIED)]
        new_names = renamed(copied, (*_IDENTIFYING.names, *COLUMNS, WORST))
        tables.append(joined(inputs, added, {_COPIED + name: new_names.get(name, name) for name in copied}))
    return pa.concat_tables(tables).combine_chunks()


def _fingerprint(name: str, target: str) -> str:
    """Return marks of a shard and of its metadata table, if that is not the output."""
    marks = [stores.mark(name)]  # first: an error names the shard
    metadata = stores.metadata_table(name)
    if metadata is not None and not is_same_file(Path(target), metadata):
        marks.append(stores.mark(metadata))
    return "+".join(marks)


def _finished(facts: Facts, target: str, read: Callable[[ExitStack], Iterator[Row]]) -> ShardResult:
    """Return the result of a finished shard; raise `RunError` if image files have changed since."""
    if facts.images:
        with ExitStack() as stack:
            check_images(target, facts.images, read(stack))
    if not is_address(target):
        drop_parts(hidden_parts(Path(target)))  # left by a crash at the very end
    return _result(facts, target, fresh=False)


def _read(name: str, how: ShardOptions, until: ExitStack, *, ahead: bool = False) -> Iterator[Row]:
    """Open a shard and read its rows, with `ahead` those of a tar in another process."""
    path = until.enter_context(stores.fetched_shard(name))
    open_source = partial(open_rows, path, images=how.images, columns=how.columns, hashed=False)
    source = until.enter_context(open_source())
    first = next(source.read_at([0]), None) if source.layout.without_bytes and how.copied else None
    for column in how.copied if source.layout.seen else ():
        # If every row may have other columns, only a likely typo is an error.
        is_typo = source.layout.columns is not None or get_close_matches(column, source.layout.seen, cutoff=_TYPO)
        if column not in source.layout.seen and is_typo:
            raise unknown_name(f"column of {shortened(name)}", column, source.layout.seen)
        if column in source.layout.without_bytes and first is not None and first.columns[column] is None:
            raise ConfigError(
                f"{shortened(name)}: column {column} has image bytes, which scores do not contain; omit --copy-column "
                f"{column}, and copy the selected rows with their images by: msdscore select SCORES -o FOLDER"
            )
    if not ahead or path.suffix.lower() != ".tar":
        return source.read()
    rows: Iterator[Row] = torch_part("feeding.rows").read_ahead(open_source)
    return rows


def check_copied(jobs: Sequence[ShardJob], how: ShardOptions) -> None:
    """Raise if the first shard lacks a column to copy, before anything is written.

    A shard that cannot be read here, and a remote one, is left to the worker that scores it.
    """
    for job in jobs[:1] if how.copied else ():
        if not is_address(job.source):
            with suppress(InputError), ExitStack() as stack:
                _read(job.source, how, stack)


def _result(facts: Facts, target: str, *, fresh: bool) -> ShardResult:
    names = ("source", "rows", "failed", "warned", "signature", "reasons")
    return ShardResult(output=target, fresh=fresh, **{name: getattr(facts, name) for name in names})


@dataclass
class ShardWorker:
    """Scores shards with one scorer, which is built for the first unfinished shard."""

    spec: ScorerSpec
    options: ShardOptions
    at_once: int = 1  # shards that are scored concurrently
    _built: Pipeline | None = None
    _broken: MSDScoreError | None = None

    def __call__(self, job: ShardJob, *, watch: Watch | None = None) -> ShardResult:
        """Score one shard; if it cannot be scored at all, the error is in the result.

        Its rows pass through `watch` as they are read. Several threads may call it; one at a time reads rows.

        Raises:
            MSDScoreError: the scorer cannot be built, so that no shard can be scored.
        """
        threads.use(self.spec.threads or THREADS)
        try:
            build = partial(self._pipeline, stores.parent(job.output))
            return score_shard(self.spec, job.source, job.output, self.options, build=build, watch=watch)
        except MSDScoreError as error:
            if error is self._broken:
                raise
            return ShardResult(job.source, job.output, error=str(error))

    def _pipeline(self, folder: str) -> Pipeline:
        """Build the scorer once, and check that the folder has the scores of no other one."""
        if self._broken is not None:
            raise self._broken
        try:
            if self._built is None:
                pipeline = self.spec.build()
                manifest = scorer_manifest(pipeline) | self.options.recorded()
                claim_folder(folder, manifest, overwrite=self.options.overwrite)
                self._built = pipeline.sharing(self.at_once)
        except MSDScoreError as error:
            self._broken = error
            raise
        return self._built
