"""What a decoding process does: files in, pixels into shared memory, until its input ends.

Such a process is started without torch and without the script that asks for it, so that it is there in a moment; see
`decoders` for the other side.
"""

import mmap
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, TypeAlias

import numpy as np

from msdscore.errors import RowError

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# How a file is read: its pixels (height, width, 3), and what else is to be known of it.
Read: TypeAlias = Callable[[Any], tuple[Pixels, Any]]
Work: TypeAlias = tuple[bytes, Sequence[Any], slice]  # how to read, what, and the room in memory for it
Placed: TypeAlias = tuple[int, tuple[int, ...], Any]  # where pixels begin in that room, their shape, and what else
Answer: TypeAlias = list[Placed | tuple[Pixels, Any] | RowError] | Exception
READY = b"ready"


def serve(memory: int, size: int) -> None:
    """Answer what comes on standard input on standard output; `memory` is an open file of `size` bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that asked ends the others
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    shared = np.frombuffer(mmap.mmap(memory, size), dtype=np.uint8)
    asked: SimpleQueue[Work] = SimpleQueue()
    # Read apart: whoever writes work and answers into full pipes on both sides would wait for ever.
    Thread(target=_listen, args=(sys.stdin.buffer, asked), daemon=True).start()
    _send(answers, READY)
    readers: dict[bytes, Read] = {}
    while True:
        how, sources, room = asked.get()
        if how not in readers:
            readers = {how: pickle.loads(how)}
        _send(answers, _answer(readers[how], sources, shared[room]))


def _listen(given: IO[bytes], asked: "SimpleQueue[Work]") -> None:
    """Take work until the other side closes its end or dies; then this process has nothing left to do."""
    try:
        while True:
            asked.put(pickle.load(given))
    except EOFError:
        os._exit(0)


def _send(answers: IO[bytes], answer: Any) -> None:
    try:
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
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
    serve(int(sys.argv[1]), int(sys.argv[2]))
