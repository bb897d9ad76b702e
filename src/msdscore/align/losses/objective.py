"""The loss of one batch: all terms of a recipe, over the pairs of all processes."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.align.aligner import Aligner
from msdscore.align.features.batch import TrainingBatch, WordLabels
from msdscore.align.losses.evidence import Odds, densities, evidence_loss, group_columns, objects_loss, omission_loss
from msdscore.align.losses.preference import over_machine_loss
from msdscore.align.losses.reconstruction import FrozenLanguageModel
from msdscore.align.losses.terms import (
    Gaps,
    KlSettings,
    absent_words,
    caption_table,
    centred,
    fitted,
    graded_loss,
    info_nce,
    kl_tables,
    negatives_loss,
    relevance,
    same_pictures,
    token_table,
    word_loss,
)
from msdscore.align.processes import World, gather_points, gather_rows, most, total
from msdscore.align.recipe import LossSpec
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.core.sphere import unit
from msdscore.encoders.aligned.heads import Projected
from msdscore.encoders.aligned.towers.base import Features

# Weights of evidence: of a caption's words in similar pictures, of texts by rule, of their words in similar pictures.
_ELSEWHERE, _MADE, _MADE_ELSEWHERE = 0.25, 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same over all steps of a run."""

    loss: LossSpec
    world: World
    language: FrozenLanguageModel | None = None
    half: bool = False  # heads and prefix compute in bfloat16; losses never do


def objective(aligner: Aligner, batch: TrainingBatch, setting: Setting) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The weighted sum of all terms, and the value of each, without history.

    Every term but the reconstruction and the hard negatives is computed over the pairs of all processes.
    """
    loss, world = setting.loss, setting.world
    with _autocast(batch, setting):
        own_images = aligner.heads.project_images(_image_features(aligner, batch))
        own_texts = aligner.heads.project_texts(batch.texts)
    images, texts = gather_points(own_images, world), gather_points(own_texts, world)
    excluded = same_pictures(gather_rows(batch.items, world), batch.each)
    terms: dict[str, Tensor] = {}
    if loss.contrastive:
        terms["contrastive"] = info_nce(images.pooled @ texts.pooled.mT * aligner.scale("contrastive"), excluded)
    wanted = _relevance(batch, setting)
    if loss.relevance:
        line = aligner.lines
        similarity = images.pooled @ texts.pooled.mT
        terms["relevance"] = graded_loss(similarity, wanted, line["relevance"], line["relevance_offset"])
    if loss.local or loss.word or loss.local_relevance:
        terms |= _local_terms(aligner, images, texts, batch, setting)
    if loss.kl or loss.support or loss.evidence:
        terms |= _density_terms(aligner, images, texts, batch, setting)
    if loss.omission and batch.evidence is not None:
        kappa, group = loss.kl_kappa, batch.evidence.group
        terms["omission"] = omission_loss(images, texts, aligner.scale("omission"), kappa=kappa, group=group)
    if loss.over_machine:
        terms["over_machine"] = _over_machine(aligner, own_images, own_texts, batch, setting)
    if loss.wants_negatives:
        terms |= _negative_terms(aligner, (own_images, own_texts, images), batch, setting)
    if loss.reconstruction:
        with _autocast(batch, setting):
            terms["reconstruction"] = _reconstruction(aligner, own_images, batch, setting)
    value = torch.stack([getattr(loss, name) * term for name, term in terms.items()]).sum()
    # Some terms see only the pairs of one process: what is shown is the mean of all.
    shown = total(torch.stack([term.detach() for term in terms.values()]), world) / world.size
    return value, dict(zip(terms, shown, strict=True))


def _image_features(aligner: Aligner, batch: TrainingBatch) -> Features:
    if batch.images is not None:
        return batch.images
    if aligner.trunk is None or batch.pixels is None:
        raise AssertionError("a batch with neither features nor pixels for a tuned trunk")
    features: Features = aligner.trunk(batch.pixels)
    return features


def _relevance(batch: TrainingBatch, setting: Setting) -> Float[Tensor, "images captions"]:
    """Graded relevance of all pictures and captions of all processes; nothing where no term asks for it."""
    if batch.graded is None:
        return batch.items.new_zeros(0, 0)
    return relevance(
        gather_rows(batch.graded.references, setting.world), gather_rows(batch.graded.sentences, setting.world)
    )


def _autocast(batch: TrainingBatch, setting: Setting) -> torch.autocast:
    return torch.autocast(batch.items.device.type, torch.bfloat16, enabled=setting.half)


def _local_terms(
    aligner: Aligner, images: Projected, texts: Projected, batch: TrainingBatch, setting: Setting
) -> dict[str, Tensor]:
    """All terms that look at single tokens share one table of tokens and pictures."""
    loss, world = setting.loss, setting.world
    table = token_table(images, texts.points[texts.mask])
    whole = caption_table(table, texts.mask)
    terms: dict[str, Tensor] = {}
    if loss.local:
        excluded = same_pictures(gather_rows(batch.items, world), batch.each)
        terms["local"] = info_nce(whole * aligner.scale("local"), excluded)
    if loss.local_relevance:
        wanted = centred(_relevance(batch, setting))
        terms["local_relevance"] = graded_loss(centred(whole), wanted, aligner.lines["local_relevance"])
    if loss.word:
        owner = texts.mask.nonzero()[:, 0] // batch.each
        terms["word"] = _word_term(aligner, table, owner, _absent(batch, texts, world))
    return terms


def _absent(batch: TrainingBatch, texts: Projected, world: World) -> Bool[Tensor, "tokens batch"]:
    """Which pictures lack the word of each token: by labels where there are any, else by the words of captions."""
    if batch.evidence is not None:
        words = batch.token_words[texts.mask]
        return (batch.evidence.labels[:, words.clamp_min(0)] == 0).mT | (words < 0).unsqueeze(1)
    tokens = gather_rows(_filled(batch.token_words, texts.mask.shape[1]), world)[texts.mask]
    wide = most(batch.picture_words.shape[1], world, tokens.device)
    return absent_words(tokens, gather_rows(_filled(batch.picture_words, wide), world))


def _density_terms(
    aligner: Aligner, images: Projected, texts: Projected, batch: TrainingBatch, setting: Setting
) -> dict[str, Tensor]:
    """All terms that look at mixtures share those of the pictures."""
    loss = setting.loss
    excluded = same_pictures(gather_rows(batch.items, setting.world), batch.each)
    mixtures = fitted(images, _fit_settings(loss, 0))
    terms: dict[str, Tensor] = {}
    if loss.kl:
        settings = KlSettings(_fit_settings(loss, 1), loss.kl_direction, loss.kl_stride)
        tables = kl_tables(images, texts, mixtures, settings=settings)
        terms["kl"] = torch.stack([info_nce(table * aligner.scale("kl"), excluded) for table in tables]).sum()
    if loss.support or loss.evidence:
        table = densities(texts.points[texts.mask], mixtures)
        if loss.support:
            whole = centred(caption_table(table, texts.mask))
            terms["support"] = info_nce(whole * aligner.scale("support"), excluded)
        if loss.evidence:
            terms["evidence"] = _evidence_term(aligner, table, mixtures, batch, setting)
        if loss.objects:
            terms["objects"] = _objects_term(aligner, mixtures, batch, setting)
    return terms


def _objects_term(aligner: Aligner, mixtures: Mixture, batch: TrainingBatch, setting: Setting) -> Float[Tensor, ""]:
    """Names of classes in all pictures of the batch: their evidence is the mean over the tokens of the name."""
    if batch.evidence is None:
        raise AssertionError("the loss of objects without labels")
    known, local = batch.evidence.classes, batch.evidence.classes.texts.local
    with _autocast(batch, setting):
        vectors = unit(aligner.heads.text(local.vectors, local.mask)[local.mask].float())
    table = densities(vectors, mixtures)
    evidence = caption_table(table - table.mean(dim=1, keepdim=True), local.mask).mT
    return objects_loss(evidence, known.objects.mT, known.annotated, aligner.class_odds())


def _evidence_term(
    aligner: Aligner, table: Float[Tensor, "tokens batch"], mixtures: Mixture, batch: TrainingBatch, setting: Setting
) -> Float[Tensor, ""]:
    """Log-odds of the words of captions, of hard negatives and of texts by rule, each in the pictures of its group."""
    known = batch.evidence
    if known is None:
        raise AssertionError("the loss of evidence without word labels")
    own = batch.texts.local.mask
    parts = [_WordTable(table, batch.token_words[own], own.nonzero()[:, 0] // batch.each, 1.0, _ELSEWHERE)]
    beside = [(made.texts, made.words, made.owner) for made in known.made]
    if batch.negatives is not None:
        beside.append((batch.negatives, known.negative_words, batch.negative_owner // batch.each))
    for texts, words, owner in beside:
        mask = texts.local.mask & (words >= 0)
        with _autocast(batch, setting):
            vectors = unit(aligner.heads.text(texts.local.vectors, texts.local.mask)[mask].float())
        rows = densities(vectors, mixtures)
        parts.append(_WordTable(rows, words[mask], owner[mask.nonzero()[:, 0]], _MADE, _MADE_ELSEWHERE))
    odds = aligner.odds()
    lost = [part.weight * part.loss(odds, known) for part in parts]
    return torch.stack(lost).sum() + setting.loss.shrink * odds.word_zeros.square().sum()


@dataclass(frozen=True, slots=True)
class _WordTable:
    """log P of some tokens under all pictures of a batch, their words, and the pictures that they were said of."""

    table: Float[Tensor, "tokens batch"]
    words: Int[Tensor, " tokens"]
    owner: Int[Tensor, " tokens"]
    weight: float
    elsewhere: float  # weight of a word in the other pictures of its group

    def loss(self, odds: Odds, known: WordLabels) -> Float[Tensor, ""]:
        real = self.words >= 0
        table, words, owner = self.table[real], self.words[real], self.owner[real]
        columns = group_columns(owner, known.group)
        found = (table - table.mean(dim=1, keepdim=True)).gather(1, columns)
        labels = known.labels[columns, words.unsqueeze(1)]
        weights = torch.where(columns == owner.unsqueeze(1), 1.0, self.elsewhere)
        return evidence_loss(found, words, labels, weights, odds=odds, counts=known.counts)


def _word_term(
    aligner: Aligner,
    table: Float[Tensor, "tokens batch"],
    owner: Int[Tensor, " tokens"],
    absent: Bool[Tensor, "tokens batch"],
) -> Float[Tensor, ""]:
    """The word loss over content words: signs and function words are no words of any picture, not even their own."""
    real = ~absent.gather(1, owner.unsqueeze(1)).squeeze(1)
    if not bool(real.any()):
        return 0.0 * table.sum()
    return word_loss(table[real], owner[real], absent[real], aligner.scale("word"))


def _filled(words: Int[Tensor, "batch some"], width: int) -> Int[Tensor, "batch width"]:
    """Numbers padded with -1, which is no word."""
    missing = width - words.shape[1]
    return torch.cat([words, words.new_full((len(words), missing), -1)], dim=1) if missing > 0 else words[:, :width]


def _fit_settings(loss: LossSpec, side: int) -> FitSettings:
    """How mixtures are fitted: of pictures (0) or of captions (1)."""
    return FitSettings(components=loss.kl_components[side], kappa=loss.kl_kappa, iterations=loss.kl_iterations)


def _over_machine(
    aligner: Aligner, images: Projected, texts: Projected, batch: TrainingBatch, setting: Setting
) -> Float[Tensor, ""]:
    """Captions by people against the machine's of the same picture; nothing where no picture has one."""
    if batch.machine is None:
        return 0.0 * texts.pooled.sum()
    with _autocast(batch, setting):
        machine = aligner.heads.project_texts(batch.machine.texts).pooled
    people = texts.pooled.unflatten(0, (-1, batch.each))
    return over_machine_loss(images.pooled, people, machine, batch.machine.owner, aligner.scale("contrastive"))


def _negative_terms(
    aligner: Aligner, sides: tuple[Projected, Projected, Projected], batch: TrainingBatch, setting: Setting
) -> dict[str, Tensor]:
    """Terms over the own hard negatives; `sides` are own pictures, own captions, the pictures of all processes."""
    loss, world, (own_images, own_texts, images) = setting.loss, setting.world, sides
    owner = batch.negative_owner
    # Without a single negative the terms are zero, and every process still takes part in them.
    found = own_texts.pooled[:0]
    if batch.negatives is not None:
        with _autocast(batch, setting):
            found = aligner.heads.project_texts(batch.negatives).pooled
    scale = aligner.scale("contrastive")
    terms: dict[str, Tensor] = {}
    if loss.negatives:
        terms["negatives"] = _own_negatives(own_images, own_texts, found, owner, scale)
    if loss.grounded or loss.bias:
        first = world.rank * len(own_images)
        gaps = Gaps(images.pooled @ (own_texts.pooled[owner] - found).mT, first + owner // batch.each)
        count = total(torch.tensor(float(len(owner)), device=owner.device), world).clamp_min(1.0)
        values = {"grounded": gaps.grounded(scale), "bias": gaps.bias(scale)}
        terms |= {name: value * world.size / count for name, value in values.items() if getattr(loss, name)}
    return terms


def _own_negatives(
    images: Projected,
    texts: Projected,
    found: Float[Tensor, "negatives dim"],
    owner: Int[Tensor, " negatives"],
    scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Own hard negatives of every caption, laid out as a padded table of similarities."""
    pictures = images.pooled.repeat_interleave(len(texts) // len(images), dim=0)
    if not len(owner):
        return 0.0 * pictures.sum()
    cosines = (found * pictures[owner]).sum(dim=1)
    order = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
    table = cosines.new_zeros(len(texts), int(order.max()) + 1).index_put((owner, order), cosines)
    real = torch.zeros_like(table, dtype=torch.bool).index_put((owner, order), torch.tensor(True, device=owner.device))
    return negatives_loss((pictures * texts.pooled).sum(dim=1), table, real, scale)


def _reconstruction(aligner: Aligner, images: Projected, batch: TrainingBatch, setting: Setting) -> Float[Tensor, ""]:
    """Mean over all caption tokens of all processes, as the mean of the processes' values makes it."""
    language, world = setting.language, setting.world
    if aligner.prefix is None or language is None:
        raise AssertionError("reconstruction without a language model and a visual prefix")
    prefix, mask = aligner.prefix(images.points), images.mask
    if batch.each > 1:
        prefix, mask = prefix.repeat_interleave(batch.each, dim=0), mask.repeat_interleave(batch.each, dim=0)
    sums, count = language.nll(prefix, mask, batch.captions)
    tokens = total(torch.tensor(float(count), device=sums.device), world)
    return sums * world.size / tokens
