"""The loss of one batch: the weighted terms of a recipe, over the pairs of all processes."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from msdscore.core.arrays import Bool, Float, Int
from msdscore.core.mixture import FitSettings, Mixture
from msdscore_lab.align import losses
from msdscore_lab.align.aligner import Aligner
from msdscore_lab.align.features import TrainingBatch
from msdscore_lab.align.language import FrozenLanguageModel
from msdscore_lab.align.losses import Scalar, Table
from msdscore_lab.align.processes import World, gather_embeddings, gather_rows, max_over_processes, sum_over_processes
from msdscore_lab.align.recipe import Recipe
from msdscore_torch.aligned.heads import to_embeddings


class TrainingStep:
    """A batch with both sides projected; values that several terms share are computed once."""

    def __init__(self, parts: "Parts", batch: TrainingBatch) -> None:
        self.parts, self.batch = parts, batch
        self.aligner, self.loss, self.world = parts.aligner, parts.recipe.loss, parts.world
        with self.autocast():
            self.image_states = self.aligner.heads.states("image", self.aligner.image_features(batch))
            self.own_images = to_embeddings(self.image_states)
            self.own_texts = self.aligner.heads.project("text", batch.texts)
        self.images = gather_embeddings(self.own_images, self.world)
        self.texts = gather_embeddings(self.own_texts, self.world)

    def autocast(self) -> torch.autocast:
        """Autocast to bfloat16 for heads and prefix, if the recipe enables it; losses are not computed in bfloat16."""
        device, precision = self.batch.items.device.type, self.parts.recipe.train.precision
        half = precision == "bfloat16" or (precision == "auto" and device == "cuda")
        return torch.autocast(device, torch.bfloat16, enabled=half)

    @cached_property
    def excluded(self) -> Bool[Tensor, "images captions"]:
        """Captions that are not negatives of an image: those of the same image in another row."""
        return losses.same_images(gather_rows(self.batch.items, self.world), self.batch.captions_per_image)

    @cached_property
    def cosines(self) -> Table:
        """Cosines of pooled vectors."""
        return self.images.pooled @ self.texts.pooled.mT

    @cached_property
    def tokens(self) -> Float[Tensor, "tokens images"]:
        """The best patch of every image for every token."""
        return losses.token_table(self.images, self.texts.points[self.texts.mask])

    @cached_property
    def owner(self) -> Int[Tensor, " tokens"]:
        """The image index of every token."""
        return self.texts.mask.nonzero()[:, 0] // self.batch.captions_per_image

    @cached_property
    def local(self) -> Table:
        """Local similarities: the mean over tokens of the best patch."""
        return losses.caption_table(self.tokens, self.texts.mask)

    @cached_property
    def mixtures(self) -> Mixture:
        """One mixture per image."""
        return losses.fit_mixtures(self.images, self.fit_settings(0))

    @cached_property
    def negatives(self) -> Float[Tensor, "negatives dim"]:
        """Pooled vectors of the hard negatives of this process; empty if no caption has one."""
        if self.batch.negatives is None:
            return self.own_texts.pooled[:0]
        with self.autocast():
            return self.aligner.heads.project("text", self.batch.negatives).pooled

    def fit_settings(self, side: int) -> FitSettings:
        """Return the fit settings of the mixtures of images (0) or captions (1)."""
        loss = self.loss
        return FitSettings(components=loss.kl_components[side], kappa=loss.kl_kappa, iterations=loss.kl_iterations)


Term = Callable[[Any], Scalar]  # takes a `TrainingStep`, or the subclass of a trainer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a training run: batches, the trainable module, and the terms of the loss.

    `batches(start, stop)` yields the batches with these numbers; the same number yields the same batch. `bad` has the
    errors of the images that could not be read so far.
    """

    recipe: Recipe
    world: World
    batches: Callable[[int, int], Generator[TrainingBatch, None, None]]
    per_epoch: int
    bad: Mapping[int, str]
    aligner: Aligner
    terms: Mapping[str, Term]
    language: FrozenLanguageModel | None = None
    step_type: type[TrainingStep] = TrainingStep


def objective(parts: Parts, batch: TrainingBatch) -> tuple[Scalar, dict[str, Tensor]]:
    """Return the weighted sum of all terms of the recipe, and the detached value of each.

    Every term but the reconstruction and the hard negatives is computed over the pairs of all processes.
    """
    step = parts.step_type(parts, batch)
    weights, world = parts.recipe.loss.weights, parts.world
    values = {name: term(step) for name, term in parts.terms.items() if weights[name]}
    loss = torch.stack([weights[name] * value for name, value in values.items()]).sum()
    # Some terms use only the pairs of this process, so the mean over processes is reported.
    means = sum_over_processes(torch.stack([value.detach() for value in values.values()]), world) / world.size
    return loss, dict(zip(values, means, strict=True))


def _word(step: TrainingStep) -> Scalar:
    batch, width = step.batch, step.texts.mask.shape[1]
    widest = max_over_processes(batch.image_words.shape[1], step.world, batch.items.device)
    # Padded with -1, which is not a word.
    tokens, images = (
        gather_rows(pad(words, (0, count - words.shape[1]), value=-1), step.world)
        for words, count in ((batch.token_words, width), (batch.image_words, widest))
    )
    return word_term(step, losses.absent_words(tokens[step.texts.mask], images))


def word_term(step: TrainingStep, absent: Bool[Tensor, "tokens images"]) -> Scalar:
    """The word loss over content words: function words are in no image's set of words."""
    real = ~absent.gather(1, step.owner.unsqueeze(1)).squeeze(1)
    if not bool(real.any()):
        return 0.0 * step.tokens.sum()
    return losses.word_loss(step.tokens[real], step.owner[real], absent[real], step.aligner.scale("word"))


def _kl(step: TrainingStep) -> Scalar:
    loss, fit_texts = step.loss, step.fit_settings(1)
    sides = (step.images, step.texts, step.mixtures)
    tables = losses.kl_tables(*sides, fit_texts, direction=loss.kl_direction, stride=loss.kl_stride)
    return torch.stack([losses.info_nce(table * step.aligner.scale("kl"), step.excluded) for table in tables]).sum()


def _negatives(step: TrainingStep) -> Scalar:
    """Return the loss of captions against their hard negatives, from a padded table of similarities."""
    texts, owner = step.own_texts, step.batch.negative_owner
    images = step.own_images.pooled.repeat_interleave(step.batch.captions_per_image, dim=0)
    # Without negatives the term is zero, but stays in the graph of every process.
    if not len(owner):
        return 0.0 * images.sum()
    cosines = (step.negatives * images[owner]).sum(dim=1)
    order = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
    table = cosines.new_zeros(len(texts), int(order.max()) + 1).index_put((owner, order), cosines)
    real = torch.zeros_like(table, dtype=torch.bool).index_put((owner, order), torch.tensor(True, device=owner.device))
    return losses.negatives_loss((images * texts.pooled).sum(dim=1), table, real, step.aligner.scale("contrastive"))


def _reconstruction(step: TrainingStep) -> Scalar:
    """Return the mean negative log-likelihood over all caption tokens of all processes."""
    language, linear, repeats = step.parts.language, step.aligner.prefix, step.batch.captions_per_image
    if language is None:
        raise AssertionError("reconstruction without a language model")
    with step.autocast():
        # Without a linear prefix, the head's outputs before normalisation are used.
        prefix = step.image_states.points if linear is None else linear(step.own_images.points)
        mask = step.own_images.mask.repeat_interleave(repeats, dim=0)
        nll, count = language.nll(prefix.repeat_interleave(repeats, dim=0), mask, step.batch.captions)
    tokens = sum_over_processes(torch.tensor(float(count), device=nll.device), step.world)
    return nll * step.world.size / tokens


# By the name of the weight in `[loss]`.
TERMS: dict[str, Term] = {
    "contrastive": lambda step: losses.info_nce(step.cosines * step.aligner.scale("contrastive"), step.excluded),
    "local": lambda step: losses.info_nce(step.local * step.aligner.scale("local"), step.excluded),
    "word": _word,
    "kl": _kl,
    "negatives": _negatives,
    "reconstruction": _reconstruction,
}
