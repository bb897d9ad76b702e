"""Figures of benchmarks that rate single captions: correlations with what people said, AUC, pairs of one image."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from msdscore.benchmarks.base import Rated, image_key
from msdscore.benchmarks.protocols.counting import Floats, Measured, Statistic, words
from msdscore.benchmarks.readers.ratings import HUMAN
from msdscore.stats.ranks import MEASURES, Columns, prepare

Ints = NDArray[np.int64]
Items = Sequence[Rated]
_WORDS_APART = 5  # long captions of the same length: at most so many words apart, as the benchmark's protocol has it
_NAMES = {"tau_c": "kendall_c", "tau_b": "kendall_b", "spearman": "spearman", "pearson": "pearson", "auc": "auc"}


def expert(items: Items) -> list[Statistic]:
    """Flickr8k-Expert: tau-c over the single ratings first; the averaged ratings, often mixed up, say so."""
    single = [_single(items, name) for name in ("tau_c", "tau_b", "spearman", "pearson")]
    return [*single, *(_averaged(items, name) for name in ("tau_c", "tau_b"))]


def crowdflower(items: Items) -> list[Statistic]:
    """Flickr8k-CF: tau-b with the share of yes votes first."""
    return [_single(items, name) for name in ("tau_b", "tau_c", "spearman", "pearson")]


def composite(items: Items) -> list[Statistic]:
    """Composite: tau-c over the pooled sources first, then tau-c of each source."""
    pooled = [_single(items, name) for name in ("tau_c", "tau_b", "spearman", "pearson")]
    sources = [item.subset for item in items]
    return [*pooled, *(_single(items, "tau_c", f"/{name}", _where(sources, name)) for name in dict.fromkeys(sources))]


def thumb(items: Items) -> list[Statistic]:
    """THumB: Pearson's correlation with total, precision and recall, with and without people's captions.

    `place of Human` is the rank of people's captions among the systems by mean score, 1 for the best; `mean/SYSTEM` are
    the means themselves, in standard deviations over all captions.
    """
    values = {"total": np.array([item.ratings[0] for item in items])}
    for name in ("precision", "recall"):
        values[name] = np.array([next(s.value for s in item.scales if s.name == name) for item in items])
    systems = [item.system for item in items]
    machines = np.flatnonzero([name != HUMAN for name in systems])
    statistics = [_pearson(name, column, np.arange(len(items))) for name, column in values.items()]
    statistics += [_pearson(f"{name}/machines", column[machines], machines) for name, column in values.items()]
    names = list(dict.fromkeys(systems))
    if HUMAN in names:
        statistics.append(Statistic("place of Human", lambda scores: _place(scores, systems), compared=False, scale=1))
    return [*statistics, *(_mean_of_system(systems, name) for name in names)]


def hallucinating(items: Items) -> list[Statistic]:
    """Captions that invent against clean ones: AUC over all captions."""
    return [_single(items, "auc")]


def long_captions(items: Items) -> list[Statistic]:
    """Pairs of one image, a clean caption against one that invents: all, those within five words; AUC over captions.

    Shorter captions invent less, so that "shorter wins" is strong over all pairs, and worth nothing at matched length.
    """
    clean, inventing = _pairs_of_images(items)
    lengths = np.array([words(item.caption) for item in items])
    alike = np.abs(lengths[clean] - lengths[inventing]) <= _WORDS_APART
    return [
        _pair_accuracy("pairs", clean, inventing),
        _pair_accuracy("pairs/matched length", clean[alike], inventing[alike]),
        _single(items, "auc"),
    ]


def _observations(items: Items, at: Iterable[int]) -> tuple[Floats, Ints]:
    """Every single rating of some items, and the number of the item it belongs to."""
    chosen = list(at)
    owner = np.repeat(np.array(chosen, dtype=np.int64), [len(items[number].ratings) for number in chosen])
    return np.array([rating for number in chosen for rating in items[number].ratings], dtype=np.float64), owner


def _where(values: Sequence[str], wanted: str) -> list[int]:
    return [number for number, value in enumerate(values) if value == wanted]


def _single(items: Items, name: str, suffix: str = "", at: Iterable[int] | None = None) -> Statistic:
    """Every rating of an item is an observation of its own, against the item's one score."""
    ratings, owner = _observations(items, range(len(items)) if at is None else at)
    return Statistic(
        name + suffix, _correlation(_NAMES[name], ratings, owner), compared=name in ("tau_c", "tau_b", "auc")
    )


def _averaged(items: Items, name: str) -> Statistic:
    means = np.array([np.mean([r for r in item.ratings if r == r] or [np.nan]) for item in items], dtype=np.float64)
    return Statistic(f"{name}/averaged", _correlation(_NAMES[name], means, np.arange(len(means))), compared=False)


def _pearson(name: str, values: Floats, owner: Ints) -> Statistic:
    return Statistic(name, _correlation("pearson", values, owner))


def _correlation(method: str, ratings: Floats, owner: Ints) -> Callable[[Floats], Measured]:
    measure, known = MEASURES[method], prepare(ratings, ratings)
    judged = owner[known.kept]  # a rating that is NaN is no judgement, as the benchmarks' own scripts have it

    def of(scores: Floats) -> Measured:
        columns = _against(known, scores, judged)
        kept = judged[columns.kept]
        return Measured(lambda weights: measure(columns, weights[kept]), len(columns), columns.missing)

    return of


def _against(known: Columns, scores: Floats, owner: Ints) -> Columns:
    """Scores beside ratings that are prepared already; with missing scores both are prepared again."""
    if np.isnan(scores[owner]).any():
        return prepare(scores[owner], known.second)
    groups = np.unique(scores, return_inverse=True)[1].astype(np.int64)[owner]
    every = np.ones(len(owner), dtype=np.bool_)
    return replace(known, first=scores[owner], first_groups=groups, kept=every, missing=0)


def _mean_of_system(systems: Sequence[str], name: str) -> Statistic:
    at = np.array(_where(systems, name))

    def of(scores: Floats) -> Measured:
        scaled = (scores - np.nanmean(scores)) / (np.nanstd(scores) or np.nan)
        mine = scaled[at]
        kept = ~np.isnan(mine)
        return Measured(lambda weights: _mean(mine[kept], weights[at][kept]), int(kept.sum()), int((~kept).sum()))

    return Statistic(f"mean/{name}", of, compared=False, scale=1)


def _place(scores: Floats, systems: Sequence[str]) -> Measured:
    names = np.array(systems)
    kept = ~np.isnan(scores)

    def rank(weights: Floats) -> float:
        means = {name: _mean(scores[kept & (names == name)], weights[kept & (names == name)]) for name in set(systems)}
        return 1.0 + sum(mean > means[HUMAN] for name, mean in means.items() if name != HUMAN)

    return Measured(rank, len(set(systems)), int((~kept).sum()))


def _mean(values: Floats, weights: Floats) -> float:
    return float(weights @ values / weights.sum()) if weights.sum() > 0 else float("nan")


def _pairs_of_images(items: Items) -> tuple[Ints, Ints]:
    """Numbers of the clean and of the inventing caption of every pair of one image."""
    by_image: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        by_image[image_key(item.image)].append(number)
    pairs = [
        (first, second)
        for numbers in by_image.values()
        for first in numbers
        for second in numbers
        if items[first].ratings[0] > items[second].ratings[0]
    ]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _pair_accuracy(name: str, better: Ints, worse: Ints) -> Statistic:
    def of(scores: Floats) -> Measured:
        gap = scores[better] - scores[worse]
        kept = ~np.isnan(gap)
        credit = np.where(gap == 0, 0.5, gap > 0)[kept]
        # Items of one image are drawn together, so that a pair counts as often as its first caption.
        first = better[kept]
        return Measured(
            lambda weights: _mean(credit, weights[first]), int(kept.sum()), int((~kept).sum()), int((gap == 0).sum())
        )

    return Statistic(name, of)
