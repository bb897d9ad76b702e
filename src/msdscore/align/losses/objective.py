"""The loss of one batch: all terms of a recipe, over the pairs of all processes."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.align.aligner import Aligner
from msdscore.align.features.batch import TrainingBatch
from msdscore.align.losses.reconstruction import FrozenLanguageModel
from msdscore.align.losses.terms import (
    Gaps,
    KlSettings,
    absent_words,
    caption_table,
    centred,
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
from msdscore.core.mixture import FitSettings
from msdscore.encoders.aligned.heads import Projected


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same over all steps of a run."""

    loss: LossSpec
    world: World
    language: FrozenLanguageModel | None = None
    half: bool = False  # heads and prefix compute in bfloat16; losses never do
    references: Float[Tensor, "pairs dim"] | None = None  # mean sentence vector of every picture's captions


def objective(aligner: Aligner, batch: TrainingBatch, setting: Setting) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The weighted sum of all terms, and the value of each.

    Every term but the reconstruction and the hard negatives is computed over the pairs of all processes.
    """
    loss, world = setting.loss, setting.world
    with _autocast(batch, setting):
        own_images = aligner.heads.project_images(batch.images)
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
    if loss.kl:
        tables = kl_tables(images, texts, settings=_kl_settings(loss))
        terms["kl"] = torch.stack([info_nce(table * aligner.scale("kl"), excluded) for table in tables]).sum()
    if loss.wants_negatives:
        terms |= _negative_terms(aligner, (own_images, own_texts, images), batch, setting)
    if loss.reconstruction:
        with _autocast(batch, setting):
            terms["reconstruction"] = _reconstruction(aligner, own_images, batch, setting)
    value = torch.stack([getattr(loss, name) * term for name, term in terms.items()]).sum()
    # Some terms see only the pairs of one process: what is shown is the mean of all.
    shown = total(torch.stack([term.detach() for term in terms.values()]), world) / world.size
    return value, dict(zip(terms, shown.tolist(), strict=True))


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
        width = texts.mask.shape[1]
        tokens = gather_rows(_filled(batch.token_words, width), world)[texts.mask]
        wide = most(batch.picture_words.shape[1], world, tokens.device)
        pictures = gather_rows(_filled(batch.picture_words, wide), world)
        owner = texts.mask.nonzero()[:, 0] // batch.each
        terms["word"] = _word_term(aligner, table, owner, absent_words(tokens, pictures))
    return terms


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


def _kl_settings(loss: LossSpec) -> KlSettings:
    image, text = (
        FitSettings(components=count, kappa=loss.kl_kappa, iterations=loss.kl_iterations)
        for count in loss.kl_components
    )
    return KlSettings(image, text, loss.kl_direction, loss.kl_stride)


def _negative_terms(
    aligner: Aligner, sides: tuple[Projected, Projected, Projected], batch: TrainingBatch, setting: Setting
) -> dict[str, Tensor]:
    """Terms over the own hard negatives; `sides` are own pictures, own captions, the pictures of all processes."""
    loss, world, (own_images, own_texts, images) = setting.loss, setting.world, sides
    owner = torch.tensor(batch.negative_owner, dtype=torch.int64, device=images.pooled.device)
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
