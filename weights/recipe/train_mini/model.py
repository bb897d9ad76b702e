"""The trainable parts of `mini`: heads, zeros of log-odds, and the last stages of the image network."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from msdscore.core.arrays import Float
from msdscore_lab.align.aligner import Aligner, scalar_parameters
from msdscore_lab.align.batches import TrainingBatch
from msdscore_torch.aligned.heads import SideDims
from msdscore_torch.aligned.lite2 import MIDDLE, STAGES, Lite2
from msdscore_torch.tensors import Features
from train_mini.batches import ResidentBatch
from train_mini.losses import Odds
from train_mini.recipe import MiniRecipe

_ZERO = 1.4  # initial zero of log-odds, in their unit


class MiniAligner(Aligner):
    """An aligner with a zero of log-odds for every word and class, and optionally a tuned image network."""

    # Divergences are already in nats, so their scale starts at one.
    SCALES: ClassVar[dict[str, float | None]] = Aligner.SCALES | {
        "local": None, "word": None, "kl": 1.0, "support": 2.0, "evidence": 0.25, "omission": 4.0,
    }  # fmt: skip

    def __init__(
        self,
        recipe: MiniRecipe,
        image: SideDims,
        text: SideDims,
        *,
        words: int = 0,
        classes: int = 0,
        trunk: "TunedTrunk | None" = None,
    ) -> None:
        super().__init__(recipe, image, text)
        # Lines from similarity to graded relevance; they start as identity.
        lines = {"relevance": 1.0, "relevance_offset": 0.0} if recipe.loss.relevance else {}
        self.lines = scalar_parameters(lines | ({"local_relevance": 1.0} if recipe.loss.local_relevance else {}))
        self._trunk_rate = recipe.train.tune_lr / recipe.train.lr
        self.zero = nn.Parameter(torch.tensor(_ZERO)) if recipe.loss.evidence else None
        self.word_zeros = nn.Parameter(torch.zeros(words)) if recipe.loss.evidence else None
        self.class_zeros = nn.Parameter(torch.zeros(classes)) if recipe.loss.objects else None
        self.trunk = trunk

    def image_features(self, batch: TrainingBatch) -> Features:
        """Return features of the frozen tower, or of the tuned network on the pixels."""
        if self.trunk is None or not isinstance(batch, ResidentBatch) or batch.pixels is None:
            return super().image_features(batch)
        features: Features = self.trunk(batch.pixels)
        return features

    def scaled_parameters(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return groups of parameters, each with its learning rate as a factor of `train.lr`."""
        trunk = [] if self.trunk is None else list(self.trunk.parameters())
        tuned = set(map(id, trunk))
        heads = [parameter for parameter in self.parameters() if id(parameter) not in tuned]
        return [(heads, 1.0), (trunk, self._trunk_rate)]

    def odds(self) -> Odds:
        """Return the learned line from evidence of words to log-odds."""
        return self._odds(self.word_zeros)

    def class_odds(self) -> Odds:
        """Return the same line for the names of classes."""
        return self._odds(self.class_zeros)

    def _odds(self, zeros: nn.Parameter | None) -> Odds:
        if self.zero is None or zeros is None:
            raise AssertionError("log-odds without the loss of evidence or of objects")
        return Odds(self.scale("evidence"), self.zero, zeros)


class TunedTrunk(nn.Module):
    """Trainable copies of the last `count` stages and of the last convolution, with the names of the whole network."""

    def __init__(self, network: Lite2, count: int, *, grid: int) -> None:
        super().__init__()
        self._first = len(STAGES) - count
        own = range(self._first, len(STAGES))
        self.stages = nn.ModuleDict({str(number): deepcopy(network.stages[number]) for number in own})
        self.head = deepcopy(network.head)
        self.requires_grad_(True)
        self._grid = grid
        # In a tuple, so that the frozen network is not a submodule.
        self._frozen = (network,)

    def forward(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Return features of pixels with values from 0 to 255, with gradients from the first tuned stage on."""
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
        return replace(_all_real(cells), whole=_all_real(means))

    def __deepcopy__(self, memo: dict[int, object]) -> "TunedTrunk":
        """Return a copy with separate weights over the same frozen network."""
        (network,) = self._frozen
        copied = TunedTrunk(network, len(STAGES) - self._first, grid=self._grid)
        copied.load_state_dict(self.state_dict())
        return copied.to(self.head.weight.device)


def _resized(
    part: Float[Tensor, "batch channels rows columns"], grid: int
) -> Float[Tensor, "batch channels grid grid"]:
    """Bilinear interpolation as two products: on CUDA, torch's has no deterministic gradient."""
    down, across = (_weights(size, grid, part.device) for size in part.shape[2:])
    with torch.autocast(part.device.type, enabled=False):
        return down @ part @ across.mT


@cache
def _weights(size: int, grid: int, device: torch.device) -> Float[Tensor, "grid size"]:
    """Return the interpolation weights of every grid cell over `size` positions.

    >>> _weights(4, 2, torch.device("cpu"))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """
    identity = torch.eye(size, device=device).unsqueeze(0)
    return interpolate(identity, grid, mode="linear", align_corners=False)[0].mT.contiguous()


def _all_real(vectors: Float[Tensor, "batch points dim"]) -> Features:
    return Features(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))
