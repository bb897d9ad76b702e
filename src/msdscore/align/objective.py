"""The loss of one batch: all terms of a recipe, over the pairs of all processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.align.aligner import Aligner
from msdscore.align.features import FeatureSource, token_layouts
from msdscore.align.losses import (
    KlSettings,
    absent_words,
    caption_table,
    info_nce,
    kl_table,
    negatives_loss,
    same_pictures,
    token_table,
    word_loss,
)
from msdscore.align.prefix import FrozenLanguageModel
from msdscore.align.recipe import LossSpec
from msdscore.align.samples import Sample
from msdscore.align.world import World, gather, gather_points, most, total
from msdscore.core.mixture import FitSettings
from msdscore.encoders.content import words_at
from msdscore.encoders.heads import Projected
from msdscore.encoders.towers import Features
from msdscore.io.keys import text_key


@dataclass(frozen=True, slots=True)
class Batch:
    """Frozen features of a step's samples, and what the terms must know beside them."""

    images: Features
    texts: Features
    negatives: Features | None
    negative_owner: tuple[int, ...]  # the sample of every hard negative
    captions: tuple[str, ...]
    items: Int[Tensor, " batch"]
    token_words: Int[Tensor, "batch points"]  # a number for the word of every token
    picture_words: Int[Tensor, "batch words"]  # numbers of the words of all captions of a picture; -1: padding


def make_batch(samples: Sequence[Sample], source: FeatureSource, *, device: torch.device) -> Batch:
    """Run the frozen towers over some samples; nothing in the result has a history."""
    images, texts = source.images(samples), source.texts(samples)
    negatives = [text for sample in samples for text in sample.negatives]
    owner = tuple(row for row, sample in enumerate(samples) for _ in sample.negatives)
    words = [
        words_at(sample.caption, layout.spans) for sample, layout in zip(samples, token_layouts(texts), strict=True)
    ]
    width = texts.local.mask.shape[1]
    return Batch(
        images=images,
        texts=texts,
        negatives=source.negatives(negatives) if negatives else None,
        negative_owner=owner,
        captions=tuple(sample.caption for sample in samples),
        items=torch.tensor([sample.item for sample in samples], device=device),
        token_words=_numbers(words, device, width=width),
        picture_words=_numbers([sorted(sample.words) for sample in samples], device),
    )


def _numbers(rows: Sequence[Sequence[str]], device: torch.device, *, width: int = 1) -> Int[Tensor, "rows width"]:
    wide = max(width, *map(len, rows)) if rows else width
    keys = [[*map(text_key, row), *[-1] * (wide - len(row))] for row in rows]
    return torch.tensor(keys, dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same over all steps of a run."""

    loss: LossSpec
    world: World
    language: FrozenLanguageModel | None = None
    half: bool = False  # heads and prefix compute in bfloat16; losses never do


def objective(aligner: Aligner, batch: Batch, setting: Setting) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The weighted sum of all terms, and the value of each.

    Every term but the reconstruction and the hard negatives is computed over the pairs of all processes.
    """
    loss, world = setting.loss, setting.world
    with _autocast(batch, setting):
        own_images = aligner.heads.project_images(batch.images)
        own_texts = aligner.heads.project_texts(batch.texts)
    images, texts = gather_points(own_images, world), gather_points(own_texts, world)
    excluded = same_pictures(gather(batch.items, world))
    terms: dict[str, Tensor] = {}
    if loss.contrastive:
        terms["contrastive"] = info_nce(images.pooled @ texts.pooled.mT * aligner.scale("contrastive"), excluded)
    if loss.local or loss.word:
        terms |= _local_terms(aligner, images, texts, batch, setting)
    if loss.kl:
        table = kl_table(images, texts, settings=_kl_settings(loss))
        terms["kl"] = info_nce(table * aligner.scale("kl"), excluded)
    if loss.negatives and batch.negatives is not None:
        terms["negatives"] = _negatives(aligner, own_images, own_texts, batch)
    if loss.reconstruction:
        with _autocast(batch, setting):
            terms["reconstruction"] = _reconstruction(aligner, own_images, batch.captions, setting)
    if not terms:  # no hard negative could be made, and no other term is wanted
        terms["negatives"] = 0.0 * own_images.pooled.sum()
    value = torch.stack([getattr(loss, name) * term for name, term in terms.items()]).sum()
    # Some terms see only the pairs of one process: what is shown is the mean of all.
    shown = total(torch.stack([term.detach() for term in terms.values()]), world) / world.size
    return value, dict(zip(terms, shown.tolist(), strict=True))


def _autocast(batch: Batch, setting: Setting) -> torch.autocast:
    return torch.autocast(batch.items.device.type, torch.bfloat16, enabled=setting.half)


def _local_terms(
    aligner: Aligner, images: Projected, texts: Projected, batch: Batch, setting: Setting
) -> dict[str, Tensor]:
    """Both terms that look at single tokens share one table of tokens and pictures."""
    loss, world = setting.loss, setting.world
    table = token_table(images, texts.points[texts.mask])
    terms: dict[str, Tensor] = {}
    if loss.local:
        excluded = same_pictures(gather(batch.items, world))
        terms["local"] = info_nce(caption_table(table, texts.mask) * aligner.scale("local"), excluded)
    if loss.word:
        width = texts.mask.shape[1]
        tokens = gather(_filled(batch.token_words, width), world)[texts.mask]
        wide = most(batch.picture_words.shape[1], world, tokens.device)
        pictures = gather(_filled(batch.picture_words, wide), world)
        terms["word"] = _word_term(aligner, table, texts.mask.nonzero()[:, 0], absent_words(tokens, pictures))
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
    return KlSettings(image, text, loss.kl_direction)


def _negatives(aligner: Aligner, images: Projected, texts: Projected, batch: Batch) -> Float[Tensor, ""]:
    """Own hard negatives of every caption, laid out as a padded table of similarities."""
    if batch.negatives is None:
        raise AssertionError("negatives without features")
    owner = torch.tensor(batch.negative_owner, device=images.pooled.device)
    found = (aligner.heads.project_texts(batch.negatives).pooled * images.pooled[owner]).sum(dim=1)
    order = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
    table = found.new_zeros(len(images), int(order.max()) + 1).index_put((owner, order), found)
    real = torch.zeros_like(table, dtype=torch.bool).index_put((owner, order), torch.tensor(True, device=owner.device))
    similarity = (images.pooled * texts.pooled).sum(dim=1)
    return negatives_loss(similarity, table, real, aligner.scale("contrastive"))


def _reconstruction(
    aligner: Aligner, images: Projected, captions: Sequence[str], setting: Setting
) -> Float[Tensor, ""]:
    """Mean over all caption tokens of all processes, as the mean of the processes' values makes it."""
    language, world = setting.language, setting.world
    if aligner.prefix is None or language is None:
        raise AssertionError("reconstruction without a language model and a visual prefix")
    sums, count = language.nll(aligner.prefix(images.points), images.mask, captions)
    tokens = total(torch.tensor(float(count), device=sums.device), world)
    return sums * world.size / tokens
