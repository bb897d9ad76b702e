"""Figures of benchmarks that rate single captions: correlations with ratings, AUC, pairs of one image."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from msdscore.intervals import Floats, Ints
from msdscore_lab.benchmarks.base import Rated, image_key
from msdscore_lab.benchmarks.protocols.counting import Measured, Statistic
from msdscore_lab.benchmarks.readers.ratings import HUMAN
from msdscore_lab.stats.ranks import MEASURES, prepare, rank_groups

Items = Sequence[Rated]
_WORDS_APART = 5  # maximum difference in words of matched captions, by the benchmark's protocol


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
    """THumB: Pearson's correlation with total, precision and recall, with and without human captions.

    `place of Human` is the rank of the human captions among the systems by mean score, 1 for the best; `mean/SYSTEM`
    are the means themselves, in standard deviations over all captions.
    """
    values = {"total": np.array([item.ratings[0] for item in items])}
    for name in ("precision", "recall"):
        values[name] = np.array([item.scales[name] for item in items])
    systems = np.array([item.system for item in items])
    statistics = []
    for suffix, selected in (("", np.arange(len(items))), ("/machines", np.flatnonzero(systems != HUMAN))):
        statistics += [
            _correlation(name + suffix, "pearson", column[selected], selected) for name, column in values.items()
        ]
    names = list(dict.fromkeys(systems.tolist()))
    if HUMAN in names:
        rank = partial(_human_rank, systems)
        statistics.append(Statistic("place of Human", rank, compared=False, scale=1, direction=-1))
    for name in names:
        measure = partial(_scaled_mean, np.flatnonzero(systems == name))
        statistics.append(Statistic(f"mean/{name}", measure, compared=False, scale=1, direction=0))
    return statistics


def long_captions(items: Items) -> list[Statistic]:
    """Pairs of a clean and a hallucinating caption of one image: all, and those within five words; AUC over captions.

    Shorter captions hallucinate less, so that "shorter wins" is a strong baseline over all pairs, but not at matched
    length.
    """
    ratings = np.array([item.ratings[0] for item in items])
    clean, hallucinated = _ordered_pairs(_grouped([image_key(item.image) for item in items]), ratings)
    lengths = np.array([len(item.caption.split()) for item in items])
    matched = np.abs(lengths[clean] - lengths[hallucinated]) <= _WORDS_APART
    return [
        Statistic("pairs", partial(_pair_accuracy, clean, hallucinated)),
        Statistic("pairs/matched length", partial(_pair_accuracy, clean[matched], hallucinated[matched])),
        _single(items, "auc"),
    ]


def _grouped(keys: Sequence[str]) -> list[list[int]]:
    """Return the indices of the items of each key."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    return list(groups.values())


def _ordered_pairs(groups: Sequence[list[int]], ratings: Floats) -> tuple[Ints, Ints]:
    """Return the indices of all pairs of different ratings within the groups: the better items, and the worse ones."""
    pairs = [pair for indices in groups for pair in permutations(indices, 2) if ratings[pair[0]] > ratings[pair[1]]]
    better, worse = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return better, worse


def _single(items: Items, name: str, *, subset: str | None = None) -> Statistic:
    """Return a correlation in which every single rating is an observation."""
    selected = [index for index, item in enumerate(items) if subset is None or item.subset == subset]
    owner = np.repeat(np.array(selected, dtype=np.int64), [len(items[index].ratings) for index in selected])
    ratings = np.array([rating for index in selected for rating in items[index].ratings], dtype=np.float64)
    title = name if subset is None else f"{name}/{subset}"
    return _correlation(title, name, ratings, owner, compared=name in ("tau_c", "tau_b", "auc"))


def _correlation(name: str, method: str, ratings: Floats, owner: Ints, *, compared: bool = True) -> Statistic:
    statistic, prepared = MEASURES[method], prepare(ratings, ratings)
    judged = owner[prepared.valid]  # NaN ratings are ignored, as in the benchmarks' scripts

    def measure(scores: Floats) -> Measured:
        judged_scores = scores[judged]
        if np.isnan(judged_scores).any():
            columns = prepare(judged_scores, prepared.second)
        else:  # reuse the prepared ratings
            groups, all_valid = rank_groups(scores)[judged], np.ones(len(judged), dtype=np.bool_)
            columns = replace(prepared, first=judged_scores, first_groups=groups, valid=all_valid, missing=0)
        valid = judged[columns.valid]
        return Measured(lambda weights: statistic(columns, weights[valid]), len(columns), columns.missing)

    return Statistic(name, measure, compared=compared)


def _scaled_mean(selected: Ints, scores: Floats) -> Measured:
    """Return the mean score of selected captions, in standard deviations over all captions."""
    scaled = ((scores - np.nanmean(scores)) / (np.nanstd(scores) or np.nan))[selected]
    valid = ~np.isnan(scaled)
    return Measured(
        lambda weights: _mean(scaled[valid], weights[selected][valid]), int(valid.sum()), int((~valid).sum())
    )


def _human_rank(systems: NDArray[np.str_], scores: Floats) -> Measured:
    valid, names = ~np.isnan(scores), set(systems.tolist())

    def rank(weights: Floats) -> float:
        means = {name: _mean(scores[valid & (systems == name)], weights[valid & (systems == name)]) for name in names}
        return 1.0 + sum(mean > means[HUMAN] for name, mean in means.items() if name != HUMAN)

    return Measured(rank, len(names), int((~valid).sum()))


def _mean(values: Floats, weights: Floats) -> float:
    return float(weights @ values / weights.sum()) if weights.sum() > 0 else float("nan")


def _pair_accuracy(better: Ints, worse: Ints, scores: Floats) -> Measured:
    difference = scores[better] - scores[worse]
    valid = ~np.isnan(difference)
    credit = np.where(difference == 0, 0.5, difference > 0)[valid]
    first = better[valid]  # items of one image are resampled together, so both captions of a pair have the same weight
    counts = int(valid.sum()), int((~valid).sum()), int((difference == 0).sum())
    return Measured(lambda weights: _mean(credit, weights[first]), *counts)
