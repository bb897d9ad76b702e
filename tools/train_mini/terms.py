"""Terms of the loss that need the labels of resident training, by the name of their weight in `[loss]`."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core.embeddings import unit
from msdscore.encoders.base import Features
from msdscore.lab.align.losses import Scalar, caption_table, densities
from msdscore.lab.align.objective import TERMS as FROZEN_TERMS
from msdscore.lab.align.objective import Term, TrainingStep, word_term
from train_mini.batches import ResidentBatch
from train_mini.losses import evidence_loss, group_columns, objects_loss, omission_loss, over_machine_loss
from train_mini.model import MiniAligner
from train_mini.recipe import MiniLoss

# Weights of evidence: of a caption's words in similar images, of texts by rule, of their words in similar images.
_ELSEWHERE, _BY_RULE, _BY_RULE_ELSEWHERE = 0.25, 0.5, 0.1


def _word(step: TrainingStep) -> Scalar:
    """The word loss, with absent words by label."""
    batch = _labelled(step)
    words = batch.token_words[step.texts.mask]
    return word_term(step, (batch.labels[:, words.clamp_min(0)] == 0).mT | (words < 0).unsqueeze(1))


def _evidence(step: TrainingStep) -> Scalar:
    """Log-odds of the words of captions, of hard negatives and of texts by rule, each in the images of its group."""
    batch, mask = _labelled(step), step.batch.texts.mask
    words, owner = batch.token_words[mask], mask.nonzero()[:, 0] // batch.each
    losses = [_group_loss(step, step.densities, words, owner, elsewhere=_ELSEWHERE)]
    for part in batch.by_rule:
        known = part.texts.mask & (part.words >= 0)
        table = densities(_local_vectors(step, part.texts, known), step.mixtures)
        owner = part.owner[known.nonzero()[:, 0]]
        losses.append(_BY_RULE * _group_loss(step, table, part.words[known], owner, elsewhere=_BY_RULE_ELSEWHERE))
    zeros = cast(MiniAligner, step.aligner).odds().word_zeros
    return torch.stack(losses).sum() + cast(MiniLoss, step.loss).shrink * zeros.square().sum()


def _group_loss(
    step: TrainingStep,
    table: Float[Tensor, "tokens images"],
    words: Int[Tensor, " tokens"],
    owner: Int[Tensor, " tokens"],
    *,
    elsewhere: float,
) -> Scalar:
    """Evidence of tokens in the images of their group; images other than their own have the weight `elsewhere`."""
    batch, real = _labelled(step), words >= 0
    table, words, owner = table[real], words[real], owner[real]
    columns = group_columns(owner, batch.group)
    evidence = (table - table.mean(dim=1, keepdim=True)).gather(1, columns)
    labels = batch.labels[columns, words.unsqueeze(1)]
    weights = torch.where(columns == owner.unsqueeze(1), 1.0, elsewhere)
    odds = cast(MiniAligner, step.aligner).odds()
    return evidence_loss(evidence, words, labels, weights, odds=odds, counts=batch.counts)


def _objects(step: TrainingStep) -> Scalar:
    """Names of classes in all images of the batch: their evidence is the mean over the tokens of the name."""
    batch = _labelled(step)
    mask = batch.classes.mask
    table = densities(_local_vectors(step, batch.classes, mask), step.mixtures)
    evidence = caption_table(table - table.mean(dim=1, keepdim=True), mask).mT
    return objects_loss(evidence, batch.objects.mT, batch.annotated, cast(MiniAligner, step.aligner).class_odds())


def _omission(step: TrainingStep) -> Scalar:
    scale, group = step.aligner.scale("omission"), _labelled(step).group
    return omission_loss(step.images, step.texts, scale, kappa=step.loss.kl_kappa, group=group)


def _over_machine(step: TrainingStep) -> Scalar:
    """Captions by people against the machine's of the same image; zero if no image has one."""
    batch, texts = _labelled(step), step.own_texts
    if batch.machine is None:
        return 0.0 * texts.pooled.sum()
    with step.autocast():
        machine = step.aligner.heads.project("text", batch.machine.texts).pooled
    people = texts.pooled.unflatten(0, (-1, batch.each))
    scale = step.aligner.scale("contrastive")
    return over_machine_loss(step.own_images.pooled, people, machine, batch.machine.owner, scale)


def _labelled(step: TrainingStep) -> ResidentBatch:
    return cast(ResidentBatch, step.batch)


def _local_vectors(step: TrainingStep, texts: Features, mask: Tensor) -> Float[Tensor, "tokens dim"]:
    """Return aligned unit vectors of the tokens under a mask."""
    with step.autocast():
        return unit(step.aligner.heads.text(texts.points, texts.mask)[mask].float())


TERMS: dict[str, Term] = FROZEN_TERMS | {
    "word": _word,
    "evidence": _evidence,
    "objects": _objects,
    "omission": _omission,
    "over_machine": _over_machine,
}
