"""Which direction of the divergence serves captions of which length: coverage, support, or both by the gate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msdscore.benchmarks.results.grids import Grid, markdown
from msdscore.stats.resample import Interval, bootstrap_share
from msdscore.studies.ablations.decided import DecidedPairs, quantile_bins
from msdscore.studies.outcome import Chart, ChartLine, per_cent, spelled

DIRECTIONS = ("coverage", "support", "bi-kl")
METRICS = ("cosine", *DIRECTIONS, "msd", "soft-msd")
BUCKETS = 6  # as the paper's table


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Pairs of about equal length in words, and how often each metric prefers the better caption."""

    shortest: float
    longest: float
    mean: float
    pairs: int
    accuracy: dict[str, Interval]


def length_buckets(pairs: DecidedPairs, *, count: int = BUCKETS) -> tuple[LengthBucket, ...]:
    """Accuracies by quantiles of the mean length of the two captions."""
    found = []
    for chosen in quantile_bins(pairs.length, count):
        some = pairs.take(chosen)
        accuracy = {label: bootstrap_share(some.right(label), clusters=some.cluster) for label in some.scores}
        low, high, mean = (float(value) for value in (some.length.min(), some.length.max(), some.length.mean()))
        found.append(LengthBucket(low, high, mean, len(some), accuracy))
    return tuple(found)


def to_dict(buckets: Sequence[LengthBucket]) -> list[dict[str, Any]]:
    """Plain values, for JSON."""
    return [
        {
            "shortest": one.shortest,
            "longest": one.longest,
            "mean": one.mean,
            "pairs": one.pairs,
            "accuracy": {label: spelled(value) for label, value in one.accuracy.items()},
        }
        for one in buckets
    ]


def section(buckets: Sequence[LengthBucket], benchmarks: Sequence[str]) -> str:
    """The table in Markdown, in per cent; the best direction of a bucket is bold."""
    labels = list(buckets[0].accuracy)
    rows = [
        (
            f"{one.shortest:g} to {one.longest:g}",
            str(one.pairs),
            f"{one.mean:.1f}",
            *map(per_cent, one.accuracy.values()),
        )
        for one in buckets
    ]
    best = {
        (place, 3 + labels.index(label))
        for place, one in enumerate(buckets)
        for label in DIRECTIONS
        if one.accuracy[label].value == max(one.accuracy[other].value for other in DIRECTIONS)
    }
    title = f"Accuracy by caption length (mean of the two captions, in words), pairs of {', '.join(benchmarks)}"
    return markdown(Grid(title, ("words", "pairs", "mean", *labels), tuple(rows), (), frozenset(best)))


def charts(buckets: Sequence[LengthBucket]) -> tuple[Chart, ...]:
    """Accuracy over the mean length of a bucket."""
    lines = tuple(
        ChartLine.of(label, {one.mean: one.accuracy[label] for one in buckets}) for label in (*DIRECTIONS, "msd")
    )
    title = "direction by caption length"
    return (Chart(title=title, x_label="words", y_label="accuracy", lines=lines, level=50.0, logarithmic=True),)
