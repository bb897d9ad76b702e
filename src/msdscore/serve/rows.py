"""The worst rows of a scored file, which is read once, in a process of its own with limited memory.

`python -m msdscore.serve.rows` is that process: one JSON line of options in; out comes an Arrow stream with a row per
row of the file, or a refusal as JSON. Queries run on the table that the stream holds.
"""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from msdscore.errors import InputError
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES, first_of
from msdscore.io.inputs.formats import Record, Records, open_records
from msdscore.serve.guard import RefusedError
from msdscore.serve.settings import ServeSettings

FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
LOWER_IS_BETTER = frozenset(("coverage", "support", "divergence"))
ORDER_BY = ("match", "soft_msd", "msd")  # unless asked for: the first of these that the file has
MOST = 500  # rows per answer
BINS = 20  # of the histogram
TEXTS = ("caption", "image", "warnings", "error")
_CHARACTERS = 2000  # of a text in an answer
_BATCH = 16_384  # rows that are written at once
# One thread, one pool of memory: so that the limit is reached by the file and not by reserves.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsQuery:
    """Which rows: `count` from the worst on by a number, among those between `low` and `high` that contain a text."""

    by: str | None = None
    start: int = 0
    count: int = MOST
    low: float | None = None
    high: float | None = None
    contains: str = ""


async def read_table(name: str, content: bytes, settings: ServeSettings) -> pa.Table:
    """The texts and numbers of a scored file; columns of numbers that it does not have are left out."""
    from msdscore.scoring.score import ALL_COLUMNS  # loads torch, which the reading process does without

    format_name = name.rpartition(".")[2].lower()
    if format_name not in FORMATS:
        raise RefusedError(415, f"expected a scored file that ends in one of {', '.join(FORMATS)}")
    numbers = [name for name in ALL_COLUMNS if name not in ("reading", "warnings", "error")]
    options = {limit: getattr(settings, limit) for limit in ("max_rows", "max_cells", "max_expanded")}
    answer = await _read_elsewhere(content, options | {"format": format_name, "numbers": numbers})
    if answer[:1] == b"{":
        refusal = json.loads(answer)
        raise RefusedError(refusal["status"], refusal["error"])
    try:
        table = pa.ipc.open_stream(answer).read_all()
    except pa.ArrowInvalid:  # the process was ended by the system
        raise _expanded(settings.max_expanded) from None
    columns = [name for name in numbers if table[name].null_count < table.num_rows]
    if not columns:
        raise RefusedError(422, f"expected a scored file with {' or '.join(ORDER_BY)}; run msdscore score first")
    return table.select([*TEXTS, *columns])


async def _read_elsewhere(content: bytes, options: Mapping[str, Any]) -> bytes:
    """What the reading process writes about a file."""
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
            given = json.dumps({**options, "path": path}).encode()
            answer, _ = await asyncio.to_thread(process.communicate, given)
        finally:  # where the caller has gone or the time is over, this ends the thread too
            process.kill()
            process.wait()
    return answer


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


def worst_rows(table: pa.Table, query: RowsQuery) -> dict[str, Any]:
    """The rows with the worst numbers in a column; rows without that number are counted, and listed last."""
    columns = [name for name in table.column_names if name not in TEXTS]
    by = query.by or next((name for name in ORDER_BY if name in columns), columns[0])
    if by not in columns:
        raise RefusedError(422, f"by: the file has no numbers {by[:40]!r}, only {', '.join(columns)}")
    order = "descending" if by in LOWER_IS_BETTER else "ascending"
    numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
    matching = _matching(numbered, by, query)
    indices = pc.sort_indices(matching, sort_keys=[(by, order), ("row", "ascending")])  # those without the number last
    rows = matching.take(indices[query.start : query.start + min(query.count, MOST)])
    values = table[by].drop_null().to_numpy()
    # A probability has all of its range.
    counts, edges = np.histogram(values, bins=BINS, range=(0.0, 1.0) if by == "match" else None)
    return {
        "by": by,
        "columns": columns,
        "total": table.num_rows,
        "failed": table[by].null_count,
        "matching": matching.num_rows,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "rows": [
            {name: value for name, value in row.items() if name in TEXTS or value is not None}
            for row in rows.to_pylist()
        ],
    }


def _matching(table: pa.Table, by: str, query: RowsQuery) -> pa.Table:
    if query.low is not None:
        table = table.filter(pc.greater_equal(table[by], query.low))
    if query.high is not None:
        table = table.filter(pc.less_equal(table[by], query.high))
    if query.contains:
        table = table.filter(pc.match_substring(table["caption"], query.contains, ignore_case=True))
    return table


def main() -> None:
    """Read one file as the options on standard input say, and write its table."""
    options = json.loads(sys.stdin.readline())
    _limit_memory(options["max_expanded"])
    try:
        with ExitStack() as stack:
            records = open_records(options["path"], format=options["format"], until=stack)
            sys.stdout.buffer.write(_stream(records, options))
    except RefusedError as error:
        _refuse(error)
    except MemoryError:
        _refuse(_expanded(options["max_expanded"]))
    except InputError as error:
        memory = isinstance(error.__cause__, MemoryError)
        _refuse(_expanded(options["max_expanded"]) if memory else RefusedError(422, _without_path(str(error))))


def _refuse(error: RefusedError) -> None:
    sys.stdout.write(json.dumps({"status": error.status, "error": error.reason}))


def _limit_memory(expanded: int) -> None:
    """Let this process take so many bytes more than it has now."""
    with suppress(ImportError, OSError, ValueError):  # where the system has no such limit
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + expanded
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _stream(records: Records, options: Mapping[str, Any]) -> pa.Buffer:
    """The rows of a file as an Arrow stream."""
    numbers = [(name, pa.float64()) for name in options["numbers"]]
    schema = pa.schema([*((name, pa.string()) for name in TEXTS), *numbers])
    rows, sink = _rows(records, options), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(rows, _BATCH)):
            columns = zip(zip(*batch, strict=True), schema.types, strict=True)
            writer.write_batch(pa.record_batch([pa.array(column, kind) for column, kind in columns], schema=schema))
    return sink.getvalue()


def _rows(records: Records, options: Mapping[str, Any]) -> Iterator[list[str | float | None]]:
    """Texts and numbers of every row, within the limits."""
    cells = 0
    for number, record in enumerate(records.read()):
        cells += len(record.values)
        if number >= options["max_rows"]:
            raise RefusedError(413, f"expected a file of at most {options['max_rows']} rows")
        if cells > options["max_cells"]:
            raise RefusedError(413, f"expected a file of at most {options['max_cells']} cells; leave columns out")
        yield [*_texts(record), *(_number(record.values.get(name)) for name in options["numbers"])]


def _texts(record: Record) -> Iterator[str | None]:
    """Caption, name of the image, warnings and error of a row."""
    values = record.values
    for names in (CAPTION_NAMES, IMAGE_NAMES):
        name = first_of(values, names)
        yield None if name is None else _text(values[name])
    yield _text(values.get("warnings"))
    yield _text(record.error or values.get("error"))


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):  # an image as Hugging Face datasets have it
        value = value.get("path")
    if not isinstance(value, str) or not value:
        return None
    return value[:_CHARACTERS].encode("utf-8", "replace").decode()


def _number(value: Any) -> float | None:
    """A finite number, however it is written."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _without_path(message: str) -> str:
    """A reader's message without the path, which says nothing to the caller."""
    head, colon, rest = message.partition(": ")
    return rest if colon and ("/fd/" in head or "msdscore-" in head) else message


if __name__ == "__main__":
    main()
