"""Score a file of rows in resumable parts into one output with its columns and the scores."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msdscore.core.evidence import limits_text
from msdscore.forms.registry import COLUMNS
from msdscore.io.arrow import pa
from msdscore.io.images import ImageLimits
from msdscore.io.runs import discard, drop_parts, open_run, run_notes
from msdscore.io.tables import (
    JSON_SUFFIXES,
    JsonRows,
    check_output,
    json_line,
    table_from_columns,
    text_in_csv,
)
from msdscore.io.targets import Summary, check_manifest, run_files
from msdscore.rows.files import RowSource
from msdscore.rows.rules import Row
from msdscore.run.options import RunOptions, ScoredFile
from msdscore.run.parts import (
    OBJECTS,
    PART_BATCHES,
    WORST,
    Merged,
    Plan,
    ToTable,
    check_images,
    joined,
    score_missing,
)
from msdscore.scoring import references
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

_INPUT = "input_"  # prefix of an input column with the name of an added one


def score_file(
    scorer: Pipeline | ScorerSpec,
    source: RowSource,
    output: Path,
    options: RunOptions | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ScoredFile:
    """Score every row of `source` into `output`; resume an interrupted run.

    Each row and each image file is read once. A finished run is left unchanged, without loading the encoder of a
    `ScorerSpec`. `progress` is called with the number of rows done and in total, which grows while rows are read if it
    is not known before.

    Raises:
        RunError: the output belongs to another run, or image files have changed since.
    """
    how = options or RunOptions()
    _prepare_output(source, output, how)
    spec = scorer if isinstance(scorer, ScorerSpec) else None
    notes = run_notes(output)  # of a finished run
    is_done = notes is not None and not (how.retry and notes["failed"])
    if notes and is_done and spec and _is_of(notes, spec, _settings(source, how, spec.limits)):
        return _finished(source, output, notes)
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    # The signature comes last, so that an error names the setting that differs.
    manifest = {**pipeline.manifest(), **_settings(source, how, pipeline.limits), "signature": pipeline.signature}
    if notes:
        check_manifest(output, notes["manifest"], manifest)
        if is_done:
            return _finished(source, output, notes)
    with open_run(output, manifest, again=notes is not None) as run:
        plan = Plan(source.read(), part_rows=how.part_rows or PART_BATCHES * pipeline.batch_size)
        scored, earlier = score_missing(
            run, pipeline, plan, input_columns(source, output), worst=how.worst or None, retry=how.retry,
            progress=lambda count: progress(count, max(plan.count, source.total or 0)),
        )  # fmt: skip
        progress(plan.count, plan.count)
        merged = Merged(run, pipeline.form, verdict_at=pipeline.verdict_at)
        # How many references rows have is known at the end: files are compared without it.
        counts = merged.reference_counts
        signature = references.signed(pipeline.signature, counts) if counts else pipeline.signature
        new_names = renamed(plan.names.union(source.layout.seen), (*COLUMNS, WORST))
        summary = run.finish(
            _output_tables(merged, new_names, output.suffix.lower()),
            rows=plan.count,
            metadata={
                "msdscore": pipeline.signature, "signed": signature, "verdict_at": limits_text(pipeline.verdict_at),
            },
            notes={
                "images": plan.images, "spec": None if spec is None else spec.record(), "renamed": new_names,
                "signed": signature, "source": source.name if source.name == "-" else str(Path(source.name).resolve()),
            },
            check=source.check_unchanged,
        )  # fmt: skip
    return ScoredFile(
        **asdict(summary), scored=scored, earlier=earlier, signature=signature, renamed=new_names,
        cache=pipeline.cache_use,
    )  # fmt: skip


def _with_names(values: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    return {new_names.get(name, name): value for name, value in values.items()}


def _prepare_output(source: RowSource, output: Path, how: RunOptions) -> None:
    """Raise if the output cannot be written; with `overwrite`, discard an existing one."""
    check_output(output, inputs=[source.name])
    if how.overwrite:
        discard(output)


def _finished(source: RowSource, output: Path, notes: Mapping[str, Any]) -> ScoredFile:
    """Return the summary of a finished run; raise `RunError` if image files have changed since."""
    if notes.get("images"):
        check_images(output, notes["images"], source.read())
    drop_parts(run_files(output)[1])
    summary, signature = Summary.of(notes), notes.get("signed", notes["manifest"]["signature"])
    new_names = notes.get("renamed", {})
    return ScoredFile(**asdict(summary), scored=0, earlier=summary.rows, signature=signature, renamed=new_names)


def _is_of(notes: Mapping[str, Any], spec: ScorerSpec, settings: Mapping[str, Any]) -> bool:
    """Return whether a finished run has the same scorer and settings, as far as is known without loading the scorer."""
    record, written = spec.record(), json.loads(json.dumps(settings))
    return record is not None and notes.get("spec") == record and notes.get("manifest", {}).items() >= written.items()


def _settings(source: RowSource, how: RunOptions, limits: ImageLimits) -> dict[str, Any]:
    """Return everything that must be the same to resume a run, except the scorer."""
    return {
        "version": __version__,
        "input": source.fingerprint,
        "images": source.images,
        "columns": asdict(source.names),
        "limits": asdict(limits),
        "worst_words": how.worst,
    }


def renamed(names: Collection[str], added: Collection[str]) -> dict[str, str]:
    """Return new names of the input columns that have the name of an added one.

    >>> renamed(["caption", "msd", "input_msd"], ["msd", "error"])
    {'msd': 'input_input_msd'}
    """
    new_names: dict[str, str] = {}
    for name in sorted(set(names).intersection(added)):
        new_names[name] = _INPUT + name
        while new_names[name] in names or new_names[name] in added:
            new_names[name] = _INPUT + new_names[name]
    return new_names


def input_columns(source: RowSource, output: Path) -> ToTable:
    """Return the function that makes a table of the input columns of rows; the id of a row without one is its index.

    For a JSON output, where names and types may differ from row to row, they are stored as the text of objects.
    """
    schema, name = source.layout.schema, source.layout.id_name
    if schema is None and source.layout.columns is not None:
        schema = pa.schema([(column, pa.string()) for column in source.layout.columns])
    if schema is not None and name not in schema.names:
        schema = pa.schema([("id", pa.string()), *schema])

    def to_table(rows: Sequence[Row]) -> pa.Table:
        values = input_objects(source, rows)
        if output.suffix.lower() in JSON_SUFFIXES:
            return pa.table({OBJECTS: pa.array(map(json_line, values), pa.large_string())})
        return table_from_columns(values, schema)

    return to_table


def input_objects(source: RowSource, rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """Return the input columns of rows; the id of a row without one is its index."""
    name, values = source.layout.id_name, list[Mapping[str, Any]]()
    as_number = _have_numbers(source, [row.columns[name] for row in rows if row.has_id])
    for row in rows:
        if row.has_id or as_number is None:
            values.append(row.columns)
        else:
            new_id = {name: row.index if as_number else row.id}
            values.append({**row.columns, **new_id} if name in row.columns else {**new_id, **row.columns})
    return values


def _have_numbers(source: RowSource, ids: list[Any]) -> bool | None:
    """Return whether the ids of rows are numbers; None if their type is neither a number nor text."""
    if source.layout.schema is None or source.layout.id_name not in source.layout.schema.names:
        return bool(ids) and all(type(value) is int for value in ids)
    kind = source.layout.schema.field(source.layout.id_name).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return False
    is_number = pa.types.is_floating(kind) or kind in (pa.int64(), pa.uint64(), pa.int32(), pa.uint32())
    return True if is_number else None


def _output_tables(merged: Merged, new_names: Mapping[str, str], suffix: str) -> Iterator[pa.Table | JsonRows]:
    """Yield the tables of the output: all rows in order, input columns first, then the added ones."""
    for inputs, added in merged.tables():
        if suffix in JSON_SUFFIXES:
            objects = inputs[OBJECTS].to_pylist()
            if new_names:
                rows = map(json.loads, objects)
                objects = [json_line(_with_names(row, new_names)) for row in rows]
            yield JsonRows(objects, added)
        else:
            yield joined(inputs, text_in_csv(added, suffix), new_names)
