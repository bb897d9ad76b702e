"""Everything that training changes (heads, learned temperatures, the visual prefix), its optimiser and its average."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from msdscore.align.losses.evidence import Odds
from msdscore.align.recipe import LossSpec, Recipe, TrainSpec
from msdscore.align.resident.trunk import TunedTrunk
from msdscore.encoders.aligned.heads import AlignedHeads, SideDims

SCALED = ("contrastive", "local", "word", "kl", "support", "evidence", "omission")  # terms with a temperature
# Divergences and densities are counted in nats already: their scales start near one.
_STARTS = {"kl": 1.0, "support": 2.0, "evidence": 0.25, "omission": 4.0}
_ZERO = 1.4  # start of the zero of log-odds, in their own unit


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """How many words and classes of objects have labels, and so a zero of their own."""

    words: int = 0
    classes: int = 0


_NOTHING = LabelCounts()


class Aligner(nn.Module):
    """Trainable parts of a run; the frozen towers and the frozen language model are not among them."""

    def __init__(
        self,
        recipe: Recipe,
        image: SideDims,
        text: SideDims,
        *,
        language_width: int = 0,
        labelled: LabelCounts = _NOTHING,
    ) -> None:
        super().__init__()
        self._loss: LossSpec = recipe.loss
        self.heads = AlignedHeads(recipe.heads, image, text)
        starts = {name: math.log(_STARTS.get(name, 1 / recipe.loss.temperature)) for name in SCALED}
        self.log_scales = nn.ParameterDict(
            {name: nn.Parameter(torch.tensor(starts[name])) for name in SCALED if self._has(name)}
        )
        self.zero = nn.Parameter(torch.tensor(_ZERO)) if recipe.loss.evidence else None
        self.word_zeros = nn.Parameter(torch.zeros(labelled.words)) if recipe.loss.evidence else None
        self.class_zeros = nn.Parameter(torch.zeros(labelled.classes)) if recipe.loss.objects else None
        # Lines from similarity to graded relevance; they start as identity.
        lines = {"relevance": 1.0, "relevance_offset": 0.0} if recipe.loss.relevance else {}
        lines |= {"local_relevance": 1.0} if recipe.loss.local_relevance else {}
        self.lines = nn.ParameterDict({name: nn.Parameter(torch.tensor(value)) for name, value in lines.items()})
        self.trunk: TunedTrunk | None = None  # last stages of the image network, where they are trained too
        self.prefix = nn.Linear(recipe.heads.dim, language_width) if language_width else None

    def scale(self, name: str) -> Float[Tensor, ""]:
        """One over the learned temperature of a term."""
        return self.log_scales[name].exp()

    def odds(self) -> Odds:
        """The learned line from evidence to log-odds."""
        if self.zero is None or self.word_zeros is None:
            raise AssertionError("log-odds without the loss of evidence")
        return Odds(self.scale("evidence"), self.zero, self.word_zeros)

    def class_odds(self) -> Odds:
        """The same line for the names of classes."""
        if self.class_zeros is None:
            raise AssertionError("log-odds of classes without the loss of objects")
        return replace(self.odds(), word_zeros=self.class_zeros)

    @torch.no_grad()
    def limit_scales(self) -> None:
        """Keep temperatures within the recipe's limit; the value moves, so that its gradient never dies."""
        for parameter in self.log_scales.values():
            parameter.clamp_(max=math.log(self._loss.max_scale))

    def _has(self, name: str) -> bool:
        # Hard negatives are judged with the temperature of the contrast.
        return bool(getattr(self._loss, name)) or (name == "contrastive" and self._loss.wants_negatives)


def seeded_aligner(
    recipe: Recipe, image: SideDims, text: SideDims, *, language_width: int = 0, labelled: LabelCounts = _NOTHING
) -> Aligner:
    """Fresh trainable parts whose start depends on the recipe's seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Aligner(recipe, image, text, language_width=language_width, labelled=labelled)


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


def make_optimiser(aligner: Aligner, spec: TrainSpec) -> torch.optim.AdamW:
    """AdamW; only matrices decay, never temperatures, biases and norms. A tuned trunk has a rate of its own."""
    trunk = list(aligner.trunk.parameters()) if aligner.trunk is not None else []
    known = set(map(id, trunk))
    heads = [parameter for parameter in aligner.parameters() if id(parameter) not in known]
    groups = [
        {
            "params": [parameter for parameter in own if (parameter.ndim > 1) == decays],
            "weight_decay": decay,
            "share": share,
        }
        for own, share in ((heads, 1.0), (trunk, spec.tune_lr / spec.lr))
        for decays, decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=spec.lr, betas=(0.9, spec.beta2))


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set it for all groups, each by its own share."""
    for group in optimiser.param_groups:
        group["lr"] = value * group["share"]


def moving_average(module: nn.Module, decay: float) -> AveragedModel:
    r"""The module with weights averaged over steps, :math:`a \leftarrow d a + (1-d) w`; decay 0 keeps the weights.

    Early steps count more, so that the start is forgotten: :math:`d` grows as :math:`(1+n)/(10+n)` up to `decay`.
    """

    @torch.no_grad()
    def mix(averaged: tuple[Tensor, ...] | list[Tensor], given: tuple[Tensor, ...] | list[Tensor], count: Any) -> None:
        limited = min(decay, (1 + int(count)) / (10 + int(count))) if decay else 0.0
        torch._foreach_lerp_(list(averaged), list(given), 1 - limited)

    found = AveragedModel(module, multi_avg_fn=mix).requires_grad_(False).eval()
    # Read at every step: on the CPU nobody waits for it.
    found.n_averaged = found.n_averaged.cpu()
    return found
