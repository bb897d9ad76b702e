"""Image decoding in other processes, into shared memory, so that the GPU process does not share its interpreter.

Threads share one interpreter: sixteen threads decode half as fast as sixteen processes, and block the thread that
launches GPU work (docs/performance.md). The processes are started once and reused until this one ends; they run this
module, without torch and without the calling script, so that they start quickly.
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
# Reads a file: its pixels (height, width, 3), and additional information.
Read: TypeAlias = Callable[[Any], tuple[Pixels, Any]]
Work: TypeAlias = tuple[Read | None, Sequence[Any], slice]  # reader (None: as before), sources, range of shared memory
Placed: TypeAlias = tuple[int, tuple[int, ...], Any]  # offset of the pixels in that range, their shape, information
Answer: TypeAlias = list[Placed | tuple[Pixels, Any] | RowError] | Exception
Decoded: TypeAlias = tuple[Pixels, Any] | RowError  # result of one file: pixels and information, or an error
MESSAGE_FILES = 8  # files per message
MESSAGES_AHEAD = 2  # messages queued per process, so that it never waits for the next one
READY = b"ready"
# With one decoder per core, the process that feeds the GPU must be scheduled first.
NICENESS = 10
ARENA = 2 << 30  # maximum bytes of shared memory; only pages that are written are allocated


class DecodersLostError(Exception):
    """No decoding process can be started here."""


@dataclass(eq=False)
class _Job:
    read: Read
    sources: Sequence[Any]
    answer: "Future[list[Decoded]]" = field(default_factory=Future)
    deaths: int = 0  # number of processes that died with it


@dataclass(eq=False)
class _Member:
    """A decoding process, its pipes, and its current reader."""

    process: "subprocess.Popen[bytes]"
    work: Connection
    answers: Connection
    read: Read | None = None


_Sent: TypeAlias = tuple[_Job, int | None]  # a job that was sent to a process, and the index of its cell


class Decoders:
    """Pool of processes that read and decode files, each served by one thread.

    A cell of `cell` bytes contains the pixels of one message; pixels that do not fit are sent through the pipe. A cell
    is free again when nothing refers to its pixels.
    """

    def __init__(self, count: int, cell: int, cells: int) -> None:
        self._cell, self._cells = cell, max(1, min(cells, ARENA // cell))
        # An unnamed file, in memory if the system supports it.
        if hasattr(os, "memfd_create"):
            self.file = os.memfd_create("msdscore-pixels")
        else:
            with TemporaryFile() as file:
                self.file = os.dup(file.fileno())
        os.ftruncate(self.file, cell * self._cells)
        self._map = mmap.mmap(self.file, cell * self._cells)
        self.free = deque(range(self._cells))
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock, self._threads, self.closed = Lock(), count, False
        self.members: set[_Member] = set()
        self.users = 0
        for _ in range(count):
            Thread(target=self._attend, name="msdscore-decoder", daemon=True).start()

    def submit(self, read: Read, sources: Sequence[Any]) -> "list[Future[list[Decoded]]]":
        """Submit files; return one future per message of several files, in order.

        Raises `DecodersLostError` here or in the futures if no process can be started.
        """
        jobs = [_Job(read, sources[start : start + MESSAGE_FILES]) for start in range(0, len(sources), MESSAGE_FILES)]
        with self._lock:
            if not self._threads:
                raise DecodersLostError
            for job in jobs:
                self._jobs.put(job)
        return [job.answer for job in jobs]

    def free_memory(self) -> None:
        """Release the shared memory if no pixels are in use."""
        if len(self.free) == self._cells:
            os.ftruncate(self.file, 0)
            os.ftruncate(self.file, self._cell * self._cells)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self.closed = True
            members = list(self.members)
        self._jobs.put(None)
        for member in members:
            with suppress(OSError):
                member.work.close()  # a process exits when its pipe is closed
        for member in members:
            try:
                member.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            with suppress(OSError):
                member.answers.close()

    def _attend(self) -> None:
        """Serve one process, and start a new one if it dies."""
        while (member := self._start()) is not None:
            sent: deque[_Sent] = deque()
            try:
                while self._fill(member, sent):
                    if sent:
                        answer = member.answers.recv()
                        self._resolve(sent.popleft(), answer)
                return
            except Exception:  # noqa: BLE001, the process has died
                self._recover(member, sent)
        with self._lock:
            self._threads -= 1
            if not self._threads:
                with suppress(Empty):
                    while (job := self._jobs.get_nowait()) is not None:
                        _refuse(job)

    def _start(self) -> _Member | None:
        """Start a process and wait until it is ready; None if that fails."""
        if self.closed:
            return None
        (theirs, work), (answers, back) = Pipe(duplex=False), Pipe(duplex=False)
        descriptors = (theirs.fileno(), back.fileno(), self.file)
        # The same import paths; one core per process, whatever libraries assume.
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-P",
            "-m",
            "msdscore_torch.feeding.processes",
            *map(str, descriptors),
            str(len(self._map)),
        ]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=os.environ | environment
            )
        except OSError:
            for pipe in (theirs, work, answers, back):
                pipe.close()
            return None
        theirs.close()
        back.close()
        member = _Member(process, work, answers)
        with self._lock:
            self.members.add(member)
            closed = self.closed
        try:
            ready = not closed and answers.recv() == READY
        except (EOFError, OSError):
            ready = False
        if not ready:
            self._end(member)
        return member if ready else None

    def _fill(self, member: _Member, sent: "deque[_Sent]") -> bool:
        """Send queued jobs to a process, and wait for one if it has none. False at the end."""
        while len(sent) < MESSAGES_AHEAD:
            try:
                job = self._jobs.get(block=not sent)
            except Empty:
                return True
            if job is None:
                self._jobs.put(None)  # for the other threads too
                return False
            if not (job.answer.running() or job.answer.set_running_or_notify_cancel()):
                continue
            cell = self.free.pop() if self.free else None  # the last one that was used: its pages exist
            sent.append((job, cell))
            try:
                member.work.send((None if member.read is job.read else job.read, job.sources, self._room(cell)))
                member.read = job.read
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001, pickling failed and nothing was sent
                reason = f"cannot be sent to a decoding process: {type(error).__name__}: {error}"
                self._resolve(sent.pop(), RuntimeError(reason))
        return True

    def _room(self, cell: int | None) -> slice:
        return slice(0, 0) if cell is None else slice(cell * self._cell, (cell + 1) * self._cell)

    def _resolve(self, sent: _Sent, answer: Answer) -> None:
        """Set the result of a job; its cell is free again when nothing refers to the pixels."""
        (job, cell), room = sent, None
        if cell is not None:
            # A separate array: views refer to it rather than to the whole map, so that it lives as long as they do.
            room = np.frombuffer(memoryview(self._map)[self._room(cell)], dtype=np.uint8)
            weakref.finalize(room, self.free.append, cell).atexit = False
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
            return
        images: list[Decoded] = []
        for image in answer:
            if isinstance(image, RowError) or len(image) == 2:
                images.append(image)
                continue
            assert room is not None, "pixels need a cell"
            begin, shape, information = image
            images.append((room[begin : begin + int(np.prod(shape))].reshape(shape), information))
        job.answer.set_result(images)

    def _recover(self, member: _Member, sent: "deque[_Sent]") -> None:
        """Requeue the jobs of a dead process; a file that has ended two processes becomes an error."""
        self._end(member)
        for number, (job, cell) in enumerate(sent):
            if cell is not None:
                self.free.append(cell)
            if self.closed:
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
        """Retry the files of a job in separate jobs, to find the one that ended a process."""
        parts = [_Job(job.read, [source], deaths=1) for source in job.sources]
        unfinished, lock = len(parts), Lock()

        def count(_: "Future[list[Decoded]]") -> None:
            nonlocal unfinished
            with lock:
                unfinished -= 1
                if unfinished:
                    return
            try:
                job.answer.set_result([image for part in parts for image in part.answer.result()])
            except (CancelledError, Exception) as error:  # noqa: BLE001, it is passed on
                job.answer.set_exception(error)

        for part in parts:
            part.answer.add_done_callback(count)
            self._jobs.put(part)

    def _end(self, member: _Member) -> None:
        member.process.kill()
        member.process.wait()
        for pipe in (member.work, member.answers):
            with suppress(OSError):
                pipe.close()
        with self._lock:
            self.members.discard(member)


def _refuse(job: _Job) -> None:
    with suppress(Exception):  # it was cancelled in the meantime
        job.answer.set_exception(DecodersLostError())


def run_worker(work: int, answers: int, memory: int, size: int) -> None:
    """Decode the work from one pipe and answer through another; `memory` is an open file of `size` bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends the others
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    os.dup2(2, 1)  # prints of libraries must not mix with the output of the parent
    back = Connection(answers, readable=False)
    shared = np.frombuffer(mmap.mmap(memory, size), dtype=np.uint8)
    jobs: SimpleQueue[Work | Exception] = SimpleQueue()
    # Read in a thread: if both sides only wrote into full pipes, they would deadlock.
    Thread(target=_listen, args=(Connection(work, writable=False), jobs), daemon=True).start()
    _send(back, READY)
    read: Read | None = None
    while True:
        work_or_error = jobs.get()
        if isinstance(work_or_error, Exception):
            _send(back, work_or_error)
            os._exit(1)
        new_read, sources, room = work_or_error
        read = new_read or read
        assert read is not None, "the first job has a reader"
        _send(back, _answer(read, sources, shared[room]))


def _listen(work: Connection, jobs: "SimpleQueue[Work | Exception]") -> None:
    """Queue work until the other side closes its end or dies; then exit."""
    try:
        while True:
            jobs.put(work.recv())
    except (EOFError, OSError):
        os._exit(0)
    except Exception as error:  # noqa: BLE001, unpickling failed; passed on to the parent
        jobs.put(RuntimeError(f"a decoding process cannot read its work: {type(error).__name__}: {error}"))


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
            pixels, information = read(source)
        except RowError as error:
            images.append(error)
        except Exception as error:  # noqa: BLE001, a bug is raised in the parent
            return RuntimeError(f"a decoding process failed on {str(source)[:200]}: {type(error).__name__}: {error}")
        else:
            if not pixels.size or used + pixels.size > room.size:
                images.append((pixels, information))
                continue
            room[used : used + pixels.size] = pixels.reshape(-1)
            images.append((used, pixels.shape, information))
            used += pixels.size
    return images


_pools: dict[tuple[int, int], Decoders] = {}
_pools_lock = Lock()


def borrow(count: int, cell: int) -> Decoders:
    """Return decoding processes, reused if possible; release them with `give_back`."""
    with _pools_lock:
        key = (count, cell)
        unused = [other for other, decoders in _pools.items() if other != key and not decoders.users]
        closing = [_pools.pop(other) for other in unused]
        if key not in _pools:
            _pools[key] = Decoders(count, cell, ARENA // cell)
        borrowed = _pools[key]
        borrowed.users += 1
    for decoders in closing:  # without the lock: it waits for processes to end
        decoders.close()
    return borrowed


def give_back(decoders: Decoders) -> None:
    """Release decoding processes; they are reused by the next run."""
    with _pools_lock:
        decoders.users -= 1
        if not decoders.users:
            decoders.free_memory()


def close_all() -> None:
    """End all decoding processes of this process; new ones are started when needed."""
    with _pools_lock:
        closing = list(_pools.values())
        _pools.clear()
    for decoders in closing:
        decoders.close()


def _forget() -> None:
    """Reset after a fork: the child has neither the threads nor the processes, and the lock may be locked."""
    global _pools_lock
    _pools_lock = Lock()
    _pools.clear()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
if __name__ == "__main__":  # a decoding process
    run_worker(*map(int, sys.argv[1:5]))
