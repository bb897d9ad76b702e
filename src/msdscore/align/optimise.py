"""Learning rate, optimiser and moving average of a run."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from msdscore.align.recipe import TrainSpec


def learning_rate(step: int, *, steps: int, spec: TrainSpec) -> float:
    """Linear warm-up, then a cosine down to zero.

    >>> spec = TrainSpec(lr=1.0, warmup=0.5)
    >>> [round(learning_rate(step, steps=4, spec=spec), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = round(spec.warmup * steps)
    if step < warm:
        return spec.lr * (step + 1) / warm
    return spec.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def make_optimiser(module: nn.Module, spec: TrainSpec) -> torch.optim.AdamW:
    """AdamW; only matrices decay, never temperatures, biases and norms."""
    matrices = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    rest = [parameter for parameter in module.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=spec.lr, betas=(0.9, spec.beta2))


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set it for all groups."""
    for group in optimiser.param_groups:
        group["lr"] = value


class MovingAverage:
    """Weights averaged over steps, :math:`a \\leftarrow d a + (1-d) w`; with decay 0 they are the weights."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Take in the weights after step number `step`; early steps count more, so that the start is forgotten."""
        decay = min(self._decay, (1 + step) / (10 + step)) if self._decay else 0.0
        for name, value in module.state_dict().items():
            self.weights[name].lerp_(value, 1 - decay) if decay else self.weights[name].copy_(value)

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Take averages from a checkpoint."""
        for name, value in weights.items():
            self.weights[name].copy_(value)
