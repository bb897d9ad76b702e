"""Everything that training changes: heads, learned temperatures, the visual prefix."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from msdscore.align.recipe import LossSpec, Recipe
from msdscore.encoders.heads import AlignedHeads, SideDims

SCALED = ("contrastive", "local", "word", "kl")  # terms with a temperature of their own


class Aligner(nn.Module):
    """Trainable parts of a run; the frozen towers and the frozen language model are not among them."""

    def __init__(self, recipe: Recipe, image: SideDims, text: SideDims, *, language_width: int = 0) -> None:
        super().__init__()
        self._loss: LossSpec = recipe.loss
        self.heads = AlignedHeads(recipe.heads, image, text)
        start = torch.tensor(-math.log(recipe.loss.temperature))
        # A divergence is counted in nats already, so its own scale starts at one.
        starts = {name: torch.zeros(()) if name == "kl" else start.clone() for name in SCALED}
        self.log_scales = nn.ParameterDict({name: nn.Parameter(starts[name]) for name in SCALED if self._has(name)})
        # Lines from similarity to graded relevance; they start as identity.
        lines = {"relevance": 1.0, "relevance_offset": 0.0} if recipe.loss.relevance else {}
        lines |= {"local_relevance": 1.0} if recipe.loss.local_relevance else {}
        self.lines = nn.ParameterDict({name: nn.Parameter(torch.tensor(value)) for name, value in lines.items()})
        self.prefix = nn.Linear(recipe.heads.dim, language_width) if language_width else None

    def scale(self, name: str) -> Float[Tensor, ""]:
        """One over the learned temperature of a term."""
        return self.log_scales[name].exp()

    @torch.no_grad()
    def limit_scales(self) -> None:
        """Keep temperatures within the recipe's limit; the value moves, so that its gradient never dies."""
        for parameter in self.log_scales.values():
            parameter.clamp_(max=math.log(self._loss.max_scale))

    def _has(self, name: str) -> bool:
        # Hard negatives are judged with the temperature of the contrast.
        return bool(getattr(self._loss, name)) or (name == "contrastive" and self._loss.wants_negatives)


def seeded_aligner(recipe: Recipe, image: SideDims, text: SideDims, *, language_width: int = 0) -> Aligner:
    """Fresh trainable parts whose start depends on the recipe's seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Aligner(recipe, image, text, language_width=language_width)
