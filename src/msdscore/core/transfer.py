"""Tensors between the host and a GPU, so that the host waits as seldom and as quietly as it can."""

from dataclasses import dataclass

import torch
from torch import Tensor


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

    held: tuple[Tensor, ...]
    done: tuple[torch.cuda.Event, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors, when the devices have done what they were asked by then; the processor is left to others."""
        for one in self.done:
            one.synchronize()
        return self.held


def fetching(*tensors: Tensor) -> Fetch:
    """Begin to bring tensors to the CPU: nothing that a device is asked to do afterwards is waited for."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return Fetch(tuple(_held(tensor) for tensor in tensors), tuple(map(_done, devices)))


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, with one wait for all of them.

    >>> fetched(torch.tensor([1, 2]))
    (tensor([1, 2]),)
    """
    return fetching(*tensors).wait()


def _done(device: torch.device) -> torch.cuda.Event:
    with torch.cuda.device(device):
        event = torch.cuda.Event(blocking=True)
        event.record()
    return event


def _held(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
