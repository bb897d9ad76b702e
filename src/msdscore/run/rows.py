"""Score a file of rows in resumable parts and merge them into one output."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, RowError, RunError
from msdscore.forms.references import NAMES as REFERENCE_NAMES
from msdscore.forms.references import signed
from msdscore.io.hashing import content_stamp, file_stamp
from msdscore.io.images import ImageLimits
from msdscore.io.inputs.formats import open_records
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
from msdscore.io.outputs.targets import REMEDY, compare, refuse_inputs, run_files
from msdscore.run.parts import (
    MIXED,
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
from msdscore.scoring.results import ALL_COLUMNS, COUNTS, NUMBERS, OPTIONAL, Numbers
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

_READERS = 8  # threads that read image files of finished parts
PART_ROWS = 256  # the most rows that a crash can lose; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run, apart from the scorer.

    `overwrite` discards an existing output. `retry` scores all failed rows again, not only those whose image file has
    changed, appeared or become readable. `verify` hashes image files of any size; by default, those beyond 8 MiB are
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

    Each row is read once, and each image file too: its part is identified by the bytes that were decoded. A finished
    run is updated: parts whose image files have changed are scored again. If none has changed, the encoder of a
    `ScorerSpec` is not loaded. `progress` is called with the number of rows done and in total, which grows while rows
    are read if it is not known before.
    """
    how = options or RunOptions()
    check_output(output, inputs=[source.name])
    if how.excel_safe and output.suffix.lower() not in (".csv", ".tsv"):
        raise ConfigError(f"{output}: --excel-safe is for outputs that spreadsheets open; expected .csv or .tsv")
    if how.overwrite:
        images = (row.source for row in source.read() if isinstance(row.source, str))
        refuse_inputs([output, *run_files(output)], images)
        discard(output)
    spec, notes = scorer if isinstance(scorer, ScorerSpec) else None, run_notes(output) or {}
    with closing(_input_columns(source, output)) as columns:
        planned = plan(columns.watch(source.read()), part_rows=how.part_rows)
        parts = _RunParts(output, planned, how, notes.get("parts", ()))
        is_current = bool(notes) and not (how.retry and notes.get("failed")) and parts.read_unchanged()
        if is_current and spec and _is_of(notes, spec, _settings(source, how, spec.limits)):
            return _finished(output, notes)
        pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
        # The signature comes last, so that an error names the setting that differs.
        settings = _settings(source, how, pipeline.limits)
        manifest = {**pipeline.manifest(), **settings, "signature": pipeline.signature}
        if notes:
            compare(output, notes["manifest"], manifest)
        if is_current:
            return _finished(output, notes)
        with open_run(output, manifest, again=bool(notes)) as run:
            parts.score(run, pipeline, lambda done: progress(done, max(columns.count, source.total or 0)))
            progress(columns.count, columns.count)
            new_names = renamed(columns.names.union(source.seen), [how.prefix + name for name in (*ALL_COLUMNS, WORST)])
            scores = collect(run.tables(), pipeline.config)
            # How many references rows have is known at the end: files are compared without it.
            name = REFERENCE_NAMES[0]
            counts = scores[name].drop_null().to_pylist() if name in scores.column_names else []
            signature = signed(pipeline.signature, counts) if counts else pipeline.signature
            tables = _output_tables(columns, scores, new_names, output.suffix, prefix=how.prefix)
            summary = run.finish(
                map(without_formulas, tables) if how.excel_safe else tables,
                metadata={"msdscore": pipeline.signature, "signed": signature},
                notes={
                    "parts": parts.keys,
                    "spec": None if spec is None else spec.record(),
                    "source": source.path,
                    "renamed": new_names,
                    "signed": signature,
                },
                errors=f"{how.prefix}error",
                warnings=f"{how.prefix}warnings",
                check=partial(source.check_unchanged, partial(_has_rows, source, how, parts.keys)),
            )
    return ScoredFile(
        **asdict(summary),
        scored=parts.scored,
        earlier=parts.earlier,
        signature=signature,
        renamed=new_names,
        cache=pipeline.cache_use,
    )


class _RunParts:
    """The parts of a run: those of an earlier run are reused, the others are scored and written.

    `finished` are the keys of the parts of a finished run. `keys` are those of the parts so far; `scored` and `earlier`
    count their rows.
    """

    def __init__(self, output: Path, parts: Iterator[Part], how: RunOptions, finished: Sequence[str]) -> None:
        self.keys, self.scored, self.earlier = list[str](), 0, 0
        self._output, self._parts, self._how, self._finished = output, parts, how, dict(enumerate(finished))
        self._unchanged: list[tuple[pa.Table, int]] = []  # `row_keys` of the first parts, and how many can be scored
        self._changed: list[tuple[Part, str]] = []  # the next part, with its key

    def read_unchanged(self) -> bool:
        """Read the parts before the first that differs from the finished run; return whether none differs."""
        with ThreadPoolExecutor(_READERS) as pool:
            for part in self._parts:
                key = part.key(_stamps(part.paths, pool, self._how))
                if self._finished.get(part.number) != key:
                    self._changed = [(part, key)]
                    return False
                self.keys.append(key)
                self._unchanged.append((row_keys(part), len(part.rows)))
        return len(self.keys) == len(self._finished)

    def score(self, run: Run, pipeline: Pipeline, progress: Callable[[int], None]) -> None:
        """Score and write the parts that cannot be reused; `progress` is called with the number of rows done."""

        def count(rows: int) -> None:
            self.scored += rows
            progress(self.scored + self.earlier)

        stamp, words = partial(content_stamp, verify=self._how.verify), bool(self._how.worst)
        unfinished = self._unfinished(run, progress)
        for part, results, stamps in score_parts(
            pipeline, unfinished, worst=self._how.worst, stamp=stamp, scored=count
        ):
            unread = (path for path in part.paths if path not in stamps)
            stamps |= {path: file_stamp(path, verify=self._how.verify) for path in unread}
            self.keys[part.number] = part.key(stamps)
            run.write(part.number, part_table(row_keys(part), results, words=words), key=self.keys[part.number])

    def _unfinished(self, run: Run, progress: Callable[[int], None]) -> Iterator[Part]:
        """Yield the parts to score; at the end, delete written parts beyond the last."""
        written = run.keys()
        if self._how.retry and written:
            for number, table in zip(list(written), run.tables(["error", "image"]), strict=True):
                # Rows that could not be tried have no image.
                if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py():
                    run.drop(number)
                    del written[number]
        progress(0)
        for number, (keys, count) in enumerate(self._unchanged):
            if written.get(number) == self.keys[number] or self._reuse(run, number, keys, count):
                self.earlier += count
                progress(self.scored + self.earlier)
        with ThreadPoolExecutor(_READERS) as pool:
            for part, known_key in chain(self._changed, ((part, "") for part in self._parts)):
                number, count = part.number, len(part.rows)
                if number not in written and number not in self._finished:
                    self.keys.append("")  # set by `score`, from the images that were decoded
                    yield part
                    continue
                key = known_key or part.key(_stamps(part.paths, pool, self._how))
                self.keys.append(key)
                is_finished = self._finished.get(number) == key
                if written.get(number) == key or (is_finished and self._reuse(run, number, row_keys(part), count)):
                    self.earlier += count
                    progress(self.scored + self.earlier)
                else:
                    yield part
        for number in written:
            if number >= len(self.keys):
                run.drop(number)

    @cached_property
    def _earlier_rows(self) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [record.values for record in open_records(self._output, format=None, until=stack).read()]

    def _reuse(self, run: Run, number: int, keys: pa.Table, count: int) -> bool:
        """Write a part with its scores from the finished output; False if one of `count` rows failed and is retried."""
        try:
            rows = (self._earlier_rows[index] for index in keys["row"].to_pylist())
            results = [_earlier_result(row, self._how.prefix) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._output}: its numbers cannot be read again ({error}); {REMEDY}") from error
        if self._how.retry and any(isinstance(result, RowError) for result in results[:count]):
            return False
        run.write(number, part_table(keys, results, words=bool(self._how.worst)), key=self.keys[number])
        return True


def _input_columns(source: RowSource, output: Path) -> InputColumns:
    """Return storage for the columns of the input; the id of a row without one is its index.

    For a JSON output, where names and types may differ from row to row, they are stored as the text of objects.
    """
    schema, name = source.schema, source.id_name
    if schema is None and source.columns is not None:
        schema = pa.schema([(column, pa.string()) for column in source.columns])
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

    return InputColumns(to_table, typed=source.schema is not None)


def _have_numbers(source: RowSource, ids: list[Any]) -> bool | None:
    """Return whether the ids of rows are numbers; None if their type is neither a number nor text."""
    if source.schema is None or source.id_name not in source.schema.names:
        return bool(ids) and all(type(value) is int for value in ids)
    kind = source.schema.field(source.id_name).type
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


def _earlier_result(values: Mapping[str, Any], prefix: str) -> Numbers | RowError:
    if error := values.get(f"{prefix}error"):
        return RowError(error)
    numbers: dict[str, Any] = {}
    for name in NUMBERS:
        # Numbers of another form, and those that a bank does not have, are missing or empty. In text files they are
        # text, which reads back to the last bit.
        is_optional = name in (*OPTIONAL, "similarity", "msd")  # a row without an image has neither
        if not is_optional or values.get(prefix + name) not in (None, ""):
            numbers[name] = float(values[prefix + name])
    numbers |= {name: int(numbers[name]) for name in COUNTS}
    warnings, words = values.get(f"{prefix}warnings") or [], values.get(prefix + WORST) or []
    if isinstance(warnings, str):
        warnings = [warnings.removesuffix(MIXED).removesuffix("; ")]
    warnings = tuple(warning for warning in warnings if warning not in ("", MIXED))
    return Numbers(numbers, warnings, tuple(json.loads(words) if isinstance(words, str) else words))
