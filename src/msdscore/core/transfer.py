"""Tensors between the host and a GPU, so that the host waits as seldom and as quietly as it can."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a GPU takes it from pinned memory when its turn comes.

    A copy from ordinary memory would wait for everything that the device has to do before.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, with one wait for all of them; the processor is left to others meanwhile."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    held = tuple(_held(tensor) for tensor in tensors)
    for device in devices:
        with torch.cuda.device(device):
            done = torch.cuda.Event(blocking=True)
            done.record()
            done.synchronize()
    return held


def _held(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
