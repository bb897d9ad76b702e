"""Score a file of rows in resumable parts, and merge its columns and the scores into one output."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, TypeAlias

from msdscore.core.evidence import limits_text
from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, RunError
from msdscore.forms.columns import COLUMNS
from msdscore.forms.references import NAMES as REFERENCE_NAMES
from msdscore.forms.references import signed
from msdscore.io.arrow import pa
from msdscore.io.images import ImageLimits
from msdscore.io.runs import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.tables import (
    JSON_SUFFIXES,
    JsonRows,
    check_output,
    conform,
    json_line,
    table_from_columns,
    text_in_csv,
    unified,
    without_formulas,
)
from msdscore.io.targets import check_manifest, refuse_inputs, run_files
from msdscore.rows.files import RowSource
from msdscore.rows.rules import Row
from msdscore.run.parts import READERS, WORST, collect, plan, score_missing, stamps_of
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

PART_ROWS = 256  # the most rows that a crash can lose; large enough to fill a batch of any encoder
STORED_ROWS = 8192  # rows per stored table of input columns
STORED_BYTES = 256 << 20  # of input columns that are stored in memory; more are in a temporary file
_INPUT = "input_"  # prefix of an input column with the name of an added one
RowValues: TypeAlias = tuple[Mapping[str, Any], int, str, bool, str | None]  # columns, index, id, has_id, caption


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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ScoredFile:
    """Score every row of `source` into `output`; resume an interrupted run.

    While it is scored, each row and each image file is read once: a part is identified by the bytes that were decoded.
    A finished run is scored again if an image file has changed; if none has, the encoder of a `ScorerSpec` is not
    loaded. `progress` is called with the number of rows done and in total, which grows while rows are read if it is
    not known before.
    """
    how = options or RunOptions()
    _prepare_output(source, output, how)
    spec = scorer if isinstance(scorer, ScorerSpec) else None
    notes = run_notes(output)  # of a finished run
    is_current = notes is not None and _is_current(source, how, notes)
    if notes and is_current and spec and _is_of(notes, spec, _settings(source, how, spec.limits)):
        return _finished(output, notes)
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    # The signature comes last, so that an error names the setting that differs.
    manifest = {**pipeline.manifest(), **_settings(source, how, pipeline.limits), "signature": pipeline.signature}
    if notes:
        check_manifest(output, notes["manifest"], manifest)
        if is_current:
            return _finished(output, notes)
    with (
        closing(_input_columns(source, output)) as columns,
        open_run(output, manifest, again=notes is not None) as run,
    ):
        # Every row is read once, when its part is scored: its values are stored in `columns` on the way.
        parts = plan(columns.watch(source.read()), part_rows=how.part_rows)
        keys, scored, earlier = score_missing(
            run, pipeline, parts, worst=how.worst or None, verify=how.verify, retry=how.retry,
            progress=lambda count: progress(count, max(columns.count, source.total or 0)),
        )  # fmt: skip
        progress(columns.count, columns.count)
        record = None if spec is None else spec.record()
        summary, signature, new_names = _write_output(run, pipeline, source, columns, how, keys, record)
    return ScoredFile(
        **asdict(summary), scored=scored, earlier=earlier, signature=signature, renamed=new_names,
        cache=pipeline.cache_use,
    )  # fmt: skip


def _prepare_output(source: RowSource, output: Path, how: RunOptions) -> None:
    """Raise if the output cannot be written; with `overwrite`, discard an existing one."""
    check_output(output, inputs=[source.name])
    if how.excel_safe and output.suffix.lower() not in (".csv", ".tsv"):
        raise ConfigError(f"{output}: --excel-safe is for outputs that spreadsheets open; expected .csv or .tsv")
    if how.overwrite:
        images = (row.image for row in source.read() if isinstance(row.image, str))
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
    columns: "InputColumns",
    how: RunOptions,
    keys: Sequence[str],
    record: Mapping[str, Any] | None,
) -> tuple[Summary, str, dict[str, str]]:
    """Merge the parts with these keys into the output; return its summary, its signature and the renamed columns."""
    scores = collect(run.tables(), pipeline.form, verdict_at=pipeline.verdict_at)
    # How many references rows have is known at the end: files are compared without it.
    name = REFERENCE_NAMES[0]
    counts = scores[name].drop_null().to_pylist() if name in scores.column_names else []
    signature = signed(pipeline.signature, counts) if counts else pipeline.signature
    new_names = renamed(columns.names.union(source.layout.seen), (*COLUMNS, WORST))
    tables = _output_tables(columns, scores, new_names, run.output.suffix)
    path = source.name if source.name == "-" else str(Path(source.name).resolve())

    def has_same_rows() -> bool:  # whatever their images are now
        parts = plan(source.read(), part_rows=how.part_rows)
        pairs = zip_longest((part.rows_key() for part in parts), keys)
        return all(rows and key and key.startswith(rows) for rows, key in pairs)

    summary = run.finish(
        map(without_formulas, tables) if how.excel_safe else tables,
        metadata={"msdscore": pipeline.signature, "signed": signature, "verdict_at": limits_text(pipeline.verdict_at)},
        notes={"parts": keys, "spec": record, "source": path, "renamed": new_names, "signed": signature},
        check=lambda: source.check_unchanged(has_same_rows),
    )
    return summary, signature, new_names


def _finished(output: Path, notes: Mapping[str, Any]) -> ScoredFile:
    """Return the summary of a finished run that is up to date."""
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
        "part_rows": how.part_rows,
        "worst_words": how.worst,
        "excel_safe": how.excel_safe,
    }


class InputColumns:
    """Columns of the input, stored while its rows are scored, from which the output is built afterwards.

    `to_table` converts rows to a table. If the input has types (`typed`), all tables have those of the first one, else
    types that fit all values.
    """

    def __init__(self, to_table: Callable[[list[RowValues]], pa.Table], *, typed: bool = False) -> None:
        self.names, self.count = set[str](), 0  # columns and number of the rows so far
        self._to_table, self._typed = to_table, typed
        self._stored: list[tuple[int, pa.Schema]] = []  # offset of each table in the file
        self._file = SpooledTemporaryFile(max_size=STORED_BYTES)  # noqa: SIM115, closed with this

    def close(self) -> None:
        """Free memory and disk."""
        with suppress(OSError):  # a full disk was already reported
            self._file.close()

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the same rows, and store their columns."""
        waiting: list[RowValues] = []
        for row in rows:
            self.count += 1
            self.names.update(row.columns)
            waiting.append((row.columns, row.index, row.id, row.has_id, row.caption or None))
            if len(waiting) >= STORED_ROWS:
                self._store(waiting)
                waiting = []
            yield row
        if waiting or not self._stored:
            self._store(waiting)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the stored tables in order, cast to one schema."""
        schemas = [schema for _, schema in self._stored]
        common = schemas[0] if self._typed else unified(schemas)
        for offset, _ in self._stored:
            self._file.seek(offset)
            yield conform(pa.ipc.open_stream(self._file).read_all(), common)

    def _store(self, rows: list[RowValues]) -> None:
        table = self._to_table(rows)
        try:
            self._stored.append((self._file.tell(), table.schema))
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table)
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"{gettempdir()}: the columns of the input cannot be stored there ({error.strerror or error}); "
                "set TMPDIR to a folder with more space and run the command again, which resumes"
            ) from error


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
        if output.suffix.lower() in JSON_SUFFIXES:
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
        if suffix.lower() in JSON_SUFFIXES:
            objects = stored[0].to_pylist()
            if new_names:
                rows = map(json.loads, objects)
                objects = [json_line({new_names.get(name, name): row[name] for name in row}) for row in rows]
            yield JsonRows(objects, added)
        else:
            names = [*(new_names.get(name, name) for name in stored.column_names), *added.column_names]
            yield pa.Table.from_arrays([*stored.columns, *added.columns], names=names)
