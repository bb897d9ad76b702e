"""Terms of the loss of `mini`, by the name of their weight in `[loss]`."""

from functools import cached_property

import torch
from torch import Tensor

from msdscore.core.arrays import Float, Int
from msdscore.core.embeddings import unit
from msdscore.core.mixture import FitSettings, Mixture
from msdscore_lab.align.objective import TERMS as FROZEN_TERMS
from msdscore_lab.align.objective import Scalar, Table, Term, TrainingStep, info_nce
from msdscore_torch.tensors import Features
from train_mini.batches import ResidentBatch
from train_mini.local_losses import caption_table, densities, fit_mixtures, kl_tables, token_table, word_loss
from train_mini.losses import (
    bias_loss,
    centred,
    evidence_loss,
    graded_loss,
    grounded_loss,
    group_columns,
    objects_loss,
    omission_loss,
    over_machine_loss,
)
from train_mini.model import MiniAligner
from train_mini.recipe import MiniLoss

# Weights of evidence: of a caption's words in similar images, of texts by rule, of their words in similar images.
_ELSEWHERE, _BY_RULE, _BY_RULE_ELSEWHERE = 0.25, 0.5, 0.1


class MiniStep(TrainingStep):
    """A batch of resident training with both sides projected; values that several terms share are computed once."""

    aligner: MiniAligner
    batch: ResidentBatch
    loss: MiniLoss

    @cached_property
    def tokens(self) -> Float[Tensor, "tokens images"]:
        """The best patch of every image for every token."""
        return token_table(self.images, self.texts.points[self.texts.mask])

    @cached_property
    def owner(self) -> Int[Tensor, " tokens"]:
        """The image index of every token."""
        return self.texts.mask.nonzero()[:, 0] // self.batch.captions_per_image

    @cached_property
    def local(self) -> Table:
        """Local similarities: the mean over tokens of the best patch."""
        return caption_table(self.tokens, self.texts.mask)

    @cached_property
    def mixtures(self) -> Mixture:
        """One mixture per image."""
        return fit_mixtures(self.images, self.fit_settings(0))

    @cached_property
    def negatives(self) -> Float[Tensor, "negatives dim"]:
        """Pooled vectors of the hard negatives of this process; empty if no caption has one."""
        if self.batch.negatives is None:
            return self.texts.pooled[:0]
        with self.autocast():
            return self.aligner.heads.project("text", self.batch.negatives).pooled

    def fit_settings(self, side: int) -> FitSettings:
        """Return the fit settings of the mixtures of images (0) or captions (1)."""
        loss = self.loss
        return FitSettings(components=loss.kl_components[side], kappa=loss.kl_kappa, iterations=loss.kl_iterations)

    @cached_property
    def relevance(self) -> Table:
        """Mean cosine of every caption with the captions of every image, by frozen sentence vectors."""
        return self.batch.references @ self.batch.sentences.mT

    @cached_property
    def densities(self) -> Float[Tensor, "tokens images"]:
        """log P of every token under the mixture of every image."""
        return densities(self.texts.points[self.texts.mask], self.mixtures)

    @cached_property
    def margins(self) -> Float[Tensor, "images negatives"]:
        """Margins of captions over their hard negatives, under every image."""
        return self.images.pooled @ (self.texts.pooled[self.batch.negative_owner] - self.negatives).mT

    def mean_over_negatives(self, sums: Scalar) -> Scalar:
        """Divide a sum by the number of hard negatives."""
        return sums / torch.tensor(float(len(self.batch.negative_owner)), device=sums.device).clamp_min(1.0)


def _relevance(step: MiniStep) -> Scalar:
    lines = step.aligner.lines
    return graded_loss(step.cosines, step.relevance, lines["relevance"], lines["relevance_offset"])


def _local_relevance(step: MiniStep) -> Scalar:
    return graded_loss(centred(step.local), centred(step.relevance), step.aligner.lines["local_relevance"])


def _support(step: MiniStep) -> Scalar:
    table = centred(caption_table(step.densities, step.texts.mask))
    return info_nce(table * step.aligner.scale("support"), step.excluded)


def _grounded(step: MiniStep) -> Scalar:
    owner = step.batch.negative_owner // step.batch.captions_per_image
    return step.mean_over_negatives(grounded_loss(step.margins, owner, step.aligner.scale("contrastive")))


def _bias(step: MiniStep) -> Scalar:
    return step.mean_over_negatives(bias_loss(step.margins, step.aligner.scale("contrastive")))


def _word(step: MiniStep) -> Scalar:
    """The word loss over content words, with absent words by label."""
    batch = step.batch
    words = batch.token_words[step.texts.mask]
    absent = (batch.labels[:, words.clamp_min(0)] == 0).mT | (words < 0).unsqueeze(1)
    real = ~absent.gather(1, step.owner.unsqueeze(1)).squeeze(1)
    if not bool(real.any()):
        return 0.0 * step.tokens.sum()
    return word_loss(step.tokens[real], step.owner[real], absent[real], step.aligner.scale("word"))


def _kl(step: MiniStep) -> Scalar:
    text_mix = fit_mixtures(step.texts, step.fit_settings(1))
    tables = kl_tables(step.images, step.texts, step.mixtures, text_mix, stride=step.loss.kl_stride)
    return torch.stack([info_nce(table * step.aligner.scale("kl"), step.excluded) for table in tables]).sum()


def _evidence(step: MiniStep) -> Scalar:
    """Log-odds of the words of captions, of hard negatives and of texts by rule, each in the images of its group."""
    batch, mask = step.batch, step.batch.texts.mask
    words, owner = batch.token_words[mask], mask.nonzero()[:, 0] // batch.captions_per_image
    losses = [_group_loss(step, step.densities, words, owner, elsewhere=_ELSEWHERE)]
    for part in batch.by_rule:
        known = part.texts.mask & (part.words >= 0)
        table = densities(_local_vectors(step, part.texts, known), step.mixtures)
        owner = part.owner[known.nonzero()[:, 0]]
        losses.append(_BY_RULE * _group_loss(step, table, part.words[known], owner, elsewhere=_BY_RULE_ELSEWHERE))
    zeros = step.aligner.odds().word_zeros
    return torch.stack(losses).sum() + step.loss.shrink * zeros.square().sum()


def _group_loss(
    step: MiniStep,
    table: Float[Tensor, "tokens images"],
    words: Int[Tensor, " tokens"],
    owner: Int[Tensor, " tokens"],
    *,
    elsewhere: float,
) -> Scalar:
    """Evidence of tokens in the images of their group; images other than their own have the weight `elsewhere`."""
    batch, real = step.batch, words >= 0
    table, words, owner = table[real], words[real], owner[real]
    columns = group_columns(owner, batch.group)
    evidence = (table - table.mean(dim=1, keepdim=True)).gather(1, columns)
    labels = batch.labels[columns, words.unsqueeze(1)]
    weights = torch.where(columns == owner.unsqueeze(1), 1.0, elsewhere)
    odds = step.aligner.odds()
    return evidence_loss(evidence, words, labels, weights, odds=odds, counts=batch.counts)


def _objects(step: MiniStep) -> Scalar:
    """Names of classes in all images of the batch: their evidence is the mean over the tokens of the name."""
    batch = step.batch
    mask = batch.classes.mask
    table = densities(_local_vectors(step, batch.classes, mask), step.mixtures)
    evidence = caption_table(table - table.mean(dim=1, keepdim=True), mask).mT
    return objects_loss(evidence, batch.objects.mT, batch.annotated, step.aligner.class_odds())


def _omission(step: MiniStep) -> Scalar:
    scale, group = step.aligner.scale("omission"), step.batch.group
    return omission_loss(step.images, step.texts, scale, kappa=step.loss.kl_kappa, group=group)


def _over_machine(step: MiniStep) -> Scalar:
    """Captions by people against the machine's of the same image; zero if no image has one."""
    batch, texts = step.batch, step.texts
    if batch.machine is None:
        return 0.0 * texts.pooled.sum()
    with step.autocast():
        machine = step.aligner.heads.project("text", batch.machine.texts).pooled
    people = texts.pooled.unflatten(0, (-1, batch.captions_per_image))
    scale = step.aligner.scale("contrastive")
    return over_machine_loss(step.images.pooled, people, machine, batch.machine.owner, scale)


def _local_vectors(step: MiniStep, texts: Features, mask: Tensor) -> Float[Tensor, "tokens dim"]:
    """Return aligned unit vectors of the tokens under a mask."""
    with step.autocast():
        return unit(step.aligner.heads.text(texts.points, texts.mask)[mask].float())


# In the order in which they are summed, which decides the last bits of the loss.
TERMS: dict[str, Term] = {
    "contrastive": FROZEN_TERMS["contrastive"],
    "relevance": _relevance,
    "local": lambda step: info_nce(step.local * step.aligner.scale("local"), step.excluded),
    "local_relevance": _local_relevance,
    "word": _word,
    "kl": _kl,
    "support": _support,
    "grounded": _grounded,
    "bias": _bias,
    "evidence": _evidence,
    "objects": _objects,
    "omission": _omission,
    "over_machine": _over_machine,
}
