"""Rows read by another process: the process that feeds a GPU has no time for headers and JSON."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any
from uuid import uuid4

import numpy as np

from msdscore.errors import InputError, MSDScoreError
from msdscore.rows.files import RowSource
from msdscore.rows.rules import Row
from msdscore_torch.feeding.processes import Decoders, DecodersLostError, Pixels

ROWS = 256  # per message
_OPEN = 8  # sources that stay open in the other process
_NO_PIXELS: Pixels = np.empty(0, dtype=np.uint8)
Open = Callable[[], RowSource]  # is sent to the other process


def read_ahead(open_source: Open) -> Iterator[Row]:
    """Iterate over the rows of a source that another process opens and reads, one message ahead.

    Rows are read in this process if no other one can be started.
    """
    token, start = uuid4().hex, 0
    try:
        process = row_process()
        waiting = [process.submit(_next_rows, [(token, start, open_source)])[0]]
        while waiting:
            (answer,) = waiting.pop().result()
            rows: list[Row] | MSDScoreError = answer if isinstance(answer, MSDScoreError) else answer[1]
            if isinstance(rows, MSDScoreError):
                raise rows if isinstance(rows, InputError) else InputError(f"the rows cannot be read ({rows})")
            if len(rows) == ROWS:
                waiting = process.submit(_next_rows, [(token, start + ROWS, open_source)])
            for row in rows:
                start += 1
                yield row
    except DecodersLostError:
        with open_source() as source:
            yield from islice(source.read(), start, None)


@cache
def row_process() -> Decoders:
    """Return the process that reads rows."""
    return Decoders(1, cell=1, cells=1)


if hasattr(os, "register_at_fork"):  # a forked process has no threads, and starts a process of its own
    os.register_at_fork(after_in_child=row_process.cache_clear)


# In the other process: sources that were read in part, with the number of rows read.
_sources: OrderedDict[str, tuple[int, RowSource, Iterator[Row]]] = OrderedDict()


def _next_rows(request: tuple[str, int, Open]) -> tuple[Pixels, Any]:
    """Return the rows of a source from `start` on; a process that replaces a dead one skips the rows before."""
    token, start, open_source = request
    try:
        position, source, rows = _sources.pop(token, (-1, None, None))
        if source is None or rows is None or position != start:
            source = open_source()
            rows = islice(source.read(), start, None)
        next_rows = list(islice(rows, ROWS))
        if len(next_rows) == ROWS:
            _sources[token] = (start + ROWS, source, rows)
            if len(_sources) > _OPEN:  # of a run that was stopped
                _sources.popitem(last=False)[1][1].close()
        else:
            source.close()
    except MSDScoreError as error:
        return _NO_PIXELS, error
    return _NO_PIXELS, next_rows
