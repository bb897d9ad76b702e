"""Pairs of a better and a worse caption of one image: divergences by caption length, and gains by margin."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from msdscore.core.paper import set_uncertainty
from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Resampling
from msdscore.lab.benchmarks.base import Battle, Item, Pair, Rated, clusters
from msdscore.lab.benchmarks.results.result import items_of
from msdscore.lab.stats.pairs import credits_of, mcnemar
from msdscore.lab.stats.resample import bootstrap_share, paired_difference, permutation_test
from msdscore.lab.studies.ablations.sweep import PAIRS, VariantResult, named_variants, run_once, run_sweep, sweep_table
from msdscore.lab.studies.context import PAPER, Study
from msdscore.lab.studies.table import Column, Plot, Row, Table, per_cent
from msdscore.scoring.pipeline import Pipeline

Floats = npt.NDArray[np.float64]
Cell = tuple[int, int]  # item, candidate
GATES: dict[str, dict[str, Any]] = {
    "length-gated": {"gate": "length"},
    "coverage only": {"gate": "coverage"},
    "beta 0.5": {"gate": "fixed", "beta": 0.5},
    "support only": {"gate": "support"},
}
LENGTH = "tokens"  # the metric that equals the caption's length
DIRECTIONS = ("coverage", "support", "bi-kl")
DIRECTION_METRICS = ("cosine", *DIRECTIONS, "msd", "soft-msd")
MARGIN_METRICS = ("cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg")
SPLIT = ("coco-cf",)  # benchmarks whose subsets the paper evaluates separately: easy and hard
PLAIN = "difference, plain percentiles"  # as in the paper
# Comparisons over all pairs.
RIVALS = (("soft-msd", "cosine"), ("msd", "cosine"), ("soft-msd", "msd"), ("soft-msd", "rank-agg"))


@dataclass(frozen=True, slots=True)
class DecidedPairs:
    """Scores (pairs, 2) of every metric, the better caption first and higher always better; `length` is in tokens."""

    scores: Mapping[str, Floats]
    length: Floats
    cluster: npt.NDArray[np.str_]
    subset: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.length)

    def right(self, label: str) -> Floats:
        """Return 1 for each pair whose better caption scores strictly higher, else 0."""
        return credits_of(*self.scores[label].T)

    def take(self, chosen: npt.NDArray[Any]) -> "DecidedPairs":
        """Return the chosen pairs."""
        scores = {label: values[chosen] for label, values in self.scores.items()}
        return DecidedPairs(scores, self.length[chosen], self.cluster[chosen], self.subset[chosen])


def direction(
    study: Study,
    *,
    benchmark: Sequence[str] = ("sugarcrepe", "long-captions"),
    buckets: int = 6,  # as the paper's table
    edges: str = "",
) -> list[Table]:
    """Soft-MSD with coverage, support, a fixed weight or the length gate; and each direction by caption length.

    Lengths are in tokens, in `buckets` quantiles or between `edges` (the paper's are "13 15 86 147 227"). Benchmarks
    of long captions use the components of `long`, so that one table has both regimes of the paper.
    """
    pipeline = study.pipeline(PAPER)
    metrics = ("soft-msd", *(label for label in DIRECTION_METRICS if label != "soft-msd"), LENGTH)
    tables, parts = [], []
    for name in benchmark:
        variants = named_variants(GATES, pipeline.encoder, study.form(pipeline, name))
        results = run_sweep(study, study.plan(name, metrics), variants)
        tables.append(sweep_table(results, axis="direction"))
        parts.append(decided_pairs(results[0], DIRECTION_METRICS))
    pairs = joined(parts)
    bins = edge_bins(pairs.length, edges) if edges else quantile_bins(pairs.length, buckets)
    return [*tables, length_table(pairs, benchmark, bins)]


def margin(
    study: Study,
    *,
    benchmark: Sequence[str] = PAIRS,
    bins: int = 5,  # as the paper's table
) -> list[Table]:
    """Gains by the difference of the similarities; Soft-MSD against MSD, cosine and RankAgg."""
    pipeline, tables = study.pipeline(PAPER), []
    for name in benchmark:
        form = study.form(pipeline, name)
        row = run_once(study, study.plan(name, (*MARGIN_METRICS, LENGTH)), Pipeline(pipeline.encoder, form))
        every = decided_pairs(row, MARGIN_METRICS)
        splits = sorted(set(every.subset.tolist())) if name in SPLIT else []
        parts = {"": every} if len(splits) < 2 else {split: every.take(every.subset == split) for split in splits}
        shared = row.about("soft-msd")
        for split, pairs in parts.items():
            title, tail = " ".join(filter(None, (row.result.title, split))), f"-{split}" if split else ""
            bin_rows = margin_rows(pairs, temperature=form.temperature, count=bins)
            gains = gain_rows(pairs, how=study.resampling)
            tests = [Column(name, "", "p") for name in gains[0] if name.startswith("p, ")]
            columns = [Column("metrics"), per_cent("difference", signed=True), per_cent(PLAIN, signed=True), *tests]
            head = f"{title}: paired differences over all pairs"
            tables.append(replace(_margin_table(title, bin_rows, **shared), name=f"bins{tail}"))
            tables.append(Table(name=f"gains{tail}", title=head, columns=columns, rows=gains, **shared))
        tables.append(replace(sweep_table([row], axis="settings"), plots=[]))
    return tables


def decided_pairs(row: VariantResult, labels: Sequence[str]) -> DecidedPairs:
    """Return the pairs of a result that every metric scored: pairs, battles with a winner, or unequal ratings."""
    result, table = row.result, row.table
    items = items_of(table, result.kind)
    cells = _cells(items)
    if not cells:
        raise InputError(f"{result.benchmark} has no two captions of one image of which one is better")
    columns = {}
    for label in labels:
        scores, sign = row.scores(label), 1 if result.metric(label).higher_is_better else -1
        columns[label] = sign * np.array([[scores[cell] for cell in both] for both in cells])
    known = ~np.isnan(np.hstack(list(columns.values()))).any(axis=1)
    tokens = row.scores(LENGTH)
    lengths = np.array([np.mean([tokens[cell] for cell in both]) for both in cells])
    firsts = [items[first[0]] for first, _ in cells]
    names, subsets = clusters(firsts), np.array([item.subset for item in firsts], dtype=np.str_)
    pairs = DecidedPairs(columns, lengths, np.char.add(f"{result.benchmark}/", names), subsets)
    return pairs.take(np.flatnonzero(known))


def joined(parts: Sequence[DecidedPairs]) -> DecidedPairs:
    """Concatenate pairs of several benchmarks."""
    return DecidedPairs(
        {label: np.concatenate([part.scores[label] for part in parts]) for label in parts[0].scores},
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.cluster for part in parts]),
        np.concatenate([part.subset for part in parts]),
    )


def quantile_bins(values: Floats, count: int) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the items in bins of about equal size by increasing value; equal values share a bin.

    >>> [numbers.tolist() for numbers in quantile_bins(np.array([5.0, 1.0, 1.0, 9.0]), 2)]
    [[1, 2], [0, 3]]
    """
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    codes = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def edge_bins(values: Floats, edges: str) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the items between increasing edges, e.g. "13 15 86": below 13, from 13 to below 15, ...

    >>> [numbers.tolist() for numbers in edge_bins(np.array([12.0, 13.0, 20.0]), "13 15")]
    [[0], [1], [2]]
    """
    try:
        bounds = [float(edge) for edge in edges.split()]
    except ValueError:
        raise ConfigError(f"edges should be lengths in tokens such as '13 15 86', got {edges!r}") from None
    codes = np.searchsorted(np.array(sorted(bounds)), values, side="right")
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def length_table(pairs: DecidedPairs, benchmarks: Sequence[str], bins: Sequence[npt.NDArray[np.int64]]) -> Table:
    """Return accuracies by the mean length of the two captions in tokens."""
    rows = []
    for chosen in map(pairs.take, bins):
        low, high, mean = (float(value) for value in (chosen.length.min(), chosen.length.max(), chosen.length.mean()))
        rows.append({"tokens": f"{low:g} to {high:g}", "shortest": low, "longest": high, "mean": mean,
                     "pairs": len(chosen), **_accuracies(chosen)})  # fmt: skip
    plot = Plot(
        x="mean", y=[*DIRECTIONS, "msd"], x_label="tokens", y_label="accuracy", level=50.0, logarithmic=True,
        title="direction by caption length",
    )  # fmt: skip
    return Table(
        name="by_length",
        title=f"Accuracy by caption length (mean of the two captions, in tokens), pairs of {', '.join(benchmarks)}",
        columns=[Column("tokens"), Column("pairs"), Column("mean", "", ".1f"), *map(per_cent, pairs.scores)],
        rows=rows,
        plots=[plot],
    )


def margin_rows(pairs: DecidedPairs, *, temperature: float, count: int) -> list[Row]:
    """Return accuracies by quantiles of the cosine margin; `uncertainty` is that of the candidate set of two."""
    cosine = pairs.scores["cosine"]
    margins, uncertainty = np.abs(cosine[:, 0] - cosine[:, 1]), uncertainties(cosine, temperature)
    rows: list[Row] = []
    for number, numbers in enumerate(quantile_bins(margins, count)):
        chosen = pairs.take(numbers)
        gain = paired_difference(chosen.right("soft-msd"), chosen.right("cosine"), clusters=chosen.cluster)
        means = {"margin": float(margins[numbers].mean()), "uncertainty": float(uncertainty[numbers].mean())}
        rows.append({"bin": number, **means, "pairs": len(chosen), **_accuracies(chosen), "gain": gain})
    return rows


def gain_rows(pairs: DecidedPairs, *, how: Resampling) -> list[Row]:
    """Return paired comparisons over all pairs: interval and McNemar's test of the paper, and those for few images."""
    rows: list[Row] = []
    for first, second in RIVALS:
        ours, theirs = pairs.right(first), pairs.right(second)
        tests = (
            mcnemar(ours == 1, theirs == 1),
            mcnemar(ours == 1, theirs == 1, pairs.cluster),
            permutation_test(ours, theirs, clusters=pairs.cluster, how=how),
        )
        difference, plain = (
            paired_difference(ours, theirs, clusters=pairs.cluster, how=replace(how, expanded=expanded))
            for expanded in (True, False)
        )
        p_values = {f"p, {test.method}": test.p_value for test in tests}
        rows.append({"metrics": f"{first} − {second}", "difference": difference, PLAIN: plain, **p_values})
    return rows


def uncertainties(cosine: Floats, temperature: float) -> Floats:
    """Return the uncertainty of every pair as a candidate set of two."""
    flat = torch.from_numpy(np.array(cosine)).reshape(-1)
    sets = torch.arange(len(cosine)).repeat_interleave(2)
    values: Floats = set_uncertainty(flat, sets, temperature=temperature)[::2].numpy()
    return values


def _accuracies(pairs: DecidedPairs) -> dict[str, Any]:
    return {label: bootstrap_share(pairs.right(label), clusters=pairs.cluster) for label in pairs.scores}


def _margin_table(title: str, rows: Sequence[Row], **shared: Any) -> Table:
    lines = ["cosine", "bi-kl", "msd", "soft-msd", "rank-agg"]
    columns = [Column("bin"), Column("margin", "mean margin", ".4f"), Column("uncertainty", "mean u", ".3f"),
               Column("pairs"), *map(per_cent, MARGIN_METRICS),
               per_cent("gain", "soft-msd − cosine", signed=True)]  # fmt: skip
    accuracy = Plot(x="margin", y=lines, title=title, x_label="cosine margin", y_label="accuracy", level=50.0)
    gain = Plot(x="margin", y=["gain"], title=f"{title}: gain of Soft-MSD", x_label="cosine margin", y_label="points",
                level=0.0)  # fmt: skip
    title = f"{title}: accuracy by cosine margin"
    return Table(name="bins", title=title, columns=columns, rows=rows, plots=[accuracy, gain], **shared)


def _cells(items: Sequence[Item]) -> list[tuple[Cell, Cell]]:
    """Return item and candidate of the better and of the worse caption."""
    cells: list[tuple[Cell, Cell]] = []
    rated: dict[str, list[tuple[float, int]]] = defaultdict(list)
    names = clusters(items)
    for number, item in enumerate(items):
        if isinstance(item, Pair):
            cells.append(((number, 0), (number, 1)))
        elif isinstance(item, Battle) and item.winner in ("a", "b"):
            sides = (number, 0), (number, 1)
            cells.append(sides if item.winner == "a" else (sides[1], sides[0]))
        elif isinstance(item, Rated):
            rated[names[number]].append((float(np.mean(item.ratings)), number))
    for ratings in rated.values():
        cells += [((a, 0), (b, 0)) for first, a in ratings for second, b in ratings if first > second]
    return cells
