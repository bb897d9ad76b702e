"""Score a file of rows in resumable parts and merge them into one output."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError
from msdscore.forms.columns import COLUMNS
from msdscore.forms.references import NAMES as REFERENCE_NAMES
from msdscore.forms.references import signed
from msdscore.io.arrow import pa
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
from msdscore.io.outputs.targets import check_manifest, refuse_inputs, run_files
from msdscore.run.parts import WORST, InputColumns, RowValues, collect, plan, renamed
from msdscore.run.resume import READERS, Progress, score_missing, stamps_of
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

PART_ROWS = 256  # the most rows that a crash can lose; large enough to fill a batch of any encoder

Report = Callable[[int, int], None]


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
    part_rows: int = PART_ROWS
    verify: bool = False
    excel_safe: bool = False
    worst: int = 0

    def __post_init__(self) -> None:
        if self.part_rows < 1:
            raise ConfigError(f"part_rows must be at least 1, got {self.part_rows}")
        if self.worst < 0:
            raise ConfigError(f"worst must not be negative, got {self.worst}")


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
    progress: Report = lambda done, total: None,
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
        check_manifest(output, notes["manifest"], manifest)
        if is_current:
            return _finished(output, notes)
    with (
        closing(_input_columns(source, output)) as columns,
        open_run(output, manifest, again=notes is not None) as run,
    ):
        parts = plan(columns.watch(source.read()), part_rows=how.part_rows)
        # Reads all rows, which pass through `columns`, and writes each part as soon as it is scored.
        done = score_missing(
            run, pipeline, parts, worst=how.worst or None, verify=how.verify, retry=how.retry,
            progress=lambda count: progress(count, max(columns.count, source.total or 0)),
        )  # fmt: skip
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


def _is_current(source: RowSource, how: RunOptions, notes: Mapping[str, Any]) -> bool:
    """Return whether a finished run has the scores of these rows and of the images as they are now."""
    if how.retry and notes["failed"]:
        return False
    with ThreadPoolExecutor(READERS) as pool:
        parts = plan(source.read(), part_rows=how.part_rows)
        keys = (part.key(stamps_of(part.paths, pool, verify=how.verify)) for part in parts)
        return all(key == known for key, known in zip_longest(keys, notes["parts"]))


def _write_output(
    run: Run,
    pipeline: Pipeline,
    source: RowSource,
    columns: InputColumns,
    how: RunOptions,
    done: Progress,
    spec: Mapping[str, Any] | None,
) -> ScoredFile:
    """Merge the parts into the output, and record what it was scored from."""
    output, new_names = run.output, renamed(columns.names.union(source.layout.seen), (*COLUMNS, WORST))
    scores = collect(run.tables(), pipeline.form)
    # How many references rows have is known at the end: files are compared without it.
    name = REFERENCE_NAMES[0]
    counts = scores[name].drop_null().to_pylist() if name in scores.column_names else []
    signature = signed(pipeline.signature, counts) if counts else pipeline.signature
    path = source.name if source.name == "-" else str(Path(source.name).resolve())
    tables = _output_tables(columns, scores, new_names, output.suffix)
    keys = [done.keys[number] for number in sorted(done.keys)]
    summary = run.finish(
        map(without_formulas, tables) if how.excel_safe else tables,
        metadata={"msdscore": pipeline.signature, "signed": signature},
        notes={"parts": keys, "spec": spec, "source": path, "renamed": new_names, "signed": signature},
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
    columns: InputColumns, scores: pa.Table, new_names: Mapping[str, str], suffix: str
) -> Iterator[pa.Table | JsonRows]:
    """Yield the tables of the output: all rows in order, input columns first, then the added ones."""
    scores, start = text_in_csv(scores, "warnings", suffix), 0
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
        "part_rows": how.part_rows,
        "worst_words": how.worst,
        "excel_safe": how.excel_safe,
    }
