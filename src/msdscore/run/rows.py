"""Score a file of rows in resumable parts and merge them into one output."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from msdscore.io.outputs.files import check_output, without_formulas
from msdscore.io.outputs.run import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.outputs.targets import REMEDY, compare, refuse_inputs, run_files
from msdscore.run.plan import Part, Scored, plan, score_parts
from msdscore.run.table import MIXED, WORST, InputColumns, Naming, collect, part_table
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import COUNTS, NUMBERS, OPTIONAL, Numbers
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


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """Summary of a run; `scored` rows were scored by this call, `earlier` ones by an earlier call.

    The other rows could not be scored at all. `reasons` are the first errors of failed rows, `warnings` the first of
    the `warned` rows, `renamed` maps input columns to their names in the output, `cache` has the statistics of a cache
    on disk.
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
    known = [] if not notes or (how.retry and notes.get("failed")) else _keys(source, how, notes.get("parts", ()))
    is_current = bool(known) and notes.get("parts") == known
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
    with open_run(output, manifest, again=bool(notes)) as run, closing(InputColumns(source, output)) as columns:
        parts = _RunParts(run, columns, how, notes, known, progress)
        unfinished = parts.unfinished(plan(columns.watch(source.read()), part_rows=how.part_rows))
        stamp = partial(content_stamp, verify=how.verify)
        for part, results, stamps in score_parts(
            pipeline, unfinished, worst=how.worst, stamp=stamp, scored=parts.count
        ):
            parts.write(part, results, stamps)
        parts.drop_others()
        naming = Naming(how.prefix, frozenset(columns.names))
        collected = collect(run.tables(), pipeline.config)
        # How many references rows have is known at the end: files are compared without it.
        name = REFERENCE_NAMES[0]
        counts = collected[name].drop_null().to_pylist() if name in collected.column_names else []
        signature = signed(pipeline.signature, counts) if counts else pipeline.signature
        tables = columns.tables(collected, naming)
        summary = run.finish(
            map(without_formulas, tables) if how.excel_safe else tables,
            metadata={"msdscore": pipeline.signature, "signed": signature},
            notes={
                "parts": parts.keys,
                "spec": None if spec is None else spec.record(),
                "source": source.place,
                "renamed": naming.renamed(),
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
        renamed=naming.renamed(),
        cache=pipeline.cache_use,
    )


class _RunParts:
    """The parts of a run: those of an earlier run are reused, the others are scored and written.

    `keys` are those of all parts so far; `scored` and `earlier` count their rows.
    """

    def __init__(
        self,
        run: Run,
        columns: InputColumns,
        how: RunOptions,
        notes: Mapping[str, Any],
        known: Sequence[str],  # keys of the first parts
        progress: Progress,
    ) -> None:
        self.keys, self.scored, self.earlier = list[str](), 0, 0
        self._run, self._columns, self._how, self._progress = run, columns, how, progress
        if how.retry:
            _drop_failed(run)
        self._written, self._finished, self._known = run.keys(), notes.get("parts", ()), known
        self._show()

    def unfinished(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the parts to score."""
        with ThreadPoolExecutor(_READERS) as pool:
            for part in parts:
                number = part.number
                finished = self._finished[number] if number < len(self._finished) else None
                if number not in self._written and finished is None:
                    self.keys.append("")  # set by `write`, from the images that were decoded
                    yield part
                    continue
                key = self._known[number] if number < len(self._known) else ""
                if not key.startswith(part.rows_key()):
                    key = part.key(_stamps(part.paths, pool, self._how))
                self.keys.append(key)
                if self._written.get(number) != key:
                    table = self._earlier_table(part) if key == finished else None
                    if table is None:
                        yield part
                        continue
                    self._run.write(number, table, key=key)
                self.earlier += len(part.rows)
                self._show()

    def count(self, rows: int) -> None:
        """Count scored rows."""
        self.scored += rows
        self._show()

    def write(self, part: Part, results: Scored, stamps: dict[str, str]) -> None:
        """Write the scores of a part."""
        unread = (path for path in part.paths if path not in stamps)
        stamps |= {path: file_stamp(path, verify=self._how.verify) for path in unread}
        self.keys[part.number] = part.key(stamps)
        self._run.write(part.number, part_table(part, results, words=bool(self._how.worst)), key=self.keys[part.number])

    def drop_others(self) -> None:
        """Delete parts beyond the last."""
        for number in self._written:
            if number >= len(self.keys):
                self._run.drop(number)
        self._progress(self._columns.count, self._columns.count)

    def _show(self) -> None:
        self._progress(self.scored + self.earlier, max(self._columns.count, self._columns.total or 0))

    @cached_property
    def _earlier_rows(self) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [record.values for record in open_records(self._run.output, format=None, until=stack).read()]

    def _earlier_table(self, part: Part) -> pa.Table | None:
        """Return the scores of a part from the output of a finished run; None if failed rows are to be retried."""
        try:
            results = [_earlier_result(self._earlier_rows[row.index], self._how.prefix) for row in part.rows]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._run.output}: its numbers cannot be read again ({error}); {REMEDY}") from error
        is_retried = self._how.retry and any(isinstance(result, RowError) for result in results)
        return None if is_retried else part_table(part, results, words=bool(self._how.worst))


def _stamps(paths: Sequence[str], pool: ThreadPoolExecutor, how: RunOptions) -> dict[str, str]:
    """Return the stamps of image files, which several threads read: the disk may be slow or remote."""
    shares = [paths[first::_READERS] for first in range(min(_READERS, len(paths)))]
    stamps = pool.map(lambda share: [(path, file_stamp(path, verify=how.verify)) for path in share], shares)
    return dict(chain.from_iterable(stamps))


def _keys(source: RowSource, how: RunOptions, finished: Sequence[str]) -> list[str]:
    """Return the keys of parts, from the rows and their images as they are now, up to the first that has changed."""
    keys: list[str] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for part in plan(source.read(), part_rows=how.part_rows):
            keys.append(part.key(_stamps(part.paths, pool, how)))
            if keys != list(finished[: len(keys)]):
                break
    return keys


def _has_rows(source: RowSource, how: RunOptions, keys: Sequence[str]) -> bool:
    """Return whether a source has the rows of these parts, whatever their images are now."""
    parts = zip_longest((part.rows_key() for part in plan(source.read(), part_rows=how.part_rows)), keys)
    return all(rows and key and key.startswith(rows) for rows, key in parts)


def _finished(output: Path, notes: Mapping[str, Any]) -> ScoredFile:
    """Return the summary of a finished run that is up to date."""
    drop_parts(output)
    summary, signature, renamed = (
        Summary.of(notes),
        notes.get("signed", notes["manifest"]["signature"]),
        notes.get("renamed", {}),
    )
    return ScoredFile(**asdict(summary), scored=0, earlier=summary.rows, signature=signature, renamed=renamed)


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


def _drop_failed(run: Run) -> None:
    """Delete the parts with rows that failed; rows that could not be tried have no image."""
    if numbers := run.done():
        for number, table in zip(numbers, run.tables(["error", "image"]), strict=True):
            if pc.any(pc.and_(table["error"].is_valid(), table["image"].is_valid())).as_py():
                run.drop(number)


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
