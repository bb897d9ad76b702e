"""A run over a file of rows on this machine: parts as they are done, the whole at the end, nothing lost between."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msdscore.encoders.cached import CacheUse
from msdscore.engine.assemble import Naming, assemble, part_table
from msdscore.engine.earlier import EarlierRun, description
from msdscore.engine.plan import Chunk, plan
from msdscore.errors import ConfigError, RowError
from msdscore.io.hashing import file_stamp
from msdscore.io.images import ImageLimits
from msdscore.io.inputs.rows import RowSource
from msdscore.io.outputs.files import check_output
from msdscore.io.outputs.manifest import compare
from msdscore.io.outputs.run import Run, Summary, discard, drop_parts, open_run, run_notes
from msdscore.io.outputs.targets import refuse_inputs, run_files
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.scoring.stream import Request, by_picture, request, score_requests
from msdscore.version import __version__

_NEVER = "lost"  # key of a part that no later run takes over
CHUNK_ROWS = 256  # rows that a crash can cost at most; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run treats what is there, and what it calls its columns.

    `overwrite` throws away an output that is there. `retry` tries all failed rows again; without it those whose
    picture file has changed, appeared or become readable since. `verify` knows picture files of any size by their
    content; without it those beyond 8 MiB by size and time.
    """

    overwrite: bool = False
    retry: bool = False
    prefix: str = ""
    chunk_rows: int = CHUNK_ROWS
    verify: bool = False

    def __post_init__(self) -> None:
        if self.chunk_rows < 1:
            raise ConfigError(f"chunk_rows must be at least 1, got {self.chunk_rows}")


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """What a run has made; `scored` rows were tried by this call, `earlier` ones by an earlier one.

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

    A finished run is brought up to date: chunks whose picture files have changed are scored again. If none has,
    there is nothing to do, and an encoder that is given by its description is not even loaded. `progress` is called
    with the rows done and the rows in all.
    """
    how = options or RunOptions()
    check_output(output, inputs=[source.name])
    naming = Naming(how.prefix, frozenset(source.seen))
    if how.overwrite:
        images = (row.image for row in source.read() if isinstance(row.image, Path))
        refuse_inputs([output, *run_files(output)], images)
        discard(output)
    notes = run_notes(output)
    earlier = None if notes is None else EarlierRun(output, notes, naming, how.retry)
    current = earlier is not None and earlier.is_up_to_date([chunk.key for chunk in _chunks(source, how)])
    spec = scorer if isinstance(scorer, ScorerSpec) else None
    if earlier and current and spec and earlier.is_of(spec, _work_of(source, how, spec.limits)):
        drop_parts(output)
        return _report(earlier.notes, naming)
    pipeline = scorer.build() if isinstance(scorer, ScorerSpec) else scorer
    manifest = _manifest(pipeline, source, how)
    if earlier is not None:
        compare(output, earlier.notes["manifest"], manifest)
        if current:
            drop_parts(output)
            return _report(earlier.notes, naming)
    with open_run(output, manifest, again=earlier is not None) as run:
        if how.retry:
            _drop_failed(run)
        work = _Work(pipeline, source, run, earlier, how)
        work.score(how, progress)
        more = {"chunks": work.keys, "spec": None if spec is None else description(spec), "source": source.place}
        summary = run.finish(
            assemble(source, run, pipeline.config, naming),
            metadata={"msdscore": pipeline.signature},
            notes=more,
            errors=naming.added("error"),
            warnings=naming.added("warnings"),
            check=source.check_unchanged,
        )
    made = _scored(summary, (work.scored, work.earlier), pipeline.signature, naming)
    return replace(made, cache=pipeline.cache_use)


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
        "chunk_rows": how.chunk_rows,
    }


def _manifest(pipeline: Pipeline, source: RowSource, how: RunOptions) -> dict[str, Any]:
    """Everything that must be the same for a run to go on."""
    return {
        "encoder": pipeline.encoder.signature,
        "settings": asdict(pipeline.config) | {"components": list(pipeline.config.components)},
        "bank": None if pipeline.bank is None else pipeline.bank.name,
        **_work_of(source, how, pipeline.limits),
        # Last, so that a difference is named by its own setting first; readers of the run metadata find it here.
        "signature": pipeline.signature,
    }


def _chunks(source: RowSource, how: RunOptions) -> Iterator[Chunk]:
    return plan(source.read(), chunk_rows=how.chunk_rows, stamp=partial(file_stamp, verify=how.verify))


def _drop_failed(run: Run) -> None:
    """Forget the parts that hold failed rows."""
    numbers = run.done()
    failed = [table.column("error").null_count < table.num_rows for table in run.tables(["error"])] if numbers else []
    for number, some in zip(numbers, failed, strict=True):
        if some:
            run.drop(number)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a chunk that are scored together; with the last one the chunk is done."""

    chunk: Chunk
    rows: list[int]
    last: bool


class _Work:
    """The chunks of a run, scored one after the other; `keys`, `scored` and `earlier` grow with them."""

    def __init__(
        self, pipeline: Pipeline, source: RowSource, run: Run, earlier: EarlierRun | None, how: RunOptions
    ) -> None:
        self.keys: list[str] = []
        self.scored = 0
        self._pipeline, self._source, self._run, self._earlier = pipeline, source, run, earlier
        self._stamp = partial(file_stamp, verify=how.verify)
        self._asked: deque[_Piece] = deque()
        self.earlier = 0  # rows that an earlier run has scored

    def score(self, how: RunOptions, progress: Progress) -> None:
        """Score what no earlier run has finished, one part per chunk."""
        total, found = self._source.count(), dict[int, Numbers | RowError]()
        progress(0, total)
        for numbers in score_requests(self._pipeline, self._requests(how)):
            piece = self._asked.popleft()
            found.update(zip(piece.rows, numbers, strict=True))
            self.scored += len(piece.rows)
            if piece.last:
                self._write(piece.chunk, [found[row] for row in range(len(found))])
                found = {}
            progress(self.earlier + self.scored, total)
        if not self.keys:
            self._write(Chunk(0, (), (), ()), [])
        for number in self._run.done():
            if number >= max(1, len(self.keys)):
                self._run.drop(number)
        progress(total, total)

    def _requests(self, how: RunOptions) -> Iterator[Request]:
        """Requests for the chunks that are not there yet."""
        there = self._run.keys()
        for chunk in _chunks(self._source, how):
            self.keys.append(chunk.key)
            if there.get(chunk.number) == chunk.key or self._settle(chunk):
                self.earlier += len(chunk.rows)
                continue
            captions = [row.caption or "" for row in chunk.rows]
            pieces = list(by_picture(chunk.owner, size=self._pipeline.batch_size))
            for number, rows in enumerate(pieces, start=1):
                self._asked.append(_Piece(chunk, rows, last=number == len(pieces)))
                yield request(chunk.images, captions, chunk.owner, rows)

    def _settle(self, chunk: Chunk) -> bool:
        """Finish a chunk without scoring: nothing in it can be scored, or an earlier run has its numbers."""
        if not chunk.rows:
            self._write(chunk, [])
            return True
        known = None if self._earlier is None else self._earlier.numbers(chunk)
        if known is not None:
            self._write(chunk, known)
        return known is not None

    def _write(self, chunk: Chunk, numbers: list[Numbers | RowError]) -> None:
        # Pictures that were lost between planning and reading failed for a reason that the key does not know.
        if any(isinstance(one, RowError) for one in numbers) and chunk.has_changed(self._stamp):
            self.keys[chunk.number] = _NEVER
        key = self.keys[chunk.number] if self.keys else chunk.key
        self._run.write(chunk.number, part_table(chunk, numbers), key=key)
