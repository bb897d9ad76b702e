"""`msdscore score --estimate`: rows, rate and time of an input, from a sample that takes seconds."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from msdscore.cli.progress import bar, duration, print_json
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.rows.files import RowSource
    from msdscore.scorer import Scorer
    from msdscore.scoring.spec import ScorerSpec

LIMIT = 20.0  # seconds, after the encoder is loaded
_WARM_UP, _SAMPLED = 8, 256  # rows; warm-up rows only count if the time is over
_COUNTED = 1 << 12  # rows between two looks at the clock


def print_estimate(
    spec: "ScorerSpec",
    shards: list[str],
    open_shard: "Callable[[Path], RowSource]",
    workers: int | None,
    *,
    as_json: bool,
) -> None:
    """Score a sample of the first shard; print the number of rows, the rate, and the time for all shards.

    Each worker scores whole shards.
    """
    from msdscore import threads
    from msdscore.io.stores import fetched_shard
    from msdscore.run.shards import THREADS
    from msdscore.run.workers import default_workers
    from msdscore.scorer import Scorer

    # As in a worker; and without a cache, which a second estimate would time.
    alone = replace(spec, cache=None, threads=spec.threads or (THREADS if len(shards) > 1 else None))
    with fetched_shard(shards[0]) as path, open_shard(path) as first, bar("estimating") as show:
        with threads.restored():
            scorer = Scorer.from_spec(alone)
            end = perf_counter() + LIMIT
            rate, sample = sampled_rate(scorer, first, end, show)
        rows, is_exact = _count_rows(first, shards, max(end, perf_counter() + LIMIT / 4))
    count = min(workers or default_workers(spec), len(shards))
    seconds = rows / rate / count
    if as_json:
        facts = {"rows": rows, "exact": is_exact, "shards": len(shards), "rows_per_second": round(rate, 2)}
        print_json(facts | {"processes": count, "seconds": round(seconds, 1)})
        return
    about, files = "" if is_exact else "about ", f"{len(shards):,} file{'s'[: len(shards) > 1]}"
    guess = "" if is_exact else ", estimated from the first one" if len(shards) > 1 else ", or more"
    typer.echo(f"{about}{rows:,} rows in {files}{guess}")
    typer.echo(
        f"{rate:.1f} rows per second on {scorer.encoder.device} in one process, from a sample of {sample}; "
        f"a million rows take {duration(1e6 / rate)}"
    )
    several = f" with {count} processes, if they do not slow each other down" if count > 1 else ""
    typer.echo(f"{duration(seconds)} in all{several}")


def sampled_rate(
    scorer: "Scorer", first: "RowSource", end: float, show: Callable[[int, int], None]
) -> tuple[float, int]:
    """Return rows per second, and the number of timed rows; rows are scored until about `end`.

    Scores of a batch arrive together, so whole groups are timed: the warm-up, then as many rows as fit the time.
    """
    readable = ((row.image, row.caption) for row in first.read() if row.error is None)
    pairs = [(image, text) for image, text in islice(readable, _WARM_UP + _SAMPLED) if image is not None]
    if len(pairs) <= _WARM_UP:
        raise ConfigError(f"{first.name}: {len(pairs)} rows are too few for an estimate; omit --estimate")
    start, size, groups = 0, _WARM_UP, list[tuple[int, float]]()
    while start < len(pairs) and size > 0:
        began, done = perf_counter(), 0
        for done, _ in enumerate(scorer.stream(pairs[start : start + size]), start=1):
            show(start + done, len(pairs))
        groups.append((done, perf_counter() - began))
        start, size = start + size, int(done / groups[-1][1] * (end - perf_counter()))
    counts, seconds = zip(*(groups[1:] or groups), strict=True)
    return sum(counts) / sum(seconds), sum(counts)


def _count_rows(first: "RowSource", shards: list[str], end: float) -> tuple[int, bool]:
    """Return the number of rows of all shards, and whether it is exact; counting stops at `end`.

    Parquet files are counted from their footers; other shards are assumed to have rows of the size of the first.
    """
    from msdscore.io.arrow import pq
    from msdscore.io.files import is_address

    others, is_whole, rows = shards[1:], True, 0
    if first.layout.schema is not None and not first.layout.has_lists:
        rows = first.total or 0  # from the footer
    else:
        read = first.read()
        while is_whole and (counted := sum(1 for _ in islice(read, _COUNTED))):
            rows += counted
            is_whole = perf_counter() <= end
    if any(map(is_address, shards)):
        return rows * len(shards), is_whole and not others
    is_parquet = rows == first.total and all(Path(shard).suffix.lower() == ".parquet" for shard in shards)
    if is_parquet and perf_counter() < end:
        return rows + sum(pq.read_metadata(shard).num_rows for shard in others), True
    sizes = [Path(shard).stat().st_size if Path(shard).is_file() else 0 for shard in shards]
    return round(rows * sum(sizes) / sizes[0]) if others and sizes[0] else rows, is_whole and not others
