"""The decoding processes of this process: started when they are first asked for, and kept until it ends."""

import atexit
import os
from threading import Lock

from msdscore.io.decoders import Decoders

_kept: dict[tuple[int, int, int], Decoders] = {}
_keeping = Lock()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_decode() -> bool:
    """Whether this system can hand open files to other processes."""
    return os.name == "posix"


def borrow(count: int, cell: int, cells: int) -> Decoders:
    """So many processes, those of before where they fit; give them back to `give_back`."""
    with _keeping:
        key = (count, cell, cells)
        for other in [one for one, decoders in _kept.items() if one != key and not decoders.users]:
            _kept.pop(other).close()
        if key not in _kept:
            _kept[key] = Decoders(count, cell, cells)
        _kept[key].users += 1
        return _kept[key]


def give_back(decoders: Decoders) -> None:
    """The processes stay for the next one who asks."""
    with _keeping:
        decoders.users -= 1
        if not decoders.users:
            decoders.rest()


def close_all() -> None:
    """End all decoding processes of this process; others are started when they are needed."""
    with _keeping:
        while _kept:
            _kept.popitem()[1].close()


def _forget() -> None:
    """A forked process has neither the threads nor the children, and the lock may have been taken in the other one."""
    global _keeping
    _keeping = Lock()
    _kept.clear()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
