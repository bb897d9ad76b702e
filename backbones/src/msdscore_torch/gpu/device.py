"""Asynchronous transfers to and from a GPU, and threads for a CPU."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SHARE = 8  # of its memory for one block of a computation


def count() -> int:
    """Number of GPUs that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def described(device: torch.device) -> str:
    """Name, memory and CUDA version of a GPU, in words."""
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30
    return f"{device}, {torch.cuda.get_device_name(device)}, {memory:.0f} GiB, CUDA {torch.version.cuda}"


def sent_values(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Move values of the host to a device."""
    return sent(torch.from_numpy(np.require(values, requirements=("C", "W"))), device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; a GPU copies it asynchronously from pinned memory.

    A copy from pageable memory would wait for all pending work of the device.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


def fetching(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Start copying tensors to the CPU; the returned function waits (without spinning) and returns the copies.

    It does not wait for work that is launched afterwards.

    >>> fetching(torch.tensor([1, 2]))()
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

    def wait() -> tuple[Tensor, ...]:
        for event in events:
            event.synchronize()
        return arriving

    return wait


def memory_share(device: torch.device) -> int:
    """Bytes of a GPU that one block of a computation may take: few large launches, and room for the encoder."""
    return int(torch.cuda.get_device_properties(device).total_memory) // _SHARE


Item = TypeVar("Item")
Result = TypeVar("Result")


cpu_threads = torch.get_num_threads


def map_each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply a function to every item, each in one thread, as many at a time as torch has threads.

    >>> map_each(lambda number: number + torch.get_num_threads(), [1, 2])
    [2, 3]
    """
    if cpu_threads() == 1:
        return [function(item) for item in items]
    pool = _single_threads(cpu_threads())
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def as_here(item: Item) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):  # modes are thread-local
            return function(item)

    waiting = [pool.submit(as_here, item) for item in items]
    wait(waiting)  # none may continue after an error of another
    return [done.result() for done in waiting]


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """Threads whose libraries use no further threads; cached, since a new torch thread copies the last number set."""
    pool, met = ThreadPoolExecutor(count, "msdscore-core"), Barrier(count)

    def begin() -> None:
        met.wait()
        torch.get_num_threads()  # a thread reads the process-wide number on its first call, so call before setting
        torch.set_num_threads(1)

    wait([pool.submit(begin) for _ in range(count)])
    torch.set_num_threads(count)
    return pool


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_single_threads.cache_clear)  # a child has none of its parent's threads
