"""What a decoding process does: files in, pixels into shared memory, until its input ends.

Such a process is started without torch and without the script that asks for it, so that it is there in a moment; see
`decoders` for the other side.
"""

import mmap
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import numpy as np

from msdscore.errors import RowError

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# How a file is read: its pixels (height, width, 3), and what else is to be known of it.
Read: TypeAlias = Callable[[Any], tuple[Pixels, Any]]
Work: TypeAlias = tuple[Read | None, Sequence[Any], slice]  # how to read (None: as before), what, and room for it
Placed: TypeAlias = tuple[int, tuple[int, ...], Any]  # where pixels begin in that room, their shape, and what else
Answer: TypeAlias = list[Placed | tuple[Pixels, Any] | RowError] | Exception
READY = b"ready"
# With one decoder per core, the process that feeds the GPU has to get a core at once whenever it can go on.
NICENESS = 10


def serve(work: int, answers: int, memory: int, size: int) -> None:
    """Answer what comes through a pipe through another one; `memory` is an open file of `size` bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that asked ends the others
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    os.dup2(2, 1)  # whatever a library prints is no result of the program that asked
    back = Connection(answers, readable=False)
    shared = np.frombuffer(mmap.mmap(memory, size), dtype=np.uint8)
    asked: SimpleQueue[Work | Exception] = SimpleQueue()
    # Read apart: whoever writes work and answers into full pipes on both sides would wait for ever.
    Thread(target=_listen, args=(Connection(work, writable=False), asked), daemon=True).start()
    _send(back, READY)
    read: Read | None = None
    while True:
        work_or_error = asked.get()
        if isinstance(work_or_error, Exception):
            _send(back, work_or_error)
            os._exit(1)
        given, sources, room = work_or_error
        read = given or read
        assert read is not None, "the first work says how it is done"
        _send(back, _answer(read, sources, shared[room]))


def _listen(given: Connection, asked: "SimpleQueue[Work | Exception]") -> None:
    """Take work until the other side closes its end or dies; then this process has nothing left to do."""
    try:
        while True:
            asked.put(given.recv())
    except (EOFError, OSError):
        os._exit(0)
    except Exception as error:  # noqa: BLE001, a way to read that this process cannot have; whoever asked is told
        asked.put(RuntimeError(f"a decoding process cannot read its work: {type(error).__name__}: {error}"))


def _send(back: Connection, answer: Any) -> None:
    try:
        back.send(answer)
    except BrokenPipeError:
        os._exit(0)


def _answer(read: Read, sources: Sequence[Any], room: Pixels) -> Answer:
    found: list[Placed | tuple[Pixels, Any] | RowError] = []
    used = 0
    for source in sources:
        try:
            pixels, more = read(source)
        except RowError as error:
            found.append(error)
        except Exception as error:  # noqa: BLE001, a mistake of ours is raised where it can be seen
            return RuntimeError(f"a decoding process failed on {str(source)[:200]}: {type(error).__name__}: {error}")
        else:
            if used + pixels.size > room.size:
                found.append((pixels, more))
                continue
            room[used : used + pixels.size] = pixels.reshape(-1)
            found.append((used, pixels.shape, more))
            used += pixels.size
    return found


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:5]))
