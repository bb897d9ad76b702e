"""Work cut into blocks whose shape depends on the items alone, so that no item's number depends on its neighbours.

Reductions of floating point numbers depend on the padded width they run over. A block therefore holds items of one
size class and is padded to that class, never to the longest item that happens to be in the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

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

    Above 128 to a sixteenth: pictures have so many points, mostly one number of them, and padding costs a copy.

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
    rows = (values if block.whole else values[block.items])[:, : block.width]
    missing = block.width - rows.shape[1]
    return pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing)) if missing else rows


def place(
    target: Float[Tensor, "batch points"], items: Int[Tensor, " items"], rows: Float[Tensor, "items width"]
) -> None:
    """Write rows to their items, without the padding of their block."""
    width = min(rows.shape[1], target.shape[1])
    target[items, :width] = rows[:, :width]


def for_each(work: Callable[[Block], None], parts: Iterator[Block], device: torch.device) -> None:
    """Do the work for every block; large items side by side on a CPU whose batched products take one item at a time."""
    workers = torch.get_num_threads()
    # MKL spreads a batched product over all cores by itself; other libraries run it item by item.
    alone = device.type != "cpu" or workers == 1 or torch.backends.mkl.is_available()
    shared = []
    for part in parts:
        if alone or part.width <= FEW_POINTS:
            work(part)
        else:
            shared.append(part)
    if shared:
        _share_out(work, shared, workers)


def _share_out(work: Callable[[Block], None], parts: Sequence[Block], workers: int) -> None:
    try:
        # Each worker keeps to one core: the number is the thread's own, but new threads copy the last one set.
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, parts):
                pass
    finally:
        if torch.get_num_threads() != workers:  # setting it changes how libraries split products
            torch.set_num_threads(workers)
