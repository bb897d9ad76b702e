"""The worst rows of a scored file, read in a process of its own that can be ended and whose memory is limited.

`python -m msdscore.serve.rows` is that process: one JSON line of options in, one JSON line of rows or a refusal out.
"""

import asyncio
import json
import math
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from msdscore.errors import InputError
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES, first_of
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.records import Record, Records
from msdscore.scoring.score import ALL_COLUMNS
from msdscore.serve.guard import RefusedError
from msdscore.serve.settings import ServeSettings

FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
NUMBERS = tuple(name for name in ALL_COLUMNS if name not in ("reading", "warnings", "error"))
LOWER_IS_BETTER = frozenset(("coverage", "support", "divergence"))
ORDER_BY = ("match", "soft_msd", "msd")  # unless asked for: the first of these that the file has
MOST = 500  # rows per answer
BINS = 20  # of the histogram
_TEXT = 2000  # characters of a text in an answer
# One thread, one pool of memory: so that the limit is reached by the file and not by reserves.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsQuery:
    """Which rows: the `count` worst by a number, among those that lie within `low` and `high` and contain a text."""

    by: str | None = None
    count: int = MOST
    low: float | None = None
    high: float | None = None
    contains: str = ""


async def worst_rows(name: str, content: bytes, query: RowsQuery, settings: ServeSettings) -> dict[str, Any]:
    """The rows with the worst numbers in a column; rows without that number are counted, and listed last."""
    format_name = name.rpartition(".")[2].lower()
    if format_name not in FORMATS:
        raise RefusedError(415, f"expected a scored file that ends in one of {', '.join(FORMATS)}")
    options = {"format": format_name, "query": asdict(query)}
    options |= {limit: getattr(settings, limit) for limit in ("max_rows", "max_cells", "max_expanded")}
    with _as_file(content) as (path, descriptors):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "msdscore.serve.rows"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            answer, _ = await asyncio.to_thread(process.communicate, json.dumps(options | {"path": path}).encode())
        finally:  # where the caller has gone or the time is over, this ends the thread too
            process.kill()
            process.wait()
    try:
        result: dict[str, Any] = json.loads(answer)
    except ValueError:  # it was ended by the system
        raise _expanded(settings.max_expanded) from None
    if "status" in result:
        raise RefusedError(result["status"], result["error"])
    return result


@contextmanager
def _as_file(content: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A path of the bytes for another process: in memory on Linux, else a private file that is deleted afterwards."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("msdscore-rows"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}", (file.fileno(),)
        return
    with TemporaryDirectory(prefix="msdscore-") as folder:
        path = Path(folder) / "rows"
        path.write_bytes(content)
        yield str(path), ()


def _expanded(limit: int) -> RefusedError:
    return RefusedError(413, f"expected a file that can be read in {limit >> 20} MiB of memory; send fewer rows")


def main() -> None:
    """Read one file as the options on standard input say, and print the answer."""
    options = json.loads(sys.stdin.readline())
    _limit_memory(options["max_expanded"])
    try:
        with ExitStack() as stack:
            records = open_records(options["path"], format=options["format"], until=stack)
            read = partial(_read_within_limits, records, options)
            answer = _worst(read, RowsQuery(**options["query"]))
    except RefusedError as error:
        answer = {"status": error.status, "error": error.reason}
    except MemoryError:
        answer = {"status": 413, "error": _expanded(options["max_expanded"]).reason}
    except InputError as error:
        memory = isinstance(error.__cause__, MemoryError)
        reason = _expanded(options["max_expanded"]).reason if memory else _without_path(str(error))
        answer = {"status": 413 if memory else 422, "error": reason}
    sys.stdout.write(json.dumps(answer))


def _limit_memory(expanded: int) -> None:
    """Let this process take so many bytes more than it has now."""
    with suppress(ImportError, OSError, ValueError):  # where the system has no such limit
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + expanded
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read_within_limits(records: Records, options: Mapping[str, Any]) -> Iterator[Record]:
    cells = 0
    for number, record in enumerate(records.read()):
        cells += len(record.values)
        if number >= options["max_rows"]:
            raise RefusedError(413, f"expected a file of at most {options['max_rows']} rows")
        if cells > options["max_cells"]:
            raise RefusedError(413, f"expected a file of at most {options['max_cells']} cells; leave columns out")
        yield record


def _worst(read: Callable[[], Iterator[Record]], query: RowsQuery) -> dict[str, Any]:
    """The worst rows by one number; of each column that may decide, only the worst so far stay in memory."""
    candidates = ORDER_BY if query.by is None else (query.by,)
    worst: dict[str, list[tuple[float, int, Record]]] = {name: [] for name in candidates}
    values = {name: array("d") for name in candidates}
    limits, matching = dict.fromkeys(candidates, math.inf), dict.fromkeys(candidates, 0)
    present = dict.fromkeys(NUMBERS, 0)
    total, count = 0, min(query.count, MOST)
    for total, record in enumerate(read(), start=1):
        numbers = _numbers(record)
        for name in numbers:
            present[name] += 1
        for name, rows in worst.items():
            value = numbers.get(name)
            if value is not None:
                values[name].append(value)
            if not _matches(record, value, query):
                continue
            matching[name] += 1
            key = math.inf if value is None else -value if name in LOWER_IS_BETTER else value
            if key < limits[name] or len(rows) < count:
                rows.append((key, total, record))
            if len(rows) > 4 * count:
                rows.sort(key=lambda entry: entry[:2])
                del rows[count:]
                limits[name] = rows[-1][0]
    chosen, columns = _chosen_column(query.by, present)
    if chosen not in worst:
        return _worst(read, replace(query, by=chosen))
    rows = sorted(worst[chosen], key=lambda entry: entry[:2])[:count]
    return {
        "by": chosen,
        "columns": columns,
        "total": total,
        "failed": total - present[chosen],
        "matching": matching[chosen],
        "histogram": _histogram(chosen, values[chosen]),
        "rows": [_row(record, number - 1) for _, number, record in rows],
    }


def _chosen_column(by: str | None, present: Mapping[str, int]) -> tuple[str, list[str]]:
    """The number to order by, and all that the file has."""
    columns = [name for name in NUMBERS if present[name]]
    if not columns:
        raise RefusedError(422, f"expected a scored file with {' or '.join(ORDER_BY)}; run msdscore score first")
    chosen = by or next((name for name in ORDER_BY if name in columns), columns[0])
    if chosen not in columns:
        raise RefusedError(422, f"by: the file has no numbers {chosen[:40]!r}, only {', '.join(columns)}")
    return chosen, columns


def _matches(record: Record, value: float | None, query: RowsQuery) -> bool:
    if query.low is not None and (value is None or value < query.low):
        return False
    if query.high is not None and (value is None or value > query.high):
        return False
    if not query.contains:
        return True
    caption = first_of(record.values, CAPTION_NAMES)
    return caption is not None and query.contains.casefold() in str(record.values[caption]).casefold()


def _histogram(name: str, values: "array[float]") -> dict[str, list[float]]:
    """How many rows lie in each of equal ranges; a probability has all of its range."""
    counts, edges = np.histogram(values, bins=BINS, range=(0.0, 1.0) if name == "match" else None)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _row(record: Record, number: int) -> dict[str, Any]:
    """What the page shows of a row: its number, caption, the image's name, numbers, warnings, error."""
    values = record.values
    caption, image = first_of(values, CAPTION_NAMES), first_of(values, IMAGE_NAMES)
    texts = {
        "caption": None if caption is None else values[caption],
        "image": None if image is None else values[image],
        "warnings": values.get("warnings"),
        "error": record.error or values.get("error"),
    }
    return {"row": number, **{key: _text(value) for key, value in texts.items()}, **_numbers(record)}


def _numbers(record: Record) -> dict[str, float]:
    """The finite numbers of a row."""
    numbers = {}
    for name in NUMBERS:
        if name in record.values:
            with suppress(TypeError, ValueError, OverflowError):
                numbers[name] = float(record.values[name])
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):  # an image as Hugging Face datasets have it
        value = value.get("path")
    return value[:_TEXT] if isinstance(value, str) and value else None


def _without_path(message: str) -> str:
    """A reader's message without the path, which says nothing to the caller."""
    head, colon, rest = message.partition(": ")
    return rest if colon and ("/fd/" in head or "msdscore-" in head) else message


if __name__ == "__main__":
    main()
