"""The thread that launches the work of a GPU.

Threads that launch concurrently switch the GIL every few kernels, and all of them finish later. So each GPU has one
launching thread with a queue of sections: functions that encode, measure and start the copy back, and never wait for
the device. Callers wait for the results in their own threads. No lock is held while a section runs, so that sections
cannot deadlock, whatever locks an encoder has.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch.backends import cuda as backends

Result = TypeVar("Result")
Wait = Callable[[], object]
# Maximum number of sections pending on a GPU. Its queue has room for about 1,000 kernels: a launch into a full queue
# blocks inside the driver while it holds the GIL.
IN_FLIGHT = 2
_here = threading.local()


def _start_mark() -> Wait:
    """Mark all work launched so far; the returned function waits for it without spinning or holding the GIL."""
    if not torch.cuda.is_initialized():
        return lambda: None
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event.synchronize


class Launcher:
    """The launching thread of one GPU, and its queue.

    Before a section runs, the thread waits until less than `in_flight` earlier ones are pending on the device; `mark`
    returns a function that waits for all work launched so far.
    """

    def __init__(
        self, device: torch.device, *, in_flight: int = IN_FLIGHT, mark: Callable[[], Wait] = _start_mark
    ) -> None:
        self.in_flight = in_flight
        self._device, self._mark, self._pending = device, mark, deque[Wait]()
        self._queue = ThreadPoolExecutor(1, f"msdscore-{device}", initializer=self._enter)

    def submit(self, section: Callable[[], Result]) -> "Future[Result]":
        """Queue a section, which will run without gradients, and on the current stream of the calling thread."""
        stream = torch.cuda.current_stream(self._device) if torch.cuda.is_initialized() else None
        return self._queue.submit(self._launch, section, stream)

    def run(self, section: Callable[[], Result]) -> Result:
        """Return what a section returns, or raise its error; in a launching thread it runs at once."""
        return section() if is_launching() else self.submit(section).result()

    def complete(self, section: Callable[[], Callable[[], Result]]) -> Result:
        """Run a section, and call the function that it returns here: that one may wait for the device."""
        return self.run(section)()

    def _enter(self) -> None:
        _here.is_launching = True
        if torch.cuda.is_available():
            torch.cuda.set_device(self._device)

    def _launch(self, section: Callable[[], Result], stream: torch.cuda.Stream | None) -> Result:
        while len(self._pending) >= self.in_flight:
            self._pending.popleft()()
        context: AbstractContextManager[Any] = nullcontext() if stream is None else torch.cuda.stream(stream)
        with context, torch.no_grad(), without_cudnn_attention():
            try:
                return section()
            finally:
                self._pending.append(self._mark())


def is_launching() -> bool:
    """Whether the current thread is a launching thread, which never waits for its device."""
    return getattr(_here, "is_launching", False)


def launcher(device: torch.device) -> Launcher:
    """Return the launching thread of a GPU."""
    return _launcher(device.index or 0)


@cache
def _launcher(index: int) -> Launcher:
    return Launcher(torch.device("cuda", index))


_flags = threading.Lock()  # never held while anything else runs
_users, _disabled = 0, False


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Context in which torch does not choose the attention of cuDNN, unless no other is enabled; reentrant.

    Every call of it costs the host half a millisecond. The setting is process-wide: it is restored when the last thread
    leaves the context.
    """
    global _users, _disabled
    with _flags:
        if not _users:
            others = backends.math_sdp_enabled() and (
                backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled()
            )
            _disabled = others and backends.cudnn_sdp_enabled()
            if _disabled:
                backends.enable_cudnn_sdp(False)
        _users += 1
    try:
        yield
    finally:
        with _flags:
            _users -= 1
            if not _users and _disabled:
                backends.enable_cudnn_sdp(True)


def _forget() -> None:
    """Reset after a fork: the child has none of the threads, and the lock may be locked."""
    global _flags, _users, _here
    _launcher.cache_clear()
    _here, _flags = threading.local(), threading.Lock()
    if _users and _disabled:
        backends.enable_cudnn_sdp(True)
    _users = 0


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
