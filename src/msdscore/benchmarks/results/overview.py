"""Many benchmarks in one table: a column each, mean ranks, and published figures to stand beside ours as quotations."""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from msdscore.benchmarks.protocols.counting import Figure
from msdscore.benchmarks.results.compare import compare_all
from msdscore.benchmarks.results.grids import NONE, Grid, counted, length_label, number, told_apart
from msdscore.benchmarks.results.result import Result
from msdscore.errors import InputError
from msdscore.stats.resample import Resampling, bootstrap_mean


class Quoted(NamedTuple):
    """One published figure, times 100; `references` marks metrics that read references."""

    benchmark: str
    metric: str
    value: float
    source: str
    references: bool


def quoted_figures() -> Iterator[Quoted]:
    """The published figures of `quoted.toml`."""
    for group in tomllib.loads(files("msdscore.benchmarks").joinpath("quoted.toml").read_text("utf-8"))["quoted"]:
        for metric in group["metrics"]:
            for benchmark, value in metric["figures"].items():
                yield Quoted(benchmark, metric["name"], value, group["source"], metric.get("references", False))


MARK = "†"
LEVEL = 0.05
Column = tuple[str, str]  # benchmark, protocol
Row = tuple[str, str]  # metric, and its signature without the benchmark's part


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result with the folder of its scores."""

    result: Result
    folder: Path

    @property
    def column(self) -> Column:
        """The benchmark and the way of counting: one column holds one of each."""
        return self.result.benchmark, self.result.protocol


Cells = dict[Row, dict[Column, Figure]]  # headline figures


def overview(
    opened: Sequence[StoredResult], *, against: str = "", quoted: bool = False, how: Resampling | None = None
) -> Grid:
    """One row per metric and encoder, one column per benchmark with its headline figure.

    With `against`, figures that differ from that metric's on the same items (p below 0.05 after Holm's correction over
    the metrics of the benchmark) are marked. With `quoted`, published figures follow, which are never the best.
    """
    columns = list(dict.fromkeys(entry.column for entry in opened))
    marked = {entry.result.benchmark: _different(entry, against, how or Resampling()) for entry in opened if against}
    cells = _headlines(opened)
    rows = []
    for name, ((label, _), own) in zip(_names(cells), cells.items(), strict=True):
        marks = [MARK if label in marked.get(benchmark, ()) else "" for benchmark, _ in columns]
        texts = (number(own[c]) + mark if c in own else NONE for c, mark in zip(columns, marks, strict=True))
        rows.append((name, *texts))
    best = set()
    for at, column in enumerate(columns, start=1):
        values = {row: own[column].value for row, own in enumerate(cells.values()) if column in own}
        most = max((value for value in values.values() if value == value), default=None)
        best |= {(row, at) for row, value in values.items() if value == most}
    lengths = {entry.column: entry.result.length for entry in opened if entry.result.length is not None}
    if lengths:
        ways = {length_label(alone) for alone in lengths.values()}
        label = ways.pop() if len(ways) == 1 else "length alone (better direction)"
        rows.append((label, *(number(lengths[c].figures[0]) if c in lengths else NONE for c in columns)))
    notes = [f"{MARK} differs from {against} (p < {LEVEL}, Holm over the metrics of a benchmark)"] if against else []
    notes += [f"{e.result.title}: {counted(e.result)} items, {e.result.pictures} images" for e in opened]
    if quoted:
        known = [entry for entry in quoted_figures() if (entry.benchmark, "official") in columns]
        rows += _quoted_rows(known, columns)
        notes += ["(quoted) figures are published ones, on the full sets; (R) metrics read references"]
        for source in dict.fromkeys(entry.source for entry in known):
            names = dict.fromkeys(entry.metric for entry in known if entry.source == source)
            notes.append(f"{', '.join(names)}: {source}")
    titles = [_title(next(entry.result for entry in opened if entry.column == column)) for column in columns]
    return Grid("Headline figures", ("metric", *titles), tuple(rows), tuple(notes), frozenset(best))


def _headlines(opened: Sequence[StoredResult]) -> Cells:
    """The headline figure of every metric on every benchmark that has one."""
    cells: Cells = defaultdict(dict)
    for entry in opened:
        for metric in entry.result.metrics:
            if metric.figures:
                own = cells[metric.label, metric.signature.partition("|bench:")[0]]
                if entry.column in own and own[entry.column].value != metric.figures[0].value:
                    raise InputError(
                        f"two results of {entry.result.benchmark} have figures of {metric.label}; expected one of them"
                    )
                own[entry.column] = metric.figures[0]
    return cells


def _names(rows: Iterable[Row]) -> list[str]:
    """The names of the metrics; where one stands with several signatures, with what tells these apart."""
    signatures: dict[str, list[str]] = defaultdict(list)
    for label, signature in rows:
        signatures[label].append(signature)
    own = {(label, s): part for label, several in signatures.items() for s, part in told_apart(several).items()}
    return [f"{label} ({own[label, signature]})" if own[label, signature] else label for label, signature in rows]


def _different(entry: StoredResult, against: str, how: Resampling) -> set[str]:
    if not any(metric.label == against and metric.figures for metric in entry.result.metrics):
        return set()
    comparisons = compare_all(entry.result, entry.folder, against, how=how)
    return {label for label, (_, adjusted) in comparisons.items() if adjusted < LEVEL}


def _quoted_rows(known: Sequence[Quoted], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    names = {quoted.metric: quoted.references for quoted in known}
    rows = []
    for name, references in names.items():
        mine = {quoted.benchmark: quoted.value for quoted in known if quoted.metric == name}
        cells = (f"{mine[b]:.1f}" if b in mine and protocol == "official" else NONE for b, protocol in columns)
        rows.append((f"{name}{' (R)' if references else ''} (quoted)", *cells))
    return rows


def _title(result: Result) -> str:
    name = next((metric.figures[0].name for metric in result.metrics if metric.figures), "")
    return f"{result.title} {name}" + ("" if result.protocol == "official" else f", {result.protocol}")


def mean_ranks(opened: Sequence[StoredResult], *, how: Resampling | None = None) -> Grid:
    """Ranks of the headline figures, 1 is best and ties share; intervals of the mean come from resampled benchmarks.

    Only metrics with a figure on every benchmark are ranked.

    Raises:
        InputError: there are fewer than two benchmarks, or fewer than two such metrics.
    """
    columns = list(dict.fromkeys(entry.column for entry in opened))
    whole = {row: own for row, own in _headlines(opened).items() if own.keys() >= set(columns)}
    if len(columns) < 2 or len(whole) < 2:
        raise InputError(
            f"expected at least two benchmarks and two metrics that all have, got {len(columns)} and {len(whole)}"
        )
    values = np.array([[own[column].value for column in columns] for own in whole.values()])
    ranks = rankdata(-np.nan_to_num(values, nan=-np.inf), axis=0)
    means = [bootstrap_mean(own, how=how or Resampling()) for own in ranks]
    ranked = sorted(zip(_names(whole), means, ranks, strict=True), key=lambda row: row[1].value)
    rows = tuple(
        (name, f"{mean.value:.2f}", f"[{mean.low:.2f}, {mean.high:.2f}]", *(f"{rank:g}" for rank in own))
        for name, mean, own in ranked
    )
    note = f"1 is best of {len(rows)}; intervals from resampled benchmarks"
    titles = ("metric", "mean rank", "95 % interval", *(name for name, _ in columns))
    return Grid("Mean ranks", titles, rows, (note,))
