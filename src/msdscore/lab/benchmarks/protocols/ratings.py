"""Figures of benchmarks that rate single captions: correlations with ratings, AUC, pairs of one image."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from msdscore.intervals import Floats, Ints
from msdscore.lab.benchmarks.base import Rated, image_key
from msdscore.lab.benchmarks.protocols.counting import Measured, Statistic
from msdscore.lab.benchmarks.readers.ratings import HUMAN
from msdscore.lab.stats.ranks import MEASURES, prepare, rank_groups

Items = Sequence[Rated]
_WORDS_APART = 5  # largest difference in words of long captions of matched length, by the benchmark's protocol


def expert(items: Items) -> list[Statistic]:
    """Flickr8k-Expert: tau-c over single ratings first; figures over averaged ratings are labelled."""
    means = np.array([np.mean([r for r in item.ratings if r == r] or [np.nan]) for item in items], dtype=np.float64)
    single = [_single(items, name) for name in ("tau_c", "tau_b", "spearman", "pearson")]
    averaged = [
        _correlation(f"{name}/averaged", name, means, np.arange(len(means)), compared=False)
        for name in ("tau_c", "tau_b")
    ]
    return [*single, *averaged]


def crowdflower(items: Items) -> list[Statistic]:
    """Flickr8k-CF: tau-b with the share of yes votes first."""
    return [_single(items, name) for name in ("tau_b", "tau_c", "spearman", "pearson")]


def composite(items: Items) -> list[Statistic]:
    """Composite: tau-c over the pooled sources first, then tau-c of each source."""
    pooled = [_single(items, name) for name in ("tau_c", "tau_b", "spearman", "pearson")]
    sources = dict.fromkeys(item.subset for item in items if item.subset)
    return [*pooled, *(_single(items, "tau_c", subset=name) for name in sources)]


def thumb(items: Items) -> list[Statistic]:
    """THumB: Pearson's correlation with total, precision and recall, with and without people's captions.

    `place of Human` is the rank of people's captions among the systems by mean score, 1 for the best; `mean/SYSTEM` are
    the means themselves, in standard deviations over all captions.
    """
    values = {"total": np.array([item.ratings[0] for item in items])}
    for name in ("precision", "recall"):
        values[name] = np.array([item.scales[name] for item in items])
    systems = np.array([item.system for item in items])
    statistics = []
    for suffix, at in (("", np.arange(len(items))), ("/machines", np.flatnonzero(systems != HUMAN))):
        statistics += [_correlation(name + suffix, "pearson", column[at], at) for name, column in values.items()]
    names = list(dict.fromkeys(systems.tolist()))
    if HUMAN in names:
        statistics.append(Statistic("place of Human", partial(_place, systems), compared=False, scale=1))
    for name in names:
        of = partial(_scaled_mean, np.flatnonzero(systems == name))
        statistics.append(Statistic(f"mean/{name}", of, compared=False, scale=1))
    return statistics


def hallucinating(items: Items) -> list[Statistic]:
    """Hallucinating captions against clean ones: AUC over all captions."""
    return [_single(items, "auc")]


def long_captions(items: Items) -> list[Statistic]:
    """Pairs of a clean and a hallucinating caption of one image: all, and those within five words; AUC over captions.

    Shorter captions hallucinate less, so that "shorter wins" is a strong baseline over all pairs, but not at matched
    length.
    """
    ratings = np.array([item.ratings[0] for item in items])
    clean, inventing = _ordered_pairs(_grouped([image_key(item.image) for item in items]), ratings)
    lengths = np.array([len(item.caption.split()) for item in items])
    alike = np.abs(lengths[clean] - lengths[inventing]) <= _WORDS_APART
    return [
        Statistic("pairs", partial(_pair_accuracy, clean, inventing)),
        Statistic("pairs/matched length", partial(_pair_accuracy, clean[alike], inventing[alike])),
        _single(items, "auc"),
    ]


def images(items: Items) -> list[Statistic]:
    """Images of one prompt: how often the best-rated one scores highest, and accuracy over pairs of unequal ratings.

    Equal scores share the credit. Every prompt counts once in `best`.
    """
    ratings = np.array([np.nanmean(item.ratings) for item in items])
    groups = _grouped([item.group for item in items])
    prompts = [numbers for numbers in groups if len(set(ratings[numbers].tolist())) > 1]
    better, worse = _ordered_pairs(prompts, ratings)
    return [
        Statistic("best", partial(_best_chosen, prompts, ratings)),
        Statistic("pairs", partial(_pair_accuracy, better, worse)),
    ]


def _grouped(keys: Sequence[str]) -> list[list[int]]:
    """Return the indices of equal keys."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        groups[key].append(number)
    return list(groups.values())


def _ordered_pairs(groups: Sequence[list[int]], ratings: Floats) -> tuple[Ints, Ints]:
    """Return the indices of all pairs of different ratings within the groups: the better items, and the worse ones."""
    pairs = [pair for own in groups for pair in permutations(own, 2) if ratings[pair[0]] > ratings[pair[1]]]
    better, worse = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return better, worse


def _best_chosen(prompts: Sequence[list[int]], ratings: Floats, scores: Floats) -> Measured:
    """Return the share of prompts with the best-rated image on top; prompts with an unscored image are missing."""
    known = [numbers for numbers in prompts if not np.isnan(scores[numbers]).any()]
    tops = [[n for n in numbers if scores[n] == scores[numbers].max()] for numbers in known]
    credit = np.array([
        np.mean(ratings[top] == ratings[numbers].max()) for top, numbers in zip(tops, known, strict=True)
    ])  # fmt: skip
    first = np.array([numbers[0] for numbers in known], dtype=np.int64)
    ties = sum(len(top) > 1 for top in tops)
    return Measured(lambda weights: _mean(credit, weights[first]), len(known), len(prompts) - len(known), ties)


def _single(items: Items, name: str, *, subset: str | None = None) -> Statistic:
    """Return a statistic of the item's score in which every single rating is an observation."""
    at = [number for number, item in enumerate(items) if subset is None or item.subset == subset]
    owner = np.repeat(np.array(at, dtype=np.int64), [len(items[number].ratings) for number in at])
    ratings = np.array([rating for number in at for rating in items[number].ratings], dtype=np.float64)
    title = name if subset is None else f"{name}/{subset}"
    return _correlation(title, name, ratings, owner, compared=name in ("tau_c", "tau_b", "auc"))


def _correlation(name: str, method: str, ratings: Floats, owner: Ints, *, compared: bool = True) -> Statistic:
    measure, known = MEASURES[method], prepare(ratings, ratings)
    judged = owner[known.kept]  # NaN ratings are ignored, as in the benchmarks' scripts

    def of(scores: Floats) -> Measured:
        mine = scores[judged]
        if np.isnan(mine).any():
            columns = prepare(mine, known.second)
        else:  # the ratings are already prepared
            groups, every = rank_groups(scores)[judged], np.ones(len(judged), dtype=np.bool_)
            columns = replace(known, first=mine, first_groups=groups, kept=every, missing=0)
        kept = judged[columns.kept]
        return Measured(lambda weights: measure(columns, weights[kept]), len(columns), columns.missing)

    return Statistic(name, of, compared=compared)


def _scaled_mean(at: Ints, scores: Floats) -> Measured:
    """Return the mean score of some captions, in standard deviations over all."""
    mine = ((scores - np.nanmean(scores)) / (np.nanstd(scores) or np.nan))[at]
    kept = ~np.isnan(mine)
    return Measured(lambda weights: _mean(mine[kept], weights[at][kept]), int(kept.sum()), int((~kept).sum()))


def _place(systems: NDArray[np.str_], scores: Floats) -> Measured:
    kept, names = ~np.isnan(scores), set(systems.tolist())

    def rank(weights: Floats) -> float:
        means = {name: _mean(scores[kept & (systems == name)], weights[kept & (systems == name)]) for name in names}
        return 1.0 + sum(mean > means[HUMAN] for name, mean in means.items() if name != HUMAN)

    return Measured(rank, len(names), int((~kept).sum()))


def _mean(values: Floats, weights: Floats) -> float:
    return float(weights @ values / weights.sum()) if weights.sum() > 0 else float("nan")


def _pair_accuracy(better: Ints, worse: Ints, scores: Floats) -> Measured:
    gap = scores[better] - scores[worse]
    kept = ~np.isnan(gap)
    credit = np.where(gap == 0, 0.5, gap > 0)[kept]
    first = better[kept]  # items of one image are drawn together, so a pair has the weight of its first caption
    counts = int(kept.sum()), int((~kept).sum()), int((gap == 0).sum())
    return Measured(lambda weights: _mean(credit, weights[first]), *counts)
