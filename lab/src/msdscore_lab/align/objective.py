"""The loss of one batch: the weighted terms of a recipe."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from msdscore.core.arrays import Bool, Float, Int
from msdscore_lab.align.aligner import Aligner
from msdscore_lab.align.batches import TrainingBatch
from msdscore_lab.align.language import FrozenLanguageModel
from msdscore_lab.align.recipe import Recipe
from msdscore_torch.aligned.heads import to_embeddings

Table = Float[Tensor, "images captions"]
Scalar = Float[Tensor, ""]


class TrainingStep:
    """A batch with both sides projected; values that several terms share are computed once."""

    def __init__(self, parts: "Parts", batch: TrainingBatch) -> None:
        self.parts, self.batch = parts, batch
        self.aligner, self.loss = parts.aligner, parts.recipe.loss
        with self.autocast():
            self.image_states = self.aligner.heads.states("image", self.aligner.image_features(batch))
            self.images = to_embeddings(self.image_states)
            self.texts = self.aligner.heads.project("text", batch.texts)

    def autocast(self) -> torch.autocast:
        """Autocast to bfloat16 for heads and prefix, if the recipe enables it; losses are not computed in bfloat16."""
        device, precision = self.batch.items.device.type, self.parts.recipe.train.precision
        half = precision == "bfloat16" or (precision == "auto" and device == "cuda")
        return torch.autocast(device, torch.bfloat16, enabled=half)

    @cached_property
    def excluded(self) -> Bool[Tensor, "images captions"]:
        """Captions that are not negatives of an image: those of the same image in another row."""
        return same_images(self.batch.items, self.batch.captions_per_image)

    @cached_property
    def cosines(self) -> Table:
        """Cosines of the pooled vectors."""
        return self.images.pooled @ self.texts.pooled.mT


Term = Callable[[Any], Scalar]  # takes a `TrainingStep`, or the subclass of a trainer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a training run: batches, the trainable module, and the terms of the loss.

    `batches(start, stop)` yields the batches with these numbers; the same number yields the same batch. `bad` has the
    errors of the images that could not be read so far.
    """

    recipe: Recipe
    batches: Callable[[int, int], Generator[TrainingBatch, None, None]]
    per_epoch: int
    bad: Mapping[int, str]
    aligner: Aligner
    terms: Mapping[str, Term]
    language: FrozenLanguageModel | None = None
    step_type: type[TrainingStep] = TrainingStep


def objective(parts: Parts, batch: TrainingBatch) -> tuple[Scalar, dict[str, Tensor]]:
    """Return the weighted sum of all terms of the recipe, and the detached value of each."""
    step = parts.step_type(parts, batch)
    weights = parts.recipe.loss.weights
    values = {name: term(step) for name, term in parts.terms.items() if weights[name]}
    loss = torch.stack([weights[name] * value for name, value in values.items()]).sum()
    return loss, {name: value.detach() for name, value in values.items()}


def _reconstruction(step: TrainingStep) -> Scalar:
    """Return the mean negative log-likelihood over all caption tokens."""
    language, linear, repeats = step.parts.language, step.aligner.prefix, step.batch.captions_per_image
    if language is None:
        raise AssertionError("reconstruction without a language model")
    with step.autocast():
        # Without a linear prefix, the head's outputs before normalisation are used.
        prefix = step.image_states.points if linear is None else linear(step.images.points)
        mask = step.images.mask.repeat_interleave(repeats, dim=0)
        nll, count = language.nll(prefix.repeat_interleave(repeats, dim=0), mask, step.batch.captions)
    return nll / count


def same_images(items: Int[Tensor, " images"], captions: int = 1) -> Bool[Tensor, "images captions"]:
    """Return a mask of captions of the same image in another row of the batch, which are not negatives.

    >>> same_images(torch.tensor([4, 7, 4]))[0]
    tensor([False, False,  True])
    """
    same = items.unsqueeze(0) == items.unsqueeze(1)
    others = same & ~torch.eye(len(items), dtype=torch.bool, device=items.device)
    return others.repeat_interleave(captions, dim=1)


def info_nce(logits: Table, excluded: Bool[Tensor, "images captions"]) -> Scalar:
    r"""Symmetric InfoNCE; captions are ordered by image, so that with one caption each the diagonal has the pairs.

    .. math:: -\frac{1}{2B}\sum_i \log\frac{e^{s_{ii}}}{\sum_j e^{s_{ij}}} + \log\frac{e^{s_{ii}}}{\sum_j e^{s_{ji}}}

    An image with several captions should retrieve all of them equally: its part is the mean over them.

    >>> info_nce(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool))
    tensor(0.6931)
    """
    masked_logits = logits.masked_fill(excluded, -torch.inf)
    images, captions = logits.shape
    owner = torch.arange(images, device=logits.device).repeat_interleave(captions // images)
    to_captions = masked_logits.log_softmax(dim=1).gather(0, owner.unsqueeze(0))
    return (cross_entropy(masked_logits.mT, owner) - to_captions.mean()) / 2


# By the name of the weight in `[loss]`.
TERMS: dict[str, Term] = {
    "contrastive": lambda step: info_nce(step.cosines * step.aligner.scale("contrastive"), step.excluded),
    "reconstruction": _reconstruction,
}
