"""Scores for files of captions that have none, with one encoding of each image for all files."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from msdscore.encoders.cached import CacheSettings, CacheUse
from msdscore.rows.files import open_rows
from msdscore.rows.formats import open_records
from msdscore.run.rows import score_file
from msdscore.scoring.spec import ScorerSpec

_SUFFIX = ".scores.parquet"


def scored_files(
    files: Sequence[str],
    spec: ScorerSpec,
    *,
    images: Path | None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[list[str], CacheUse | None]:
    """Return the names of files with scores, and the use of their cache if files were scored.

    `captions.jsonl` without scores is scored into `captions.scores.parquet` next to it, which later calls resume or
    reuse. Without a cache in `spec`, embeddings are cached in a temporary folder, so that files share their images.
    """
    arguments = [(name, Path(name)) if Path(name).exists() else _named(name) for name in files]
    missing = {path for _, path in arguments if path.is_file() and not _has_scores(path)}
    use: CacheUse | None = None
    with ExitStack() as stack:
        if len(missing) > 1 and spec.cache is None:
            folder = stack.enter_context(TemporaryDirectory(prefix=".msdscore-", dir=min(missing).parent))
            spec = replace(spec, cache=CacheSettings(folder=folder))
        for path in sorted(missing):
            output = path.with_name(path.stem + _SUFFIX)
            with open_rows(path, images=images) as rows:
                done = score_file(spec, rows, output, progress=lambda *counts, path=path: progress(path.name, *counts))
            use = done.cache if use is None or done.cache is None else use + done.cache
    names = []
    for argument, path in arguments:
        output = path.with_name(path.stem + _SUFFIX)
        names.append(argument.removesuffix(str(path)) + str(output) if path in missing else argument)
    return names, use


def _named(argument: str) -> tuple[str, Path]:
    """Return an argument NAME=FILE and its path."""
    return argument, Path(argument.partition("=")[2] or argument)


def _has_scores(path: Path) -> bool:
    with ExitStack() as stack:
        records = open_records(path, format=None, until=stack)
        first = next(iter(records.read()), None)
        return "msd" in (records.columns or (first.values if first else ()))
