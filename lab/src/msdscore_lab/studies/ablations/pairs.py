"""Pairs of a better and a worse caption of one image: divergences by caption length, and gains by margin."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.core.divergence import set_uncertainty
from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Floats, Ints, Resampling, bootstrap_mean
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import Battle, Item, Pair, Rated, clusters
from msdscore_lab.benchmarks.results.result import Result, items_of
from msdscore_lab.stats.differences import compare_means, draws_for, mean_values
from msdscore_lab.stats.pairs import credits_of, mcnemar
from msdscore_lab.stats.resample import bootstrap_share
from msdscore_lab.studies.ablations.sweep import PAIRS, VariantResult, named_variants, run_once, run_sweep, sweep_table
from msdscore_lab.studies.context import PAPER_FORM, Study
from msdscore_lab.studies.table import Column, Plot, Row, Table, per_cent

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
MARGIN_METRICS = ("clipscore", "cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg")
SPLIT = ("coco-cf",)  # benchmarks whose subsets (easy, hard) the paper evaluates separately
PLAIN = "difference, plain percentiles"  # as in the paper
# Metrics that are compared over all pairs.
RIVALS = (("soft-msd", "clipscore"), ("msd", "clipscore"), ("soft-msd", "msd"), ("soft-msd", "rank-agg"))


@dataclass(frozen=True, slots=True)
class DecidedPairs:
    """Scores (pairs, 2) of every metric, the better caption first, higher is better; `length` is in tokens."""

    scores: Mapping[str, Floats]
    length: Floats
    cluster: npt.NDArray[np.str_]
    subset: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.length)

    def correct(self, label: str) -> Floats:
        """Return 1 for each pair whose better caption scores strictly higher, else 0."""
        return credits_of(*self.scores[label].T)

    def take(self, index: npt.NDArray[Any]) -> "DecidedPairs":
        """Return the pairs of an index or mask."""
        scores = {label: values[index] for label, values in self.scores.items()}
        return DecidedPairs(scores, self.length[index], self.cluster[index], self.subset[index])


def direction(
    study: Study,
    *,
    benchmark: Sequence[str] = ("sugarcrepe", "long-captions"),
    edges: str = "",
) -> list[Table]:
    """Soft-MSD with coverage, support, a fixed weight or the length gate; and each direction by caption length.

    Lengths are in tokens, in six quantiles or between `edges` (the paper's are "13 15 86 147 227"). Benchmarks
    of long captions use the components of `long`, so that one table has both regimes of the paper.
    """
    pipeline = study.pipeline(PAPER_FORM)
    tables, parts = [], []
    for name in benchmark:
        variants = named_variants(GATES, pipeline.encoder, study.form(pipeline, name))
        (gated,) = run_sweep(study, study.plan(name, (*DIRECTION_METRICS, LENGTH)), variants[:1])
        parts.append(decided_pairs(gated, DIRECTION_METRICS))
        tables.append(sweep_table(run_sweep(study, study.plan(name, ("soft-msd",)), variants), axis="direction"))
    pairs = concatenate(parts)
    bins = edge_bins(pairs.length, edges) if edges else quantile_bins(pairs.length, 6)
    return [*tables, length_table(pairs, benchmark, bins)]


def margin(
    study: Study,
    *,
    benchmark: Sequence[str] = PAIRS,
    bins: int = 5,  # as the paper's table
) -> list[Table]:
    """Gains by the difference of the similarities; Soft-MSD against MSD, CLIPScore and RankAgg."""
    pipeline, tables = study.pipeline(PAPER_FORM), []
    for name in benchmark:
        form = study.form(pipeline, name)
        row = run_once(study, study.plan(name, (*MARGIN_METRICS, LENGTH)), Pipeline(pipeline.encoder, form))
        all_pairs = decided_pairs(row, MARGIN_METRICS)
        splits = sorted(set(all_pairs.subset.tolist())) if name in SPLIT else []
        parts = (
            {"": all_pairs}
            if len(splits) < 2
            else {split: all_pairs.take(all_pairs.subset == split) for split in splits}
        )
        shared = row.about("soft-msd")
        for split, pairs in parts.items():
            notes = _text_only(row.result, split)
            title, suffix = " ".join(filter(None, (row.result.title, split))), f"-{split}" if split else ""
            bin_rows = margin_rows(pairs, temperature=form.temperature, count=bins)
            gains = gain_rows(pairs, how=study.resampling)
            columns = [Column("metrics"), per_cent("difference", signed=True), Column("p", "", "p"),
                       per_cent(PLAIN, signed=True), Column("p, McNemar", "", "p")]  # fmt: skip
            gains_title = f"{title}: paired differences over all pairs"
            tables.append(replace(_margin_table(title, bin_rows, **shared), name=f"bins{suffix}", notes=notes))
            tables.append(
                Table(name=f"gains{suffix}", title=gains_title, columns=columns, rows=gains, notes=notes, **shared)
            )
        tables.append(replace(sweep_table([row], axis="settings"), plots=[]))
    return tables


def _text_only(result: Result, split: str) -> list[str]:
    """Return a note with the accuracy of the words without an image, if the benchmark computes it."""
    figures = (metric.figure(f"accuracy/{split or 'all'}") for metric in result.metrics if metric.label == "text-only")
    return [f"a bag of words without the image is right in {100 * figure.value:.1f} %" for figure in figures if figure]


def decided_pairs(row: VariantResult, labels: Sequence[str]) -> DecidedPairs:
    """Return the pairs of a result that every metric scored: pairs, battles with a winner, or unequal ratings."""
    result, table = row.result, row.table
    items = items_of(table, result.kind)
    cells = _cells(items)
    if not cells:
        raise InputError(f"{result.benchmark} has no pair of captions of one image of which one is better")
    columns = {}
    for label in labels:
        scores, sign = row.scores(label), 1 if result.metric(label).higher_is_better else -1
        columns[label] = sign * np.array([[scores[cell] for cell in pair] for pair in cells])
    scored = ~np.isnan(np.hstack(list(columns.values()))).any(axis=1)
    tokens = row.scores(LENGTH)
    lengths = np.array([np.mean([tokens[cell] for cell in pair]) for pair in cells])
    first_items = [items[first[0]] for first, _ in cells]
    names, subsets = clusters(first_items), np.array([item.subset for item in first_items], dtype=np.str_)
    pairs = DecidedPairs(columns, lengths, np.char.add(f"{result.benchmark}/", names), subsets)
    return pairs.take(np.flatnonzero(scored))


def concatenate(parts: Sequence[DecidedPairs]) -> DecidedPairs:
    """Concatenate pairs of several benchmarks."""
    return DecidedPairs(
        {label: np.concatenate([part.scores[label] for part in parts]) for label in parts[0].scores},
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.cluster for part in parts]),
        np.concatenate([part.subset for part in parts]),
    )


def quantile_bins(values: Floats, count: int) -> list[Ints]:
    """Return the indices of the items in bins of about equal size by increasing value; equal values share a bin.

    >>> [indices.tolist() for indices in quantile_bins(np.array([5.0, 1.0, 1.0, 9.0]), 2)]
    [[1, 2], [0, 3]]
    """
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    codes = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def edge_bins(values: Floats, edges: str) -> list[Ints]:
    """Return the indices of the items between increasing edges, e.g. "13 15 86": below 13, from 13 to below 15, ...

    >>> [indices.tolist() for indices in edge_bins(np.array([12.0, 13.0, 20.0]), "13 15")]
    [[0], [1], [2]]
    """
    try:
        bounds = [float(edge) for edge in edges.split()]
    except ValueError:
        raise ConfigError(f"expected edges in tokens such as '13 15 86', got {edges!r}") from None
    codes = np.searchsorted(np.array(sorted(bounds)), values, side="right")
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def length_table(pairs: DecidedPairs, benchmarks: Sequence[str], bins: Sequence[Ints]) -> Table:
    """Return accuracies by the mean length of the two captions in tokens."""
    rows = []
    for bin_pairs in map(pairs.take, bins):
        low, high, mean = (
            float(value) for value in (bin_pairs.length.min(), bin_pairs.length.max(), bin_pairs.length.mean())
        )
        rows.append({"tokens": f"{low:g} to {high:g}", "shortest": low, "longest": high, "mean": mean,
                     "pairs": len(bin_pairs), **_accuracies(bin_pairs)})  # fmt: skip
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
    """Return accuracies by quantiles of the cosine margin; `uncertainty` is that of the two candidates."""
    cosine = pairs.scores["cosine"]
    margins, uncertainty = np.abs(cosine[:, 0] - cosine[:, 1]), uncertainties(cosine, temperature)
    rows: list[Row] = []
    for bin_index, indices in enumerate(quantile_bins(margins, count)):
        bin_pairs = pairs.take(indices)
        first, second = (bin_pairs.correct(label) for label in RIVALS[0])
        gain = bootstrap_mean(first - second, clusters=bin_pairs.cluster)
        means = {"margin": float(margins[indices].mean()), "uncertainty": float(uncertainty[indices].mean())}
        rows.append({"bin": bin_index, **means, "pairs": len(bin_pairs), **_accuracies(bin_pairs), "gain": gain})
    return rows


def gain_rows(pairs: DecidedPairs, *, how: Resampling) -> list[Row]:
    """Return paired comparisons over all pairs, tested together; also the paper's plain interval and McNemar's test."""
    sides = [(pairs.correct(first), pairs.correct(second)) for first, second in RIVALS]
    columns = mean_values([first - second for first, second in sides], pairs.cluster)
    (tested,) = compare_means([columns], how=draws_for(pairs.cluster, how.seed))
    return [
        {
            "metrics": " − ".join(rivals),
            "difference": interval,
            "p": float(p),
            PLAIN: bootstrap_mean(first - second, clusters=pairs.cluster, how=replace(how, expanded=False)),
            "p, McNemar": mcnemar(first == 1, second == 1),
        }
        for rivals, (first, second), interval, p in zip(RIVALS, sides, tested.intervals, tested.p_values, strict=True)
    ]


def uncertainties(cosine: Floats, temperature: float) -> Floats:
    """Return the uncertainty of every pair as a candidate set of two."""
    sets = np.repeat(np.arange(len(cosine)), 2)
    values: Floats = set_uncertainty(cosine.reshape(-1), sets, temperature=temperature)[::2]
    return values


def _accuracies(pairs: DecidedPairs) -> dict[str, Any]:
    return {label: bootstrap_share(pairs.correct(label), clusters=pairs.cluster) for label in pairs.scores}


def _margin_table(title: str, rows: Sequence[Row], **shared: Any) -> Table:
    lines = ["clipscore", "bi-kl", "msd", "soft-msd", "rank-agg"]
    columns = [Column("bin"), Column("margin", "mean margin", ".4f"), Column("uncertainty", "mean u", ".3f"),
               Column("pairs"), *map(per_cent, MARGIN_METRICS),
               per_cent("gain", " − ".join(RIVALS[0]), signed=True)]  # fmt: skip
    accuracy = Plot(x="margin", y=lines, title=title, x_label="cosine margin", y_label="accuracy", level=50.0)
    gain = Plot(x="margin", y=["gain"], title=f"{title}: gain of Soft-MSD", x_label="cosine margin", y_label="points",
                level=0.0)  # fmt: skip
    title = f"{title}: accuracy by cosine margin"
    return Table(name="bins", title=title, columns=columns, rows=rows, plots=[accuracy, gain], **shared)


def _cells(items: Sequence[Item]) -> list[tuple[Cell, Cell]]:
    """Return (item, candidate) of the better and of the worse caption of every pair."""
    cells: list[tuple[Cell, Cell]] = []
    rated: dict[str, list[tuple[float, int]]] = defaultdict(list)
    names = clusters(items)
    for index, item in enumerate(items):
        if isinstance(item, Pair):
            cells.append(((index, 0), (index, 1)))
        elif isinstance(item, Battle) and item.winner in ("a", "b"):
            sides = (index, 0), (index, 1)
            cells.append(sides if item.winner == "a" else (sides[1], sides[0]))
        elif isinstance(item, Rated):
            rated[names[index]].append((float(np.mean(item.ratings)), index))
    for ratings in rated.values():
        cells += [((a, 0), (b, 0)) for first, a in ratings for second, b in ratings if first > second]
    return cells
