"""Which points the components of a mixture start from, the same for an item wherever it is fitted.

A start is a list of point numbers: the first half begins the components, the second half is the reserve from which
a component that dies is seeded anew. With fewer points than seeds the list begins again from its front.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Init = Literal["sample", "spread"]
Seeds = Int[Tensor, "batch seeds"]
# Similarities of one chosen point per item to all points of that item.
Similarities = Callable[[Int[Tensor, "batch 1"]], Float[Tensor, "batch 1 points"]]

# Similarities closer than this are a tie, and the smaller index wins: rounding must not choose between devices.
NEAR_TIE = 1e-4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, splitmix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def start_points(
    similarities: Similarities,
    mask: Bool[Tensor, "batch points"],
    keys: Int[Tensor, " batch"],
    *,
    init: Init,
    seed: int,
    count: int,
) -> Seeds:
    """`count` point numbers per item, drawn by key (`sample`) or farthest first (`spread`)."""
    if init == "sample":
        return sample(mask, keys, seed=seed, count=count)
    return spread(similarities, mask, count=count)


def sample(mask: Bool[Tensor, "batch points"], keys: Int[Tensor, " batch"], *, seed: int, count: int) -> Seeds:
    """A draw without replacement that depends on (seed, key, number of the point) alone.

    Integers decide, so neither device nor dtype nor padding nor the rest of the batch can change the draw.

    >>> sample(torch.tensor([[True, True, True, False]]), torch.tensor([7]), seed=0, count=4)
    tensor([[2, 1, 0, 2]])
    """
    numbers = torch.arange(mask.shape[1], device=mask.device)
    seeded = _mix(keys.to(torch.int64) ^ _mix(torch.full_like(keys, seed, dtype=torch.int64)))
    priority = _mix(seeded.unsqueeze(1) + numbers * _GOLDEN)
    priority = priority.masked_fill(~mask, torch.iinfo(torch.int64).max)
    return _cycle(priority.argsort(dim=1, stable=True), mask, count)


def spread(similarities: Similarities, mask: Bool[Tensor, "batch points"], *, count: int) -> Seeds:
    """Farthest first: the first real point, then each time the point least like all chosen ones."""
    distinct = min(count, mask.shape[1])
    chosen = [mask.to(torch.uint8).argmax(dim=1, keepdim=True)]
    nearest = similarities(chosen[0]).squeeze(1)
    for _ in range(distinct - 1):
        chosen.append(_farthest(nearest, mask))
        nearest = torch.maximum(nearest, similarities(chosen[-1]).squeeze(1))
    return _cycle(torch.cat(chosen, dim=1), mask, count)


def _farthest(nearest: Float[Tensor, "batch points"], mask: Bool[Tensor, "batch points"]) -> Int[Tensor, "batch 1"]:
    """The first point whose similarity to its nearest chosen one is smallest, up to near-ties."""
    open_points = nearest.masked_fill(~mask, torch.inf)
    lowest = open_points.amin(dim=1, keepdim=True)
    return (open_points <= lowest + NEAR_TIE).to(torch.uint8).argmax(dim=1, keepdim=True)


def _cycle(order: Int[Tensor, "batch some"], mask: Bool[Tensor, "batch points"], count: int) -> Seeds:
    """The first `count` of an order over the real points, which begins again where the real points end."""
    real = mask.sum(dim=1, keepdim=True).clamp(min=1, max=order.shape[1])
    places = torch.arange(count, device=order.device).unsqueeze(0) % real
    return order.gather(1, places)


def _mix(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """splitmix64's finaliser: 64-bit integers in, well mixed 64-bit integers out."""
    number = number + _GOLDEN
    number = (number ^ _shift(number, 30)) * _MIX_1
    number = (number ^ _shift(number, 27)) * _MIX_2
    return number ^ _shift(number, 31)


def _shift(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Logical shift to the right: torch's own copies the sign bit."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
