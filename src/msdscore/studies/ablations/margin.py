"""When the local divergence helps: accuracies by how far apart the similarities of the two captions lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from msdscore.benchmarks.results.grids import Grid, markdown, p_value
from msdscore.core.fusion import set_uncertainty
from msdscore.stats.pairs import mcnemar, mcnemar_clustered
from msdscore.stats.resample import Interval, Resampling, Test, bootstrap_share, paired_difference, permutation_test
from msdscore.studies.ablations.decided import DecidedPairs, Floats, quantile_bins
from msdscore.studies.outcome import Chart, ChartLine, per_cent, spelled

METRICS = ("cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg")
BINS = 5  # as the paper's table
# What is held against what over all pairs.
RIVALS = (("soft-msd", "cosine"), ("msd", "cosine"), ("soft-msd", "msd"), ("soft-msd", "rank-agg"))


@dataclass(frozen=True, slots=True)
class MarginBin:
    """Pairs of about equal cosine margin: mean margin and uncertainty, accuracies, and Soft-MSD less cosine."""

    margin: float
    uncertainty: float
    pairs: int
    accuracy: dict[str, Interval]
    gain: Interval


@dataclass(frozen=True, slots=True)
class Gain:
    """One metric against another over all pairs; McNemar's test as the paper has it, and the one for clusters."""

    first: str
    second: str
    difference: Interval
    tests: tuple[Test, ...]


def margin_bins(pairs: DecidedPairs, *, temperature: float, count: int = BINS) -> tuple[MarginBin, ...]:
    """Accuracies by quantiles of the margin; uncertainty is that of the two captions as a candidate set."""
    margin, uncertainty = _margins(pairs.scores["cosine"]), uncertainties(pairs.scores["cosine"], temperature)
    found = []
    for chosen in quantile_bins(margin, count):
        some = pairs.take(chosen)
        right = {label: some.right(label) for label in some.scores}
        accuracy = {label: bootstrap_share(values, clusters=some.cluster) for label, values in right.items()}
        gain = paired_difference(right["soft-msd"], right["cosine"], clusters=some.cluster)
        means = float(margin[chosen].mean()), float(uncertainty[chosen].mean())
        found.append(MarginBin(*means, len(some), accuracy, gain))
    return tuple(found)


def gains(pairs: DecidedPairs, *, how: Resampling) -> tuple[Gain, ...]:
    """The paired comparisons over all pairs."""
    found = []
    for first, second in RIVALS:
        ours, theirs = pairs.right(first), pairs.right(second)
        tests = (
            mcnemar(ours == 1, theirs == 1),
            mcnemar_clustered(ours == 1, theirs == 1, pairs.cluster),
            permutation_test(ours, theirs, clusters=pairs.cluster, how=how),
        )
        found.append(Gain(first, second, paired_difference(ours, theirs, clusters=pairs.cluster, how=how), tests))
    return tuple(found)


def uncertainties(cosine: Floats, temperature: float) -> Floats:
    """The uncertainty of every pair as a candidate set of two."""
    flat = torch.from_numpy(np.ascontiguousarray(cosine)).reshape(-1)
    sets = torch.arange(len(cosine)).repeat_interleave(2)
    found: Floats = set_uncertainty(flat, sets, temperature=temperature)[::2].numpy()
    return found


def _margins(cosine: Floats) -> Floats:
    found: Floats = np.abs(cosine[:, 0] - cosine[:, 1])
    return found


def to_dict(bins: Sequence[MarginBin], found: Sequence[Gain]) -> dict[str, Any]:
    """Plain values, for JSON."""
    return {
        "bins": [
            {
                "margin": one.margin,
                "uncertainty": one.uncertainty,
                "pairs": one.pairs,
                "accuracy": {label: spelled(value) for label, value in one.accuracy.items()},
                "gain": spelled(one.gain),
            }
            for one in bins
        ],
        "gains": [
            {
                "first": one.first,
                "second": one.second,
                "difference": spelled(one.difference),
                "p": {test.method: test.p_value for test in one.tests},
            }
            for one in found
        ],
    }


def section(title: str, bins: Sequence[MarginBin], found: Sequence[Gain]) -> str:
    """Both tables in Markdown."""
    labels = list(bins[0].accuracy)
    rows = [
        (
            str(place),
            f"{one.margin:.4f}",
            f"{one.uncertainty:.3f}",
            str(one.pairs),
            *map(per_cent, one.accuracy.values()),
            signed(one.gain),
        )
        for place, one in enumerate(bins)
    ]
    columns = ("bin", "mean margin", "mean u", "pairs", *labels, "soft-msd − cosine")
    table = Grid(f"{title}: accuracy by cosine margin", columns, tuple(rows))
    tests = Grid(
        f"{title}: paired differences over all pairs",
        ("metrics", "difference", *(f"p, {test.method}" for test in found[0].tests)),
        tuple((f"{g.first} − {g.second}", signed(g.difference), *(p_value(t.p_value) for t in g.tests)) for g in found),
    )
    return f"{markdown(table)}\n{markdown(tests)}"


def signed(value: Interval) -> str:
    """A difference of shares in per cent, with sign and interval."""
    return f"{100 * value.value:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def charts(title: str, bins: Sequence[MarginBin]) -> tuple[Chart, ...]:
    """Accuracies, and the gain, over the margin."""
    lines = tuple(
        ChartLine.of(label, {one.margin: one.accuracy[label] for one in bins})
        for label in ("cosine", "bi-kl", "msd", "soft-msd", "rank-agg")
    )
    gain = (ChartLine.of("soft-msd − cosine", {one.margin: one.gain for one in bins}),)
    margin = "cosine margin"
    return (
        Chart(title=title, x_label=margin, y_label="accuracy", lines=lines, level=50.0),
        Chart(title=f"{title}: gain of Soft-MSD", x_label=margin, y_label="points", lines=gain, level=0.0),
    )
