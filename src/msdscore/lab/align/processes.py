"""Several processes that train one model: their ranks, and tensors of all of them with their gradients."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from msdscore.core.embeddings import widen
from msdscore.encoders.base import Embeddings

_TIMEOUT = timedelta(hours=6)  # others wait while the first process fills a cache


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process among all; a run without `torchrun` is a world of one."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0


ALONE = World()


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the processes that `torchrun` describes in the environment, and leave them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process: each process of a machine takes the one of its local rank."""
    if str(device) == "cuda" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


class _Gather(torch.autograd.Function):
    """Rows of all processes in order of rank; gradients of all processes come back to the rows' owner.

    With `torch.distributed.nn.functional.all_gather` in its place two processes over gloo do not learn what one learns.
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
    """Rows of all processes in order of rank; every process must bring the same number of them.

    Every process computes the same loss of all rows. Its gradient comes back once from each process, and
    `average_gradients` divides by their number: what remains is the gradient of one process with all rows.
    """
    if world.size == 1:
        return rows
    if rows.dtype == torch.bool:
        return gather_rows(rows.to(torch.uint8), world).bool()
    return _Gather.apply(rows, world)  # type: ignore[no-untyped-call]


def gather_embeddings(side: Embeddings, world: World) -> Embeddings:
    """Aligned points of all processes, padded to the widest."""
    if world.size == 1:
        return side
    width = most(side.mask.shape[1], world, side.mask.device)
    return Embeddings(
        gather_rows(widen(side.points, width), world),
        gather_rows(widen(side.mask, width), world),
        gather_rows(side.pooled, world),
        layout=(),
    )


def most(value: int, world: World, device: torch.device) -> int:
    """The largest of the processes' values."""
    if world.size == 1:
        return value
    largest = torch.tensor(value, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def total(value: Tensor, world: World) -> Tensor:
    """The sum of the processes' values, without gradients."""
    sums = value.detach().clone()
    if world.size > 1:
        dist.all_reduce(sums)
    return sums


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Give every process the mean of all gradients; heads are light, so one message carries them all."""
    if world.size == 1:
        return
    every = list(parameters)
    # A term may have had nothing to do in one process; a parameter that no process used stays untouched.
    used = torch.tensor([float(parameter.grad is not None) for parameter in every], device=every[0].device)
    dist.all_reduce(used)
    moved = [parameter for parameter, count in zip(every, used.tolist(), strict=True) if count]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moved]
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat)
    flat /= world.size
    for parameter, part in zip(moved, flat.split([part.numel() for part in parts]), strict=True):
        parameter.grad = part.view_as(parameter).clone()


def wait(world: World) -> None:
    """Block until all processes have come here."""
    if world.size > 1:
        dist.barrier()


def broadcast(value: float, world: World, device: torch.device) -> float:
    """The first process's value, in every process."""
    if world.size == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)
