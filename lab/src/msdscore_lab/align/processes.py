"""Distributed training: ranks, and collective operations with gradients."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_TIMEOUT = timedelta(hours=6)  # the others wait while the first process builds a cache


@dataclass(frozen=True, slots=True)
class World:
    """Rank of this process and number of processes; a run without `torchrun` has one process."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Initialise the process group of `torchrun`, if there is one, and destroy it on exit."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """Return the GPU of this process, by its local rank."""
    if str(device) == "cuda" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


class _Gather(torch.autograd.Function):
    """Gather rows of all processes in order of rank; the backward pass sums the gradients over all processes.

    With `torch.distributed.nn.functional.all_gather`, two gloo processes do not compute the same gradients as one.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World) -> Tensor:
        ctx.world, ctx.count = world, rows.shape[0]
        parts = [torch.empty_like(rows) for _ in range(world.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        start = ctx.world.rank * ctx.count
        return total[start : start + ctx.count], None


def gather_rows(rows: Tensor, world: World) -> Tensor:
    """Gather rows of all processes in order of rank; every process must pass the same number of rows.

    Every process computes the same loss of all rows. The backward pass sums its gradient over processes,
    and `average_gradients` divides by their number, so the result equals that of one process with all rows.
    """
    if world.size == 1:
        return rows
    return _Gather.apply(rows, world)  # type: ignore[no-untyped-call]


def sum_over_processes(value: Tensor, world: World) -> Tensor:
    """Return the sum over processes, without gradients."""
    sums = value.detach().clone()
    if world.size > 1:
        dist.all_reduce(sums)
    return sums


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Average the gradients over processes; heads are small, so one all-reduce is sufficient."""
    if world.size == 1:
        return
    all_parameters = list(parameters)
    # A term may be unused in one process; a parameter that no process used gets no gradient.
    use_counts = torch.tensor(
        [float(parameter.grad is not None) for parameter in all_parameters], device=all_parameters[0].device
    )
    dist.all_reduce(use_counts)
    trained = [parameter for parameter, count in zip(all_parameters, use_counts.tolist(), strict=True) if count]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat)
    flat /= world.size
    for parameter, part in zip(trained, flat.split([part.numel() for part in parts]), strict=True):
        parameter.grad = part.view_as(parameter).clone()


def wait(world: World) -> None:
    """Block until all processes have reached this point."""
    if world.size > 1:
        dist.barrier()


def broadcast(value: float, world: World, device: torch.device) -> float:
    """Return the first process's value in every process."""
    if world.size == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)
