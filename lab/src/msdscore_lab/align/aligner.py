"""Trainable parts of a run (heads, learned temperatures, the visual prefix), their optimiser and their average."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from msdscore.core.arrays import Float
from msdscore.errors import ConfigError
from msdscore_lab.align.batches import TrainingBatch
from msdscore_lab.align.recipe import Recipe, TrainSpec
from msdscore_torch.aligned.heads import AlignedHeads, SideDims
from msdscore_torch.tensors import Features


class Aligner(nn.Module):
    """Trainable parts of a run; the frozen towers and the frozen language model are not among them."""

    # Initial inverse temperature of each term; None: 1 / `loss.temperature`.
    SCALES: ClassVar[dict[str, float | None]] = {"contrastive": None}

    def __init__(self, recipe: Recipe, image: SideDims, text: SideDims, *, language_width: int = 0) -> None:
        super().__init__()
        loss = recipe.loss
        self._max_scale = loss.max_scale
        self.heads = AlignedHeads(recipe.heads, image, text)
        used = {name: initial for name, initial in self.SCALES.items() if loss.weights[name]}
        initial_scales = {name: initial or 1 / loss.temperature for name, initial in used.items()}
        self.log_scales = scalar_parameters({name: math.log(initial) for name, initial in initial_scales.items()})
        self.prefix: nn.Linear | None = None
        if language_width and recipe.lm.prefix == "linear":
            self.prefix = nn.Linear(recipe.heads.dim, language_width)
        elif language_width and recipe.heads.dim != language_width:
            raise ConfigError(
                f"lm.prefix 'head' needs heads.dim to be the language model's width {language_width}, "
                f"got {recipe.heads.dim}"
            )

    def image_features(self, batch: TrainingBatch) -> Features:
        """Inputs of the image head: the features of the frozen tower."""
        if batch.images is None:
            raise AssertionError("a batch without image features")
        return batch.images

    def scale(self, name: str) -> Float[Tensor, ""]:
        """Return the inverse of the learned temperature of a term."""
        return self.log_scales[name].exp()

    def scaled_parameters(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return groups of parameters, each with its learning rate as a factor of `train.lr`."""
        return [(list(self.parameters()), 1.0)]

    @torch.no_grad()
    def limit_scales(self) -> None:
        """Clip the scales to `loss.max_scale`; the parameter is clipped, so that its gradient does not vanish."""
        for parameter in self.log_scales.values():
            parameter.clamp_(max=math.log(self._max_scale))


def scalar_parameters(values: Mapping[str, float]) -> nn.ParameterDict:
    """Return trainable scalars with these initial values."""
    return nn.ParameterDict({name: nn.Parameter(torch.tensor(value)) for name, value in values.items()})


def learning_rate(step: int, *, steps: int, spec: TrainSpec) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine decay to zero.

    >>> spec = TrainSpec(lr=1.0, warmup=0.5)
    >>> [round(learning_rate(step, steps=4, spec=spec), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warmup_steps = round(spec.warmup * steps)
    if step < warmup_steps:
        return spec.lr * (step + 1) / warmup_steps
    return spec.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def make_optimiser(aligner: Aligner, spec: TrainSpec) -> torch.optim.AdamW:
    """Return AdamW with weight decay of matrices only, not of temperatures, biases and norms."""
    groups = [
        {
            "params": [parameter for parameter in parameters if (parameter.ndim > 1) == decays],
            "weight_decay": decay,
            "lr_factor": factor,
        }
        for parameters, factor in aligner.scaled_parameters()
        for decays, decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=spec.lr, betas=(0.9, spec.beta2))


def moving_average(module: nn.Module, decay: float) -> AveragedModel:
    r"""The module with weights averaged over steps, :math:`a \leftarrow d a + (1-d) w`; decay 0 copies the weights.

    :math:`d` grows as :math:`(1+n)/(10+n)` up to `decay`, so that the initial weights are forgotten quickly.
    """

    @torch.no_grad()
    def update(
        averaged: tuple[Tensor, ...] | list[Tensor], current: tuple[Tensor, ...] | list[Tensor], count: Any
    ) -> None:
        step_decay = min(decay, (1 + int(count)) / (10 + int(count))) if decay else 0.0
        torch._foreach_lerp_(list(averaged), list(current), 1 - step_decay)

    average = AveragedModel(module, multi_avg_fn=update).requires_grad_(False).eval()
    # The count is read at every step; on the CPU this does not wait for the GPU.
    average.n_averaged = average.n_averaged.cpu()
    return average
