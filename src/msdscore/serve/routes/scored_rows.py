"""The worst rows of a scored file that a caller sends; the file is held in memory and never opened by a name."""

import heapq
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msdscore.errors import InputError
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES, first_of
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.records import Record
from msdscore.scoring.score import COLUMNS
from msdscore.serve.requests.guard import RefusedError

FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
NUMBERS = tuple(name for name in COLUMNS if name not in ("warnings", "error"))
LOWER_IS_BETTER = frozenset(("coverage", "support", "divergence"))
FIRST = ("match", "soft_msd", "msd")  # what rows are ordered by unless told, the first that the file has
MOST = 500  # rows of one answer
_TEXT = 2000  # characters of a text in an answer


def worst_rows(name: str, content: bytes, *, by: str | None, count: int, limit: int) -> dict[str, Any]:
    """The rows with the worst numbers in a column; rows without that number are counted, and listed last."""
    format_name = name.rpartition(".")[2].lower()
    if format_name not in FORMATS:
        raise RefusedError(415, f"expected a scored file that ends in one of {', '.join(FORMATS)}")
    try:
        with _as_file(content) as path, ExitStack() as stack:
            records = open_records(path, format=format_name, until=stack)
            return _worst(records.read(), by=by, count=min(count, MOST), limit=limit)
    except InputError as error:
        raise RefusedError(422, _without_path(str(error))) from error


def _worst(records: Iterator[Record], *, by: str | None, count: int, limit: int) -> dict[str, Any]:
    rows = []
    for number, record in enumerate(records):
        if number >= limit:
            raise RefusedError(413, f"expected a file of at most {limit} rows")
        rows.append(_row(record, number))
    columns = [name for name in NUMBERS if any(row.get(name) is not None for row in rows)]
    if not columns:
        raise RefusedError(422, f"expected a scored file with {' or '.join(FIRST)}; run msdscore score first")
    chosen = by or next((name for name in FIRST if name in columns), columns[0])
    if chosen not in columns:
        raise RefusedError(422, f"by: the file has no numbers {chosen[:40]!r}, only {', '.join(columns)}")
    sign = -1 if chosen in LOWER_IS_BETTER else 1
    found = heapq.nsmallest(count, rows, key=lambda row: _place(row.get(chosen), sign))
    failed = sum(row.get(chosen) is None for row in rows)
    return {"by": chosen, "columns": columns, "total": len(rows), "failed": failed, "rows": found}


def _place(value: float | None, sign: int) -> float:
    return math.inf if value is None else sign * value


def _row(record: Record, number: int) -> dict[str, Any]:
    """What the page shows of a row: place, caption, the picture's name, numbers, warnings, error."""
    values = record.values
    caption, picture = first_of(values, CAPTION_NAMES), first_of(values, IMAGE_NAMES)
    texts = {
        "caption": None if caption is None else values[caption],
        "image": None if picture is None else values[picture],
        "warnings": values.get("warnings"),
        "error": record.error or values.get("error"),
    }
    numbers = {name: found for name in NUMBERS if (found := _number(values.get(name))) is not None}
    return {"row": number, **{key: _text(value) for key, value in texts.items()}, **numbers}


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):  # a picture as Hugging Face datasets keep it
        value = value.get("path")
    return value[:_TEXT] if isinstance(value, str) and value else None


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """A path under which the readers find some bytes: in memory on Linux, else a private file, deleted at once."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("msdscore-rows"), "wb") as file:
            file.write(content)
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")
        return
    with TemporaryDirectory(prefix="msdscore-") as folder:
        path = Path(folder) / "rows"
        path.write_bytes(content)
        yield path


def _without_path(message: str) -> str:
    """A reader's message without the path, which says nothing to the caller."""
    head, colon, rest = message.partition(": ")
    return rest if colon and ("/fd/" in head or "msdscore-" in head) else message
