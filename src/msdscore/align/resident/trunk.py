"""The last stages of the image network of `mini`, trained with the heads at a rate of their own."""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from msdscore.encoders.aligned.towers.base import Features
from msdscore.encoders.mini.lite2 import MIDDLE, STAGES, Lite2, Maps

Arrange = Callable[[Maps], Features]


class TunedTrunk(nn.Module):
    """Own copies of the last `count` stages and of the last convolution; names are those of the whole network."""

    def __init__(self, network: Lite2, count: int, arrange: Arrange) -> None:
        super().__init__()
        self._first = len(STAGES) - count
        own = range(self._first, len(STAGES))
        self.stages = nn.ModuleDict({str(number): deepcopy(network.stages[number]) for number in own})
        self.head = deepcopy(network.head)
        self.requires_grad_(True)
        # In a tuple, so that what stays frozen is no part of this module.
        self._frozen = (network, arrange)

    def forward(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Features of pixels with values from 0 to 255, with a history from the first tuned stage on."""
        network, arrange = self._frozen
        x = middle = (pixels - 127) / 128
        with torch.no_grad():
            x = network.stem(x.contiguous(memory_format=torch.channels_last))
            for number in range(self._first):
                x = network.stages[number](x)
                middle = x if number == MIDDLE - 1 else middle
        for number in range(self._first, len(STAGES)):
            x = self.stages[str(number)](x)
            middle = x if number == MIDDLE - 1 else middle
        return arrange((middle, x, self.head(x)))

    def __deepcopy__(self, memo: dict[int, object]) -> "TunedTrunk":
        """A copy with weights of its own over the same frozen network."""
        network, arrange = self._frozen
        found = TunedTrunk(network, len(STAGES) - self._first, arrange)
        found.load_state_dict(self.state_dict())
        found.to(self.head.weight.device)
        return found


def tuned_tensors(weights: Mapping[str, Tensor], *, prefix: str = "trunk.") -> dict[str, Tensor]:
    """The tensors of a tuned trunk among all trained ones, by their names in the whole network."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
