"""A run over a file of rows on this machine: parts as they are done, the whole at the end, nothing lost between."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msdscore.engine.assemble import assemble, part_table
from msdscore.engine.plan import Chunk, plan
from msdscore.errors import ConfigError, RowError, RunError
from msdscore.io.inputs.rows import RowSource
from msdscore.io.outputs.files import check_output
from msdscore.io.outputs.run import Run, Summary, discard, finished, open_run
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Request, by_picture, request, score_requests
from msdscore.version import __version__

CHUNK_ROWS = 256  # rows that a crash can cost at most; large enough to fill a batch of any encoder

Progress = Callable[[int, int], None]


def score_rows(
    pipeline: Pipeline,
    source: RowSource,
    output: Path,
    *,
    images: Path | None = None,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
    chunk_rows: int = CHUNK_ROWS,
) -> Summary:
    """Score every row of `source` into `output`; go on where an earlier run stopped; do nothing if it is finished.

    `progress` is called with the rows done and the rows in all.
    """
    if chunk_rows < 1:
        raise ConfigError(f"chunk_rows must be at least 1, got {chunk_rows}")
    check_output(output)
    if source.is_read_from(output):
        raise RunError(f"{output}: is the input itself, which would be lost; choose another -o")
    manifest = _manifest(pipeline, source, images, chunk_rows)
    if overwrite:
        discard(output)
    done = finished(output, manifest)
    if done is not None:
        return done
    with open_run(output, manifest) as run:
        _work(pipeline, source, run, progress, chunk_rows)
        tables = assemble(source, run, pipeline.config)
        return run.finish(tables, metadata={"msdscore": pipeline.signature})


def _manifest(pipeline: Pipeline, source: RowSource, images: Path | None, chunk_rows: int) -> dict[str, Any]:
    """Everything that must be the same for a run to go on."""
    return {
        "encoder": pipeline.encoder.signature,
        "settings": asdict(pipeline.config) | {"components": list(pipeline.config.components)},
        "bank": None if pipeline.bank is None else pipeline.bank.name,
        "version": __version__,
        "input": source.fingerprint,
        "images": None if images is None else str(images.resolve()),
        "limits": asdict(pipeline.limits),
        "chunk_rows": chunk_rows,
        # Last, so that a difference is named by its own setting first; readers of the sidecar find it here.
        "signature": pipeline.signature,
    }


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a chunk that are scored together; with the last one the chunk is done."""

    chunk: Chunk
    rows: list[int]
    last: bool


def _work(pipeline: Pipeline, source: RowSource, run: Run, progress: Progress, chunk_rows: int) -> None:
    """Score what no earlier run has finished, one part per chunk."""
    total, earlier = source.count(), set(run.done())
    chunks = plan(source.read(), chunk_rows=chunk_rows)
    asked: deque[_Piece] = deque()
    found: dict[int, Numbers | RowError] = {}
    done, parts = 0, 0
    progress(done, total)

    def requests() -> Iterator[Request]:
        nonlocal done, parts
        for chunk in chunks:
            parts += 1
            if chunk.number in earlier:
                done += len(chunk.rows)
                continue
            for piece in _pieces(chunk, pipeline.batch_size):
                asked.append(piece)
                captions = [row.caption or "" for row in chunk.rows]
                yield request(chunk.images, captions, chunk.owner, piece.rows)

    for scored in score_requests(pipeline, requests()):
        piece = asked.popleft()
        found.update(zip(piece.rows, scored, strict=True))
        if piece.last:
            run.write(piece.chunk.number, part_table(piece.chunk, [found[row] for row in range(len(found))]))
            done, found = done + len(found), {}
        progress(done + len(found), total)
    if not parts:
        run.write(0, part_table(Chunk(0, (), (), ()), []))
    progress(total, total)


def _pieces(chunk: Chunk, pictures: int) -> Iterator[_Piece]:
    """The rows of a chunk, those of some pictures at a time."""
    pieces = list(by_picture(chunk.owner, size=pictures))
    for number, rows in enumerate(pieces, start=1):
        yield _Piece(chunk, rows, last=number == len(pieces))
