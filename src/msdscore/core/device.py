"""Work and tensors on a GPU: begun by one thread at a time, and sent and fetched with as little waiting as can be."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import BoundedSemaphore, RLock

import torch
from torch import Tensor
from torch.backends import cuda as backends

_lock = RLock()
# Batches that a GPU may have to do at a time. Its queue holds about 1,000 kernels: whoever launches into a full one
# waits within the driver, and holds the interpreter meanwhile.
IN_FLIGHT = 2


@cache
def _room(device: torch.device) -> BoundedSemaphore:
    return BoundedSemaphore(IN_FLIGHT)


@contextmanager
def in_flight(device: torch.device) -> Iterator[None]:
    """From before a batch is launched until its numbers have arrived; waits while a GPU has `IN_FLIGHT` to do."""
    with _room(device) if device.type == "cuda" else nullcontext():
        yield


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Within it no other thread of this process launches anything on a GPU; it may be entered again within itself.

    Threads that launch side by side take the interpreter from each other at every few kernels, and each of them ends
    later for it. Whoever waits for the device does so outside. On a CPU nothing is held.
    """
    with _lock if device.type == "cuda" else nullcontext(), _without_cudnn(device):
        yield


@contextmanager
def _without_cudnn(device: torch.device) -> Iterator[None]:
    """Attention by other kernels, where torch may choose them: every call of cuDNN's costs the host half a millisecond.

    The choice is one of the whole process, and safe to change for a while because of the lock.
    """
    others = backends.math_sdp_enabled() and (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled())
    if device.type != "cuda" or not others or not backends.cudnn_sdp_enabled():
        yield
        return
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(True)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a GPU takes it from pinned memory when its turn comes.

    A copy from ordinary memory would wait for everything that the device has to do before.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Tensors on their way to the CPU; their numbers are there after `wait`."""

    tensors: tuple[Tensor, ...]
    done: tuple[torch.cuda.Event, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors, when the devices have done what they were asked by then; the processor is left to others."""
        for event in self.done:
            event.synchronize()
        return self.tensors


def fetching(*tensors: Tensor) -> Fetch:
    """Begin to bring tensors to the CPU: nothing that a device is asked to do afterwards is waited for.

    >>> fetching(torch.tensor([1, 2])).wait()
    (tensor([1, 2]),)
    """
    arriving = tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        if tensor.device.type == "cuda"
        else tensor.cpu()
        for tensor in tensors
    )
    events = []
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        with torch.cuda.device(device):
            events.append(torch.cuda.Event(blocking=True))
            events[-1].record()
    return Fetch(arriving, tuple(events))
