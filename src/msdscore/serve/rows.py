"""The worst rows of a scored file, which `serve.table` reads once, in a separate process with limited memory."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from msdscore.core.evidence import READINGS
from msdscore.forms.registry import LOWER_IS_BETTER
from msdscore.serve.schema import RowsQuery
from msdscore.serve.settings import RequestError, ServeSettings
from msdscore.serve.table import TEXTS, expanded

FORMATS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
ORDER_BY = ("match", "soft_msd", "msd")  # default: the first of these that the file has
BINS = 15  # of the histogram
# One thread and one memory pool, so that reserves do not count against the limit.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


async def read_table(name: str, content: bytes, settings: ServeSettings) -> pa.Table:
    """Read the text and score columns of a scored file; missing score columns are left out."""
    from msdscore.scoring.results import ALL_COLUMNS  # imports torch, which the reading process does not need

    format_name = name.rpartition(".")[2].lower()
    if format_name not in FORMATS:
        raise RequestError(415, f"expected a scored file that ends in one of {', '.join(FORMATS)}")
    numbers = [name for name in ALL_COLUMNS if name not in ("reading", "warnings", "error")]
    options = {limit: getattr(settings, limit) for limit in ("max_rows", "max_cells", "max_expanded")}
    answer = await _read_elsewhere(content, options | {"format": format_name, "numbers": numbers})
    if answer[:1] == b"{":
        problem = json.loads(answer)
        raise RequestError(problem["status"], problem["error"])
    try:
        table = pa.ipc.open_stream(answer).read_all()
    except pa.ArrowInvalid:  # the process was killed by the system
        raise expanded(settings.max_expanded) from None
    columns = [name for name in numbers if name in table.column_names and table[name].null_count < table.num_rows]
    if not columns:
        raise RequestError(422, f"expected a scored file with {' or '.join(ORDER_BY)}; run msdscore score first")
    return table.select([*TEXTS, *columns])


async def _read_elsewhere(content: bytes, options: Mapping[str, Any]) -> bytes:
    """Run the reading process on a file and return its output."""
    with _as_file(content) as (path, descriptors):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "msdscore.serve.table"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            given = json.dumps({**options, "path": path}).encode()
            answer, _ = await asyncio.to_thread(process.communicate, given)
        finally:  # if the caller has disconnected or timed out, this ends the thread too
            process.kill()
            process.wait()
    return answer


@contextmanager
def _as_file(content: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Provide bytes to another process as a path: in memory on Linux, else a private temporary file."""
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


def worst_rows(table: pa.Table, query: RowsQuery) -> dict[str, Any]:
    """Return the rows with the worst values in a column; rows without a value are counted, and listed last."""
    columns = [name for name in table.column_names if name not in TEXTS]
    by = query.by or next((name for name in ORDER_BY if name in columns), columns[0])
    if by not in columns:
        raise RequestError(422, f"by: the file has no numbers {by[:40]!r}, only {', '.join(columns)}")
    order = "descending" if by in LOWER_IS_BETTER else "ascending"
    matching = table.append_column("row", pa.array(np.arange(table.num_rows)))
    if query.low is not None:
        matching = matching.filter(pc.greater_equal(matching[by], query.low))
    if query.high is not None:
        matching = matching.filter(pc.less_equal(matching[by], query.high))
    if query.contains:
        matching = matching.filter(pc.match_substring(matching["caption"], query.contains, ignore_case=True))
    indices = pc.sort_indices(matching, sort_keys=[(by, order), ("row", "ascending")])  # those without a value last
    rows = matching.take(indices[query.start : query.start + query.count])
    values = table[by].drop_null().to_numpy()
    # A probability is shown over its full range.
    counts, edges = np.histogram(values, bins=BINS, range=(0.0, 1.0) if by == "match" else None)
    return {
        "by": by,
        "readings": _readings(table["match"].drop_null().to_numpy()) if "match" in columns else None,
        "columns": columns,
        "total": table.num_rows,
        "failed": table[by].null_count,
        "matching": matching.num_rows,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "rows": [
            {name: value for name, value in row.items() if name in TEXTS or value is not None}
            | {"warnings": (row["warnings"] or "").splitlines()}
            for row in rows.to_pylist()
        ],
    }


def _readings(matches: npt.NDArray[np.float64]) -> dict[str, int]:
    """Count good, doubtful and poor matches."""
    above = [int((matches >= least).sum()) for least, _ in READINGS]
    return {word: count - before for (_, word), count, before in zip(READINGS, above, [0, *above], strict=False)}
