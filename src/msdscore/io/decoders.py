"""Files decoded by other processes into shared memory: the one which feeds a GPU has its interpreter for itself.

Threads share one interpreter: sixteen of them decode half of what sixteen processes do, and hold up the thread that
starts the work of the GPU (docs/performance.md). The processes are started once and kept until this one ends.
"""

import atexit
import math
import mmap
import os
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from threading import Lock, Thread
from typing import Any, TypeAlias

import numpy as np

from msdscore.errors import ImageError, RowError
from msdscore.io.decoder_process import READY, Answer, Pixels, Read
from msdscore.io.images import source_name

Seen: TypeAlias = tuple[Pixels, Any] | RowError  # what comes of one file: pixels and what else, or why not
TOGETHER = 8  # files per message
AHEAD = 2  # messages that a process has, so that it never waits for the next one
ARENA = 2 << 30  # bytes of shared memory at most; only what is written to is taken from the machine


class DecodersLostError(Exception):
    """No decoding process can be started here."""


@dataclass(eq=False)
class _Job:
    read: Read
    sources: Sequence[Any]
    answer: "Future[list[Seen]]" = field(default_factory=Future)
    deaths: int = 0  # of processes that had it


@dataclass(eq=False)
class _Member:
    """A decoding process, the pipes to and from it, and how it was told to read."""

    process: "subprocess.Popen[bytes]"
    work: Connection
    answers: Connection
    read: Read | None = None


_Given: TypeAlias = tuple[_Job, int | None]  # a job that a process has, and the number of the cell for its pixels


class Decoders:
    """Processes that read and decode files; one thread here for each of them passes work on.

    `cell` bytes hold the pixels of one message; what does not fit comes through the pipe. A cell is free again when
    nothing refers to its pixels any more.
    """

    def __init__(self, count: int, cell: int, cells: int) -> None:
        self._cell, self._cells = cell, max(1, min(cells, ARENA // cell))
        self._file = _memory(cell * self._cells)
        self._map = mmap.mmap(self._file, cell * self._cells)
        self._free = deque(range(self._cells))
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock, self._threads, self._closed = Lock(), count, False
        self._members: set[_Member] = set()
        self.users = 0
        for _ in range(count):
            Thread(target=self._attend, name="msdscore-decoder", daemon=True).start()

    def submit(self, read: Read, sources: Sequence[Any]) -> "list[Future[list[Seen]]]":
        """Have files read; one future for every few of them, in order.

        Raises `DecodersLostError` here or in the futures where no process can be started.
        """
        jobs = [_Job(read, sources[start : start + TOGETHER]) for start in range(0, len(sources), TOGETHER)]
        with self._lock:
            if not self._threads:
                raise DecodersLostError
            for job in jobs:
                self._jobs.put(job)
        return [job.answer for job in jobs]

    def rest(self) -> None:
        """Give unused shared memory back to the machine, where no pixels are in use."""
        if len(self._free) == self._cells:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, self._cell * self._cells)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closed = True
            members = list(self._members)
        self._jobs.put(None)
        for member in members:
            with suppress(OSError):
                member.work.close()  # a process ends with its work
        for member in members:
            try:
                member.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            with suppress(OSError):
                member.answers.close()

    def _attend(self) -> None:
        """Keep one process busy, with a new one in place of one that dies."""
        while (member := self._start()) is not None:
            given: deque[_Given] = deque()
            try:
                self._pass_on(member, given)
                return
            except Exception:  # noqa: BLE001, it has died, at best between two answers
                self._bury(member, given)
        with self._lock:
            self._threads -= 1
            if not self._threads:
                with suppress(Empty):
                    while (job := self._jobs.get_nowait()) is not None:
                        _refuse(job)

    def _start(self) -> _Member | None:
        """A process that has said that it is ready; None where there can be none."""
        if self._closed:
            return None
        (theirs, work), (answers, back) = Pipe(duplex=False), Pipe(duplex=False)
        handed = (theirs.fileno(), back.fileno(), self._file)
        # Paths as this process has them; each process has one core, whatever libraries think.
        paths = os.pathsep.join(path for path in sys.path if path)
        alone = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "msdscore.io.decoder_process", *map(str, handed), str(len(self._map))]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=handed, env=os.environ | alone)
        except OSError:
            for pipe in (theirs, work, answers, back):
                pipe.close()
            return None
        theirs.close()
        back.close()
        member = _Member(process, work, answers)
        with self._lock:
            self._members.add(member)
            closed = self._closed
        try:
            ready = not closed and answers.recv() == READY
        except (EOFError, OSError):
            ready = False
        if not ready:
            self._end(member)
        return member if ready else None

    def _pass_on(self, member: _Member, given: "deque[_Given]") -> None:
        """Give work and take answers, until there will be no more."""
        while self._fill(member, given):
            if given:
                answer = member.answers.recv()
                self._settle(given.popleft(), answer)

    def _fill(self, member: _Member, given: "deque[_Given]") -> bool:
        """Give a process what it may have at a time, or what there is; wait where it has nothing. False at the end."""
        while len(given) < AHEAD:
            try:
                job = self._jobs.get(block=not given)
            except Empty:
                return True
            if job is None:
                self._jobs.put(None)  # for the other threads too
                return False
            if job.answer.running() or job.answer.set_running_or_notify_cancel():
                given.append((job, self._free.popleft() if self._free else None))
                self._give(member, given)
        return True

    def _give(self, member: _Member, given: "deque[_Given]") -> None:
        job, cell = given[-1]
        read = None if member.read is job.read else job.read
        try:
            member.work.send((read, job.sources, self._room(cell)))
            member.read = job.read
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001, what cannot be sent was not begun to be sent
            reason = f"cannot be sent to a decoding process: {type(error).__name__}: {error}"
            self._settle(given.pop(), RuntimeError(reason))

    def _room(self, cell: int | None) -> slice:
        return slice(0, 0) if cell is None else slice(cell * self._cell, (cell + 1) * self._cell)

    def _settle(self, done: _Given, answer: Answer) -> None:
        (job, cell), room = done, None
        if cell is not None:
            # An array of its own: views refer to it and not to the whole, so that it lives as long as they do.
            room = np.frombuffer(memoryview(self._map)[self._room(cell)], dtype=np.uint8)
            weakref.finalize(room, self._free.append, cell).atexit = False
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
            return
        job.answer.set_result([_seen(image, room) for image in answer])

    def _bury(self, member: _Member, given: "deque[_Given]") -> None:
        """A process has died: what it had is done by others, and the one file that ended it twice has a reason."""
        self._end(member)
        for number, (job, cell) in enumerate(given):
            if cell is not None:
                self._free.append(cell)
            if self._closed:
                _refuse(job)
            elif number == 0 and job.deaths and len(job.sources) == 1:
                job.answer.set_result([_death(job.sources[0], member.process.returncode)])
            elif number == 0:
                self._one_by_one(job)
            else:
                self._jobs.put(job)

    def _one_by_one(self, job: _Job) -> None:
        """Files one of which has ended a process: each alone, so that it is known which one it was."""
        parts = [_Job(job.read, [source], deaths=1) for source in job.sources]
        left = len(parts)
        lock = Lock()

        def arrived(_: "Future[list[Seen]]") -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            try:
                job.answer.set_result([one for part in parts for one in part.answer.result()])
            except (CancelledError, Exception) as error:  # noqa: BLE001, it is handed on
                job.answer.set_exception(error)

        for part in parts:
            part.answer.add_done_callback(arrived)
            self._jobs.put(part)

    def _end(self, member: _Member) -> None:
        member.process.kill()
        member.process.wait()
        for pipe in (member.work, member.answers):
            with suppress(OSError):
                pipe.close()
        with self._lock:
            self._members.discard(member)


def _refuse(job: _Job) -> None:
    with suppress(Exception):  # it was cancelled meanwhile
        job.answer.set_exception(DecodersLostError())


def _seen(answer: Any, room: Pixels | None) -> Seen:
    if isinstance(answer, RowError) or len(answer) == 2:
        return answer
    assert room is not None, "pixels are placed where there was room"
    begin, shape, more = answer
    return room[begin : begin + math.prod(shape)].reshape(shape), more


def _death(source: Any, code: int) -> ImageError:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return ImageError(f"{source_name(source)}: cannot be decoded (the process that tried {how})")


def _memory(size: int) -> int:
    """An open file of that size without a name, held in memory where the system can."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("msdscore-pixels")
    else:
        with TemporaryFile() as held:
            file = os.dup(held.fileno())
    os.ftruncate(file, size)
    return file


_kept: dict[tuple[int, int, int], Decoders] = {}
_keeping = Lock()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def borrow(count: int, cell: int, cells: int) -> Decoders:
    """Decoding processes, reused where they fit; return them with `give_back`."""
    with _keeping:
        key = (count, cell, cells)
        for unused in [other for other, decoders in _kept.items() if other != key and not decoders.users]:
            _kept.pop(unused).close()
        if key not in _kept:
            _kept[key] = Decoders(count, cell, cells)
        _kept[key].users += 1
        return _kept[key]


def give_back(decoders: Decoders) -> None:
    """Return processes; they stay for the next run."""
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
