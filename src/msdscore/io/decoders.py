"""Files decoded by other processes into shared memory: the one which feeds a GPU has its interpreter for itself.

Threads share one interpreter: sixteen of them decode half of what sixteen processes do, and hold up the thread that
starts the work of the GPU (docs/performance.md). The processes are started once and kept until this one ends; they run
this module (`serve`), without torch and without the script that asks for them, so that they are there in a moment.
"""

import atexit
import mmap
import os
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
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
from msdscore.io.images import source_name

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# How a file is read: its pixels (height, width, 3), and what else is to be known of it.
Read: TypeAlias = Callable[[Any], tuple[Pixels, Any]]
Work: TypeAlias = tuple[Read | None, Sequence[Any], slice]  # how to read (None: as before), what, and room for it
Placed: TypeAlias = tuple[int, tuple[int, ...], Any]  # where pixels begin in that room, their shape, and what else
Answer: TypeAlias = list[Placed | tuple[Pixels, Any] | RowError] | Exception
Seen: TypeAlias = tuple[Pixels, Any] | RowError  # what comes of one file: pixels and what else, or why not
TOGETHER = 8  # files per message
AHEAD = 2  # messages that a process has, so that it never waits for the next one
READY = b"ready"
# With one decoder per core, the process that feeds the GPU has to get a core at once whenever it can go on.
NICENESS = 10
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
        # An open file without a name, held in memory where the system can.
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("msdscore-pixels")
        else:
            with TemporaryFile() as held:
                self._file = os.dup(held.fileno())
        os.ftruncate(self._file, cell * self._cells)
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
                while self._fill(member, given):
                    if given:
                        answer = member.answers.recv()
                        self._settle(given.popleft(), answer)
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
        command = [sys.executable, "-P", "-m", "msdscore.io.decoders", *map(str, handed), str(len(self._map))]
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
            if not (job.answer.running() or job.answer.set_running_or_notify_cancel()):
                continue
            cell = self._free.popleft() if self._free else None
            given.append((job, cell))
            try:
                member.work.send((None if member.read is job.read else job.read, job.sources, self._room(cell)))
                member.read = job.read
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001, what cannot be sent was not begun to be sent
                reason = f"cannot be sent to a decoding process: {type(error).__name__}: {error}"
                self._settle(given.pop(), RuntimeError(reason))
        return True

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
        images: list[Seen] = []
        for image in answer:
            if isinstance(image, RowError) or len(image) == 2:
                images.append(image)
                continue
            assert room is not None, "pixels are placed where there was room"
            begin, shape, more = image
            images.append((room[begin : begin + int(np.prod(shape))].reshape(shape), more))
        job.answer.set_result(images)

    def _bury(self, member: _Member, given: "deque[_Given]") -> None:
        """A process has died: what it had is done by others, and the one file that ended it twice has a reason."""
        self._end(member)
        for number, (job, cell) in enumerate(given):
            if cell is not None:
                self._free.append(cell)
            if self._closed:
                _refuse(job)
            elif number == 0 and job.deaths and len(job.sources) == 1:
                code = member.process.returncode
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                name = source_name(job.sources[0])
                job.answer.set_result([ImageError(f"{name}: cannot be decoded (the process that tried {how})")])
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
    images: list[Placed | tuple[Pixels, Any] | RowError] = []
    used = 0
    for source in sources:
        try:
            pixels, more = read(source)
        except RowError as error:
            images.append(error)
        except Exception as error:  # noqa: BLE001, a mistake of ours is raised where it can be seen
            return RuntimeError(f"a decoding process failed on {str(source)[:200]}: {type(error).__name__}: {error}")
        else:
            if used + pixels.size > room.size:
                images.append((pixels, more))
                continue
            room[used : used + pixels.size] = pixels.reshape(-1)
            images.append((used, pixels.shape, more))
            used += pixels.size
    return images


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
if __name__ == "__main__":  # a decoding process
    serve(*map(int, sys.argv[1:5]))
