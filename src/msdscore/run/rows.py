"""Score a file of rows in resumable parts and merge them into one output."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError
from msdscore.forms.columns import COLUMNS
from msdscore.forms.references import NAMES as REFERENCE_NAMES
from msdscore.forms.references import signed
from msdscore.io.arrow import pa, pc
from msdscore.io.hashing import content_stamp, file_stamp
from msdscore.io.images import ImageLimits
from msdscore.io.inputs.rows import RowSource
from msdscore.io.outputs.files import (
    JsonRows,
    check_output,
    is_json,
    json_line,
    table_from_columns,
    text_in_csv,
    without_formulas,
)
from msdscore.io.outputs.run import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.outputs.targets import compare, refuse_inputs, run_files
from msdscore.run.parts import (
    WORST,
    InputColumns,
    Part,
    RowValues,
    collect,
    part_table,
    plan,
    renamed,
    row_keys,
    score_parts,
)
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

_READERS = 8  # threads that read image files of finished parts
PART_ROWS = 256  # the most rows that a crash can lose; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run, apart from the scorer.

    `overwrite` discards an existing output. `retry` scores parts with failed rows again (a finished run completely),
    although no image file has changed. `verify` hashes image files of any size; by default, those beyond 8 MiB are
    identified by size and time. `excel_safe` puts ' before text that a spreadsheet would evaluate, in CSV and TSV
    outputs. `worst` adds a column with up to that many of the least supported words.
    """

    overwrite: bool = False
    retry: bool = False
    prefix: str = ""
    part_rows: int = PART_ROWS
    verify: bool = False
    excel_safe: bool = False
    worst: int = 0

    def __post_init__(self) -> None:
        if self.part_rows < 1:
            raise ConfigError(f"part_rows must be at least 1, got {self.part_rows}")
        if self.worst < 0:
            raise ConfigError(f"worst must not be negative, got {self.worst}")
        if not self.prefix.isprintable():
            raise ConfigError(f"a prefix must be printable, since column names start with it; got {self.prefix!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFile(Summary):
    """Summary of a run; `scored` rows were scored by this call, `earlier` ones by an earlier call.

    The other rows could not be scored at all. `renamed` maps input columns to their names in the output, `cache` has
    the statistics of a cache on disk.
    """

    scored: int
    earlier: int
    signature: str
    renamed: Mapping[str, str]
    cache: CacheUse | None = None


def score_rows(
    scorer: Pipeline | ScorerSpec,
    source: RowSource,
    output: Path,
    options: RunOptions | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> ScoredFile:
    """Score every row of `source` into `output`; resume an interrupted run.

    While it is scored, each row and each image file is read once: a part is identified by the bytes that were decoded.
    A finished run is scored again if an image file has changed; if none has, the encoder of a `ScorerSpec` is not
    loaded. `progress` is called with the number of rows done and in total, which grows while rows are read if it is
    not known before.
    """
    how = options or RunOptions()
    _prepare_output(source, output, how)
    spec, notes = scorer if isinstance(scorer, ScorerSpec) else None, run_notes(output)
    is_current = notes is not None and _is_current(source, how, notes)
    if notes and is_current and spec and _is_of(notes, spec, _settings(source, how, spec.limits)):
        return _finished(output, notes)
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    # The signature comes last, so that an error names the setting that differs.
    settings = _settings(source, how, pipeline.limits)
    manifest = {**pipeline.manifest(), **settings, "signature": pipeline.signature}
    if notes:
        compare(output, notes["manifest"], manifest)
        if is_current:
            return _finished(output, notes)
    with (
        closing(_input_columns(source, output)) as columns,
        open_run(output, manifest, again=notes is not None) as run,
    ):
        parts = plan(columns.watch(source.read()), part_rows=how.part_rows)
        done = _score_missing(
            run, pipeline, parts, how, lambda count: progress(count, max(columns.count, source.total or 0))
        )
        progress(columns.count, columns.count)
        return _write_output(run, pipeline, source, columns, how, done, None if spec is None else spec.record())


def _prepare_output(source: RowSource, output: Path, how: RunOptions) -> None:
    """Raise if the output cannot be written; with `overwrite`, discard an existing one."""
    check_output(output, inputs=[source.name])
    if how.excel_safe and output.suffix.lower() not in (".csv", ".tsv"):
        raise ConfigError(f"{output}: --excel-safe is for outputs that spreadsheets open; expected .csv or .tsv")
    if how.overwrite:
        images = (row.source for row in source.read() if isinstance(row.source, str))
        refuse_inputs([output, *run_files(output)], images)
        discard(output)


@dataclass(slots=True)
class _Progress:
    """The parts of a run so far: their keys by number, and the rows scored by this call and by earlier ones."""

    keys: dict[int, str] = field(default_factory=dict)
    scored: int = 0
    earlier: int = 0


def _score_missing(
    run: Run, pipeline: Pipeline, parts: Iterable[Part], how: RunOptions, progress: Callable[[int], None]
) -> _Progress:
    """Score and write the parts that an earlier run has not written from the same rows and images."""
    written, done = run.keys(), _Progress()
    if how.retry:
        for number in _failed_parts(run, written):
            run.drop(number)
            del written[number]

    def reuse(part: Part, key: str) -> None:
        done.keys[part.number] = key
        done.earlier += len(part.rows)
        progress(done.scored + done.earlier)

    def count(rows: int) -> None:
        done.scored += rows
        progress(done.scored + done.earlier)

    progress(0)
    unfinished, stamp = _unfinished(parts, written, how, reuse), partial(content_stamp, verify=how.verify)
    for part, results, stamps in score_parts(pipeline, unfinished, worst=how.worst, stamp=stamp, scored=count):
        unread = (path for path in part.paths if path not in stamps)
        key = part.key(stamps | {path: file_stamp(path, verify=how.verify) for path in unread})
        run.write(part.number, part_table(row_keys(part), results, words=bool(how.worst)), key=key)
        done.keys[part.number] = key
    for number in written.keys() - done.keys.keys():
        run.drop(number)
    return done


def _failed_parts(run: Run, written: Mapping[int, str]) -> list[int]:
    """Return the written parts with failed rows; rows that could not be tried have no image and do not count."""
    if not written:
        return []
    tables = zip(written, run.tables(["error", "image"]), strict=True)
    return [
        number
        for number, table in tables
        if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py()
    ]


def _unfinished(
    parts: Iterable[Part], written: Mapping[int, str], how: RunOptions, reuse: Callable[[Part, str], None]
) -> Iterator[Part]:
    """Yield the parts to score; call `reuse` with each that is written with the same key, and its key."""
    with ThreadPoolExecutor(_READERS) as pool:
        for part in parts:
            key = part.key(_stamps(part.paths, pool, how)) if part.number in written else None
            if key is not None and key == written[part.number]:
                reuse(part, key)
            else:
                yield part


def _is_current(source: RowSource, how: RunOptions, notes: Mapping[str, Any]) -> bool:
    """Return whether a finished run has the scores of these rows and of the images as they are now."""
    if how.retry and notes["failed"]:
        return False
    with ThreadPoolExecutor(_READERS) as pool:
        parts = plan(source.read(), part_rows=how.part_rows)
        keys = (part.key(_stamps(part.paths, pool, how)) for part in parts)
        return all(key == known for key, known in zip_longest(keys, notes["parts"]))


def _write_output(
    run: Run,
    pipeline: Pipeline,
    source: RowSource,
    columns: InputColumns,
    how: RunOptions,
    done: _Progress,
    spec: Mapping[str, Any] | None,
) -> ScoredFile:
    """Merge the parts into the output, and record what it was scored from."""
    output, added = run.output, [how.prefix + name for name in (*COLUMNS, WORST)]
    new_names = renamed(columns.names.union(source.layout.seen), added)
    scores = collect(run.tables(), pipeline.form)
    # How many references rows have is known at the end: files are compared without it.
    name = REFERENCE_NAMES[0]
    counts = scores[name].drop_null().to_pylist() if name in scores.column_names else []
    signature = signed(pipeline.signature, counts) if counts else pipeline.signature
    tables = _output_tables(columns, scores, new_names, output.suffix, prefix=how.prefix)
    keys = [done.keys[number] for number in sorted(done.keys)]
    summary = run.finish(
        map(without_formulas, tables) if how.excel_safe else tables,
        metadata={"msdscore": pipeline.signature, "signed": signature},
        notes={"parts": keys, "spec": spec, "source": source.path, "renamed": new_names, "signed": signature},
        errors=f"{how.prefix}error",
        warnings=f"{how.prefix}warnings",
        check=partial(source.check_unchanged, partial(_has_rows, source, how, keys)),
    )
    return ScoredFile(
        **asdict(summary),
        scored=done.scored,
        earlier=done.earlier,
        signature=signature,
        renamed=new_names,
        cache=pipeline.cache_use,
    )


def _input_columns(source: RowSource, output: Path) -> InputColumns:
    """Return storage for the columns of the input; the id of a row without one is its index.

    For a JSON output, where names and types may differ from row to row, they are stored as the text of objects.
    """
    schema, name = source.layout.schema, source.layout.id_name
    if schema is None and source.layout.columns is not None:
        schema = pa.schema([(column, pa.string()) for column in source.layout.columns])
    if schema is not None and name not in schema.names:
        schema = pa.schema([("id", pa.string()), *schema])

    def to_table(rows: list[RowValues]) -> pa.Table:
        as_number = _have_numbers(source, [columns[name] for columns, _, _, has_id, _ in rows if has_id])
        values = list[Mapping[str, Any]]()
        for columns, index, row_id, has_id, _ in rows:
            if has_id or as_number is None:
                values.append(columns)
            else:
                new_id = {name: index if as_number else row_id}
                values.append({**columns, **new_id} if name in columns else {**new_id, **columns})
        if is_json(output.suffix):
            return pa.table({"": pa.array(map(json_line, values), pa.large_string())})
        return table_from_columns(values, schema)

    return InputColumns(to_table, typed=source.layout.schema is not None)


def _have_numbers(source: RowSource, ids: list[Any]) -> bool | None:
    """Return whether the ids of rows are numbers; None if their type is neither a number nor text."""
    if source.layout.schema is None or source.layout.id_name not in source.layout.schema.names:
        return bool(ids) and all(type(value) is int for value in ids)
    kind = source.layout.schema.field(source.layout.id_name).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return False
    is_number = pa.types.is_floating(kind) or kind in (pa.int64(), pa.uint64(), pa.int32(), pa.uint32())
    return True if is_number else None


def _output_tables(
    columns: InputColumns, scores: pa.Table, new_names: Mapping[str, str], suffix: str, *, prefix: str
) -> Iterator[pa.Table | JsonRows]:
    """Yield the tables of the output: all rows in order, input columns first, then the added ones."""
    scores = text_in_csv(scores, "warnings", suffix)
    scores, start = scores.rename_columns([prefix + name for name in scores.column_names]), 0
    for stored in columns.tables():
        added = scores.slice(start, len(stored))
        start += len(stored)
        if is_json(suffix):
            objects = stored[0].to_pylist()
            if new_names:
                rows = map(json.loads, objects)
                objects = [json_line({new_names.get(name, name): row[name] for name in row}) for row in rows]
            yield JsonRows(objects, added)
        else:
            names = [*(new_names.get(name, name) for name in stored.column_names), *added.column_names]
            yield pa.Table.from_arrays([*stored.columns, *added.columns], names=names)


def _stamps(paths: Sequence[str], pool: ThreadPoolExecutor, how: RunOptions) -> dict[str, str]:
    """Return the stamps of image files, which several threads read: the disk may be slow or remote."""
    shares = [paths[first::_READERS] for first in range(min(_READERS, len(paths)))]
    stamps = pool.map(lambda share: [(path, file_stamp(path, verify=how.verify)) for path in share], shares)
    return dict(chain.from_iterable(stamps))


def _has_rows(source: RowSource, how: RunOptions, keys: Sequence[str]) -> bool:
    """Return whether a source has the rows of these parts, whatever their images are now."""
    parts = zip_longest((part.rows_key() for part in plan(source.read(), part_rows=how.part_rows)), keys)
    return all(rows and key and key.startswith(rows) for rows, key in parts)


def _finished(output: Path, notes: Mapping[str, Any]) -> ScoredFile:
    """Return the summary of a finished run that is up to date."""
    drop_parts(output)
    summary, signature = Summary.of(notes), notes.get("signed", notes["manifest"]["signature"])
    new_names = notes.get("renamed", {})
    return ScoredFile(**asdict(summary), scored=0, earlier=summary.rows, signature=signature, renamed=new_names)


def _is_of(notes: Mapping[str, Any], spec: ScorerSpec, settings: Mapping[str, Any]) -> bool:
    """Return whether a finished run has the same scorer and settings, as far as is known without loading the scorer."""
    record, manifest = spec.record(), notes.get("manifest", {})
    if record is None or notes.get("spec") != record:
        return False
    return all(manifest.get(name) == value for name, value in json.loads(json.dumps(settings)).items())


def _settings(source: RowSource, how: RunOptions, limits: ImageLimits) -> dict[str, Any]:
    """Return everything that must be the same to resume a run, except the scorer."""
    return {
        "version": __version__,
        "input": source.fingerprint,
        "images": source.images,
        "columns": asdict(source.names),
        "limits": asdict(limits),
        "prefix": how.prefix,
        "part_rows": how.part_rows,
        "worst_words": how.worst,
        "excel_safe": how.excel_safe,
    }
