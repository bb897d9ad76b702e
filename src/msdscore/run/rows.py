"""A run over a file of rows on this machine: parts as they are done, the whole at the end, nothing lost between."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError, RowError, RunError
from msdscore.forms.references import NAMES as REFERENCE_NAMES
from msdscore.forms.references import signed
from msdscore.io.hashing import file_stamp
from msdscore.io.images import ImageLimits
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.rows import Row, RowSource
from msdscore.io.outputs.files import check_output, without_formulas
from msdscore.io.outputs.run import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.outputs.targets import REMEDY, compare, refuse_inputs, run_files
from msdscore.run.plan import Part, plan, score_parts, write_parts
from msdscore.run.table import MIXED, WORST, KeptRows, Naming, collect, part_table
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import COUNTS, NUMBERS, OPTIONAL
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

_NEVER = "changed"  # key of a part that no later run takes over
PART_ROWS = 256  # rows that a crash can cost at most; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]
EarlierScores = Callable[[Part], pa.Table | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run treats what is there, and what it calls its columns.

    `overwrite` throws away an output that is there. `retry` tries all failed rows again; without it those whose
    image file has changed, appeared or become readable since. `verify` knows image files of any size by their
    content; without it those beyond 8 MiB by size and time. `excel_safe` puts ' before text that a spreadsheet would
    compute, in CSV and TSV outputs. `worst` adds a column with up to that many of the least supported words.
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
            raise ConfigError(f"a prefix must be printable, since it begins names of columns; got {self.prefix!r}")


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
    if how.excel_safe and output.suffix.lower() not in (".csv", ".tsv"):
        raise ConfigError(f"{output}: --excel-safe is for outputs that spreadsheets open; expected .csv or .tsv")
    if how.overwrite:
        images = (row.source for row in source.read() if isinstance(row.source, str))
        refuse_inputs([output, *run_files(output)], images)
        discard(output)
    spec, notes = scorer if isinstance(scorer, ScorerSpec) else None, run_notes(output) or {}
    is_current = bool(notes) and notes.get("parts") == [part.key for part in _parts(source.read(), how)]
    is_current = is_current and not (how.retry and notes.get("failed"))
    if is_current and spec and _is_of(notes, spec, _work_of(source, how, spec.limits)):
        return _finished(output, notes)
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    # The signature comes last, so that a difference is named by its own setting first.
    work = _work_of(source, how, pipeline.limits)
    manifest = {**pipeline.manifest(), **work, "signature": pipeline.signature}
    if notes:
        compare(output, notes["manifest"], manifest)
    if is_current:
        return _finished(output, notes)
    with open_run(output, manifest, again=bool(notes)) as run, closing(KeptRows(source, output)) as kept:
        if how.retry:
            _drop_failed(run)
        earlier = _earlier_scores(output, notes, how)
        keys, fresh, reused = _write_scores(pipeline, source, kept, run, earlier, how, progress)
        naming = Naming(how.prefix, frozenset(kept.names))

        def is_same() -> bool:
            """Whether the rows are those that were scored; of parts whose images have changed nothing is known."""
            again = (part.key for part in _parts(source.read(), how))
            return all(new == key or key == _NEVER for new, key in zip_longest(again, keys))

        collected = collect(run.tables(), pipeline.config)
        # How many references rows have is known at the end: files are compared without it.
        name = REFERENCE_NAMES[0]
        counts = collected[name].drop_null().to_pylist() if name in collected.column_names else []
        signature = signed(pipeline.signature, counts) if counts else pipeline.signature
        tables = kept.tables(collected, naming)
        summary = run.finish(
            map(without_formulas, tables) if how.excel_safe else tables,
            metadata={"msdscore": pipeline.signature, "signed": signature},
            notes={
                "parts": keys,
                "spec": None if spec is None else spec.record(),
                "source": source.place,
                "renamed": naming.renamed(),
                "signed": signature,
            },
            errors=f"{how.prefix}error",
            warnings=f"{how.prefix}warnings",
            check=partial(source.check_unchanged, is_same),
        )
    return ScoredFile(
        **asdict(summary),
        scored=fresh,
        earlier=reused,
        signature=signature,
        renamed=naming.renamed(),
        cache=pipeline.cache_use,
    )


def _finished(output: Path, notes: Mapping[str, Any]) -> ScoredFile:
    """Summary of a finished run that has nothing left to do."""
    drop_parts(output)
    summary, signature, renamed = (
        Summary.of(notes),
        notes.get("signed", notes["manifest"]["signature"]),
        notes.get("renamed", {}),
    )
    return ScoredFile(**asdict(summary), scored=0, earlier=summary.rows, signature=signature, renamed=renamed)


def _is_of(notes: Mapping[str, Any], spec: ScorerSpec, work: Mapping[str, Any]) -> bool:
    """Whether a finished run was made by the same scorer from the same input, as far as is known without loading it."""
    record, manifest = spec.record(), notes.get("manifest", {})
    if record is None or notes.get("spec") != record:
        return False
    return all(manifest.get(name) == value for name, value in json.loads(json.dumps(work)).items())


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
        "worst_words": how.worst,
        **({"excel_safe": True} if how.excel_safe else {}),
    }


def _parts(rows: Iterable[Row], how: RunOptions) -> Iterator[Part]:
    """The parts of an input."""
    parts = plan(rows, part_rows=how.part_rows, stamp=partial(file_stamp, verify=how.verify))
    # An input without rows has one part, so that its output has the columns of any other.
    return chain([first], parts) if (first := next(parts, None)) else iter([Part(0)])


def _drop_failed(run: Run) -> None:
    """Forget the parts that hold failed rows; those that were not even tried have no image."""
    if numbers := run.done():
        for number, table in zip(numbers, run.tables(["error", "image"]), strict=True):
            if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py():
                run.drop(number)


def _write_scores(
    pipeline: Pipeline,
    source: RowSource,
    rows: KeptRows,
    run: Run,
    earlier: EarlierScores,
    how: RunOptions,
    progress: Progress,
) -> tuple[list[str], int, int]:
    """Score what no earlier run has; the parts' keys, and how many rows are new and earlier ones."""
    total, done = source.count(), Counter[str]()

    def count(which: str, rows: int) -> None:
        done[which] += rows
        progress(done.total(), total)

    def compute(parts: Iterator[tuple[str, Part]]) -> Iterator[tuple[str, pa.Table]]:
        unfinished = (part for _, part in parts)
        for part, scored in score_parts(pipeline, unfinished, worst=how.worst, scored=partial(count, "fresh")):
            # Images that were replaced or lost since the part was planned: their numbers are not those of its key.
            changed = part.warn_of_changed(partial(file_stamp, verify=how.verify), verify=how.verify)
            yield _NEVER if changed else part.key, part_table(changed or part, scored, words=bool(how.worst))

    progress(0, total)
    parts = ((part.key, part) for part in _parts(rows.watch(source.read()), how))
    keys = write_parts(
        run, parts, compute, known=lambda _, part: earlier(part), reused=lambda part: count("earlier", len(part.rows))
    )
    progress(total, total)
    return keys, done["fresh"], done["earlier"]


def _earlier_scores(output: Path, notes: Mapping[str, Any], how: RunOptions) -> EarlierScores:
    """Scores of parts that a finished run has from the same images; None for a part that it has not."""
    keys = frozenset(notes.get("parts", ()))

    @cache
    def rows() -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [record.values for record in open_records(output, format=None, until=stack).read()]

    def table(part: Part) -> pa.Table | None:
        if part.key not in keys:
            return None
        try:
            known = [_earlier_row(rows()[row.index], how.prefix) for row in part.rows]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{output}: its numbers cannot be read again ({error}); {REMEDY}") from error
        is_retried = how.retry and any(isinstance(score, RowError) for score in known)
        return None if is_retried else part_table(part, known, words=bool(how.worst))

    return table


def _earlier_row(values: Mapping[str, Any], prefix: str) -> Numbers | RowError:
    if error := values.get(f"{prefix}error"):
        return RowError(error)
    numbers: dict[str, Any] = {}
    for name in NUMBERS:
        # Those of another form, and what a bank cannot tell, are missing or empty. Text files give text; every
        # number was written so that it reads back to the last bit.
        is_optional = name in (*OPTIONAL, "similarity", "msd")  # a row without an image has neither of the two
        if not is_optional or values.get(prefix + name) not in (None, ""):
            numbers[name] = float(values[prefix + name])
    numbers |= {name: int(numbers[name]) for name in COUNTS}
    warnings = (values.get(f"{prefix}warnings") or "").removesuffix(MIXED).removesuffix("; ")
    words = values.get(prefix + WORST) or []
    return Numbers(
        numbers, (warnings,) if warnings else (), tuple(json.loads(words) if isinstance(words, str) else words)
    )
