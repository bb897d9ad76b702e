"""Adversarial refinement: of more pairs than wanted, those stay that a causal language model cannot tell apart.

SugarCrepe leaves out pairs until two text models prefer the true caption as often as the wrong one. So do we, by the
strength of the preference too, and with the words, the lengths and the control's preferences kept in balance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from msdscore.cococf.balance import Balance, GramReader, LikelihoodReader
from msdscore.cococf.build import CONTROL, BuildSettings, Built, CounterfactualPair, model_of, own_counts
from msdscore.cococf.changes import SPLITS
from msdscore.cococf.sources import AnnotatedPicture

_POOL = 1.5  # pairs that are made for each one that is wanted
_WORSE = 8.0  # nats by which a wrong caption may read worse than the true one; with more it reads badly


def pool_settings(settings: BuildSettings) -> BuildSettings:
    """Settings of the larger set that a reader's pairs are taken from."""
    return replace(settings, pairs=round(_POOL * settings.pairs)) if settings.reader else settings


def pool_texts(pool: Built) -> list[str]:
    """Every caption that the reader must read."""
    return [text for pair in pool.pairs for text in (pair.made.positive, pair.made.negative)]


def refine(
    pool: Built, known: Mapping[str, float], pictures: Sequence[AnnotatedPicture], settings: BuildSettings
) -> Built:
    """The pairs of a pool that leave a reader, whose log-likelihoods are known, without a hint."""
    control, reader = model_of(pictures, CONTROL), LikelihoodReader(known)
    balances = {split: Balance(strict=True) for split in SPLITS}
    chance, kept = Random(settings.seed), list[CounterfactualPair]()
    for pair in chance.sample(pool.pairs, len(pool.pairs)):
        balance = balances[pair.split]
        if known[pair.made.positive] - known[pair.made.negative] > _WORSE:
            continue
        if balance.counts[pair.made.subset] < settings.most:
            grams = GramReader(control, own_counts(pair.picture, CONTROL))
            kept += [pair] if balance.choose([pair.made], (reader, grams), chance) else []
    kept.sort(key=lambda pair: (pair.picture.name, pair.source, pair.split))
    return Built(tuple(kept), settings, pool.pictures)
