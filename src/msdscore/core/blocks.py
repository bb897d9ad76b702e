"""Work cut into blocks whose shape depends on the items alone, so that no item's number depends on its neighbours.

Reductions of floating point numbers depend on the padded width they run over. A block therefore holds items of one
size class and is padded to that class, never to the longest item that happens to be in the batch.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from threading import Barrier

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from msdscore.core.embeddings import widen

# Bytes one block may take while it is worked on: on a CPU some cache-friendly items for every core.
BLOCK_BYTES = 64 << 20
# Work on so few points is over before another thread has taken it (measured; see docs/performance.md).
FEW_POINTS = 32
# On a GPU a share of its memory: few large launches, and room for the encoder.
GPU_SHARE = 8


@dataclass(frozen=True, slots=True)
class Block:
    """Some items of a batch and the width they are padded to; `whole` when it is the batch as it stands."""

    items: Int[Tensor, " items"]
    width: int
    whole: bool


def widths(mask: Bool[Tensor, "batch points"]) -> Int[Tensor, " batch"]:
    """The size class of an item: the end of its last real point, rounded up to a quarter of the power of two below it.

    Above 128 to a sixteenth: images have so many points, mostly one number of them, and padding costs a copy.

    >>> widths(torch.tensor([[True, True, False], [True, False, False]]))
    tensor([4, 4])
    """
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    ends = (mask * places).amax(dim=1).clamp_min(1)
    power = 2 ** (ends - 1).clamp_min(1).to(torch.float64).log2().floor().to(torch.int64)
    steps = torch.where(power < 128, power // 4, power // 16).clamp_min(4)
    return (ends + steps - 1) // steps * steps


def blocks(classes: Int[Tensor, " items"], bytes_per_item: Callable[[int], int]) -> Iterator[Block]:
    """Blocks over all items, given their size classes, each within the memory that one block may take."""
    here, room = classes.cpu(), block_bytes(classes.device)
    for width in here.unique().tolist():
        items = (here == width).nonzero().squeeze(1).to(classes.device)
        for part in items.split(max(1, room // bytes_per_item(width))):
            yield Block(part, width, whole=len(part) == len(here))


def block_bytes(device: torch.device) -> int:
    """How much memory one block may take on a device; it bounds the memory of a run, and changes no number."""
    if device.type != "cuda":
        return BLOCK_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory) // GPU_SHARE


def cut(values: Shaped[Tensor, "batch points *rest"], block: Block) -> Shaped[Tensor, "items width *rest"]:
    """The block's rows of a padded tensor, cropped or padded with zeros to the block's width."""
    return widen((values if block.whole else values[block.items])[:, : block.width], block.width)


def place(
    target: Float[Tensor, "batch points"], items: Int[Tensor, " items"], rows: Float[Tensor, "items width"]
) -> None:
    """Write rows to their items, without the padding of their block."""
    width = min(rows.shape[1], target.shape[1])
    target[items, :width] = rows[:, :width]


def for_each(work: Callable[[Block], None], parts: Iterator[Block], device: torch.device) -> None:
    """Do the work for every block; on a CPU each block by one thread, large items side by side.

    A library that shares one product out over threads adds in another order for every number of threads and of items.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        for part in parts:
            work(part)
        return
    pool, waiting = _single_threads(threads), []
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def as_here(piece: Block) -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):  # each thread has its own modes
            work(piece)

    for part in parts:
        pieces = _pieces(part, threads) if part.width > FEW_POINTS else [part]
        waiting += [pool.submit(as_here, piece) for piece in pieces]
    wait(waiting)  # none may go on writing after an error of another
    for done in waiting:
        done.result()


def _pieces(part: Block, threads: int) -> Iterator[Block]:
    """The block in as many pieces as there are threads."""
    if len(part.items) < threads:
        yield part
        return
    for items in part.items.tensor_split(threads):
        yield Block(items, part.width, whole=False)


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """Threads whose libraries use no further ones; kept, for a new thread of torch copies the last number set."""
    pool, met = ThreadPoolExecutor(count, "msdscore-core"), Barrier(count)

    def begin() -> None:
        met.wait()
        torch.get_num_threads()  # a thread takes the number of the process at its first look, so look before setting
        torch.set_num_threads(1)

    wait([pool.submit(begin) for _ in range(count)])
    torch.set_num_threads(count)
    return pool


os.register_at_fork(after_in_child=_single_threads.cache_clear)  # a child has none of its parent's threads
