"""A run over a file of rows on this machine: parts as they are done, the whole at the end, nothing lost between."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msdscore.engine.assemble import assemble, part_table
from msdscore.engine.chunks import Decoded, decode, score_chunk
from msdscore.engine.plan import Chunk, plan
from msdscore.errors import ConfigError, RunError
from msdscore.io.inputs.rows import RowSource
from msdscore.io.outputs.files import check_output
from msdscore.io.outputs.run import Run, Summary, discard, finished, open_run
from msdscore.scoring.scorer import Scorer
from msdscore.version import __version__

CHUNK_ROWS = 256  # rows that a crash can cost at most; large enough to fill a batch of any encoder
DECODERS = 8  # threads that read pictures

Progress = Callable[[int, int], None]


def score_rows(
    scorer: Scorer,
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
    manifest = _manifest(scorer, source, images, chunk_rows)
    if overwrite:
        discard(output)
    done = finished(output, manifest)
    if done is not None:
        return done
    with open_run(output, manifest) as run:
        _work(scorer, source, run, progress, chunk_rows)
        tables = assemble(source, run, scorer.config)
        return run.finish(tables, metadata={"msdscore": scorer.signature})


def _manifest(scorer: Scorer, source: RowSource, images: Path | None, chunk_rows: int) -> dict[str, Any]:
    """Everything that must be the same for a run to go on."""
    return {
        "encoder": scorer.encoder.signature,
        "settings": asdict(scorer.config) | {"components": list(scorer.config.components)},
        "bank": None if scorer.bank is None else scorer.bank.name,
        "version": __version__,
        "input": source.fingerprint,
        "images": None if images is None else str(images.resolve()),
        "limits": asdict(scorer.limits),
        "chunk_rows": chunk_rows,
        # Last, so that a difference is named by its own setting first; readers of the sidecar find it here.
        "signature": scorer.signature,
    }


def _work(scorer: Scorer, source: RowSource, run: Run, progress: Progress, chunk_rows: int) -> None:
    """Score what no earlier run has finished, one part a chunk."""
    total, done, earlier = source.count(), 0, set(run.done())
    progress(done, total)
    with ThreadPoolExecutor(DECODERS) as pool:
        for chunk, decoded in _read_ahead(plan(source.read(), chunk_rows=chunk_rows), earlier, scorer, pool):
            if decoded is not None:
                run.write(chunk.number, part_table(chunk, score_chunk(scorer, decoded)))
            done += len(chunk.rows)
            progress(done, total)
    if not done:
        run.write(0, part_table(Chunk(0, (), (), ()), []))
    progress(total, total)


def _read_ahead(
    chunks: Iterable[Chunk], earlier: set[int], scorer: Scorer, pool: ThreadPoolExecutor
) -> Iterator[tuple[Chunk, Decoded | None]]:
    """Chunks with their pictures, the next one being read while one is worked on; finished ones without."""
    with ThreadPoolExecutor(1) as reader:
        waiting: deque[tuple[Chunk, Future[Decoded] | None]] = deque()
        for chunk in chunks:
            todo = chunk.number not in earlier
            waiting.append((chunk, reader.submit(decode, chunk, scorer.limits, pool) if todo else None))
            if len(waiting) > 1:
                yield _ready(*waiting.popleft())
        while waiting:
            yield _ready(*waiting.popleft())


def _ready(chunk: Chunk, reading: Future[Decoded] | None) -> tuple[Chunk, Decoded | None]:
    return chunk, None if reading is None else reading.result()
