"""The last stages of the image network of `mini`, trained with the heads at a rate of their own."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from msdscore.encoders.aligned.towers.base import Features, Points
from msdscore.encoders.mini.lite2 import MIDDLE, STAGES, Lite2


class TunedTrunk(nn.Module):
    """Own copies of the last `count` stages and of the last convolution; names are those of the whole network."""

    def __init__(self, network: Lite2, count: int, *, grid: int) -> None:
        super().__init__()
        self._first = len(STAGES) - count
        own = range(self._first, len(STAGES))
        self.stages = nn.ModuleDict({str(number): deepcopy(network.stages[number]) for number in own})
        self.head = deepcopy(network.head)
        self.requires_grad_(True)
        self._grid = grid
        # In a tuple, so that what stays frozen is no part of this module.
        self._frozen = (network,)

    def forward(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Features of pixels with values from 0 to 255, with a history from the first tuned stage on."""
        (network,) = self._frozen
        x = middle = (pixels - 127) / 128
        with torch.no_grad():
            x = network.stem(x.contiguous(memory_format=torch.channels_last))
            for number in range(self._first):
                x = network.stages[number](x)
                middle = x if number == MIDDLE - 1 else middle
        for number in range(self._first, len(STAGES)):
            x = self.stages[str(number)](x)
            middle = x if number == MIDDLE - 1 else middle
        maps = [part.float() for part in (middle, x, self.head(x))]
        cells = torch.cat([_resized(part, self._grid) for part in maps], dim=1).flatten(2).mT
        means = torch.cat([part.mean(dim=(2, 3)) for part in maps], dim=1).unsqueeze(1)
        return Features(_all_real(cells), _all_real(means), None, ())

    def __deepcopy__(self, memo: dict[int, object]) -> "TunedTrunk":
        """A copy with weights of its own over the same frozen network."""
        (network,) = self._frozen
        found = TunedTrunk(network, len(STAGES) - self._first, grid=self._grid)
        found.load_state_dict(self.state_dict())
        found.to(self.head.weight.device)
        return found


def _resized(
    part: Float[Tensor, "batch channels rows columns"], grid: int
) -> Float[Tensor, "batch channels grid grid"]:
    """Bilinear interpolation as two products: the library's has no gradient that adds up in a fixed order on CUDA."""
    down, across = (_weights(size, grid, part.device) for size in part.shape[2:])
    with torch.autocast(part.device.type, enabled=False):
        return down @ part @ across.mT


@cache
def _weights(size: int, grid: int, device: torch.device) -> Float[Tensor, "grid size"]:
    """What every cell of a grid takes from each of `size` places in a row.

    >>> _weights(4, 2, torch.device("cpu"))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """
    places = torch.eye(size, device=device).unsqueeze(0)
    return interpolate(places, grid, mode="linear", align_corners=False)[0].mT.contiguous()


def _all_real(vectors: Float[Tensor, "batch points dim"]) -> Points:
    return Points(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))


def tuned_tensors(weights: Mapping[str, Tensor], *, prefix: str = "trunk.") -> dict[str, Tensor]:
    """The tensors of a tuned trunk among all trained ones, by their names in the whole network."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
