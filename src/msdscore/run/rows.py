"""A run over a file of rows on this machine: parts as they are done, the whole at the end, nothing lost between."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, RowError, RunError
from msdscore.io.hashing import file_stamp
from msdscore.io.images import ImageLimits
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.files import check_output
from msdscore.io.outputs.manifest import REMEDY, compare
from msdscore.io.outputs.run import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.outputs.targets import refuse_inputs, run_files
from msdscore.run.plan import Part, Scored, plan, score_parts, write_parts
from msdscore.run.table import COUNTS, MIXED, Naming, output_tables, part_table
from msdscore.scoring.measurement import NUMBERS, Numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.score import OPTIONAL
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

_NEVER = "changed"  # key of a part that no later run takes over
PART_ROWS = 256  # rows that a crash can cost at most; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run treats what is there, and what it calls its columns.

    `overwrite` throws away an output that is there. `retry` tries all failed rows again; without it those whose
    image file has changed, appeared or become readable since. `verify` knows image files of any size by their
    content; without it those beyond 8 MiB by size and time.
    """

    overwrite: bool = False
    retry: bool = False
    prefix: str = ""
    part_rows: int = PART_ROWS
    verify: bool = False

    def __post_init__(self) -> None:
        if self.part_rows < 1:
            raise ConfigError(f"part_rows must be at least 1, got {self.part_rows}")


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """Summary of a run; `scored` rows were tried by this call, `earlier` ones by an earlier one.

    The rest could not even be tried. `reasons` are the first reasons of failed rows, `warnings` the first of the
    `warned` rows, `renamed` the input columns that are called otherwise in the output, `cache` what a cache on disk
    has spared.
    """

    rows: int
    failed: int
    scored: int
    earlier: int
    signature: str
    reasons: tuple[str, ...]
    warned: int
    warnings: tuple[str, ...]
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
    """Score every row of `source` into `output`; go on where an earlier run stopped.

    A finished run is brought up to date: parts whose image files have changed are scored again. If none has,
    there is nothing to do, and an encoder that is given by its description is not even loaded. `progress` is called
    with the rows done and the rows in all.
    """
    how = options or RunOptions()
    check_output(output, inputs=[source.name])
    names = set(source.seen)
    if how.overwrite:
        images = (row.image for row in source.read() if isinstance(row.image, Path))
        refuse_inputs([output, *run_files(output)], images)
        discard(output)
    notes = run_notes(output)
    earlier = None if notes is None else EarlierRun(output, notes, Naming(how.prefix), how.retry)
    current = earlier is not None and earlier.is_up_to_date([part.key for part in _parts(source, how, names)])
    spec = scorer if isinstance(scorer, ScorerSpec) else None
    if earlier and current and spec and earlier.is_of(spec, _work_of(source, how, spec.limits)):
        drop_parts(output)
        return _report(earlier.notes, Naming(how.prefix, frozenset(names)))
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    manifest = _manifest(pipeline, source, how)
    if earlier is not None:
        compare(output, earlier.notes["manifest"], manifest)
        if current:
            drop_parts(output)
            return _report(earlier.notes, Naming(how.prefix, frozenset(names)))
    with open_run(output, manifest, again=earlier is not None) as run:
        if how.retry:
            _drop_failed(run)
        keys, columns, scored, kept = _write_scores(pipeline, source, run, earlier, how, progress)
        naming = Naming(how.prefix, frozenset(columns))
        more = {"parts": keys, "spec": None if spec is None else spec.record(), "source": source.place}
        summary = run.finish(
            output_tables(source, run, pipeline.config, naming),
            metadata={"msdscore": pipeline.signature},
            notes=more,
            errors=naming.added("error"),
            warnings=naming.added("warnings"),
            check=source.check_unchanged,
        )
    result = _scored(summary, (scored, kept), pipeline.signature, naming)
    return replace(result, cache=pipeline.cache_use)


def _report(notes: Mapping[str, Any], naming: Naming) -> ScoredFile:
    summary = Summary.of(notes)
    return _scored(summary, (0, summary.rows), notes["manifest"]["signature"], naming)


def _scored(summary: Summary, scored: tuple[int, int], signature: str, naming: Naming) -> ScoredFile:
    return ScoredFile(
        rows=summary.rows,
        failed=summary.failed,
        scored=scored[0],
        earlier=scored[1],
        signature=signature,
        reasons=summary.reasons,
        warned=summary.warned,
        warnings=summary.warnings,
        renamed=naming.renamed(),
    )


def _work_of(source: RowSource, how: RunOptions, limits: ImageLimits) -> dict[str, Any]:
    """What a run is about, apart from the scorer."""
    return {
        "version": __version__,
        "input": source.fingerprint,
        "images": source.images,
        "columns": asdict(source.names),
        "limits": asdict(limits),
        "prefix": how.prefix,
        "part_rows": how.part_rows,
    }


def _manifest(pipeline: Pipeline, source: RowSource, how: RunOptions) -> dict[str, Any]:
    """Everything that must be the same for a run to go on."""
    # The signature comes last, so that a difference is named by its own setting first.
    work = _work_of(source, how, pipeline.limits)
    return {**pipeline.identity.manifest(), **work, "signature": pipeline.signature}


def _parts(source: RowSource, how: RunOptions, names: set[str]) -> Iterator[Part]:
    """The parts of an input; `names` gains the columns of its rows."""

    def rows() -> Iterator[Row]:
        for row in source.read():
            names.update(row.columns)
            yield row

    parts = plan(rows(), part_rows=how.part_rows, stamp=partial(file_stamp, verify=how.verify))
    # An input without rows has one part, so that its output has the columns of any other.
    return chain([first], parts) if (first := next(parts, None)) else iter([Part(0)])


def _drop_failed(run: Run) -> None:
    """Forget the parts that hold failed rows."""
    numbers = run.done()
    failed = [table.column("error").null_count < table.num_rows for table in run.tables(["error"])] if numbers else []
    for number, has_failed in zip(numbers, failed, strict=True):
        if has_failed:
            run.drop(number)


def _write_scores(
    pipeline: Pipeline, source: RowSource, run: Run, earlier: "EarlierRun | None", how: RunOptions, progress: Progress
) -> tuple[list[str], set[str], int, int]:
    """Score what no earlier run has; the parts' keys, the rows' columns, and how many rows are new and earlier ones."""
    names, total, fresh, kept = set(source.seen), source.count(), 0, 0

    def count(rows: int) -> None:
        nonlocal fresh
        fresh += rows
        progress(kept + fresh, total)

    def reused(part: Part) -> None:
        nonlocal kept
        kept += len(part.rows)

    def compute(parts: Iterator[tuple[str, Part]]) -> Iterator[tuple[str, pa.Table]]:
        for part, scored in score_parts(pipeline, (part for _, part in parts), scored=count):
            # Images that were replaced or lost since the part was planned: their numbers are not those of its key.
            changed = part.warn_of_changed(partial(file_stamp, verify=how.verify), verify=how.verify)
            yield _NEVER if changed else part.key, part_table(changed or part, scored)

    def known(_: str, part: Part) -> pa.Table | None:
        scores = [] if not part.rows else earlier.scores(part) if earlier else None
        return None if scores is None else part_table(part, scores)

    progress(0, total)
    parts = ((part.key, part) for part in _parts(source, how, names))
    keys = write_parts(run, parts, compute, known=known, reused=reused)
    progress(total, total)
    return keys, names, fresh, kept


@dataclass(frozen=True)
class EarlierRun:
    """A finished output with its run metadata."""

    output: Path
    notes: Mapping[str, Any]
    naming: Naming
    retry: bool  # whether rows that failed are to be tried again, though nothing of theirs has changed

    def is_up_to_date(self, keys: Sequence[str]) -> bool:
        """Whether the output is what a run over these parts would write."""
        return self.notes.get("parts") == list(keys) and not (self.retry and self.notes.get("failed"))

    def is_of(self, spec: ScorerSpec, work: Mapping[str, Any]) -> bool:
        """Whether the output was made by the same scorer from the same input, as far as can be told without loading."""
        record = spec.record()
        if record is None or self.notes.get("spec") != record:
            return False
        manifest = self.notes.get("manifest", {})
        return all(manifest.get(name) == value for name, value in json.loads(json.dumps(work)).items())

    def scores(self, part: Part) -> Scored | None:
        """The scores of a part's rows if the earlier run had them from the same images; None if it had not."""
        if part.key not in self._keys:
            return None
        scores = [self._rows[row.index] for row in part.rows]
        return None if self.retry and any(isinstance(score, RowError) for score in scores) else scores

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(self.notes.get("parts", ()))

    @cached_property
    def _rows(self) -> Scored:
        with ExitStack() as stack:
            records = open_records(self.output, format=None, until=stack)
            return [self._row(record.values) for record in records.read()]

    def _row(self, values: Mapping[str, Any]) -> Numbers | RowError:
        if error := values.get(self.naming.added("error")):
            return RowError(error)
        try:
            # Text files give text; every number was written so that it reads back to the last bit.
            numbers: dict[str, Any] = {name: _number(values, self.naming.added(name), name) for name in NUMBERS}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.output}: its numbers cannot be read again ({error}); {REMEDY}") from error
        counts: dict[str, Any] = {name: int(numbers[name] or 0) for name in COUNTS}
        warnings = (values.get(self.naming.added("warnings")) or "").removesuffix(MIXED).removesuffix("; ")
        return Numbers(**{**numbers, **counts}, warnings=(warnings,) if warnings else ())


def _number(values: Mapping[str, Any], column: str, name: str) -> float | None:
    """A number as it was written; those of another form, and what a bank cannot tell, were written as nothing."""
    return None if name in OPTIONAL and values.get(column) in (None, "") else float(values[column])
