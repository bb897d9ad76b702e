"""Many benchmarks in one table: a column each, mean ranks, and published figures to stand beside ours as quotations."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from msdscore.benchmarks.protocols.counting import Figure
from msdscore.benchmarks.results.compare import compare_all
from msdscore.benchmarks.results.grids import NONE, Grid, length_label, number
from msdscore.benchmarks.results.result import Result
from msdscore.errors import InputError
from msdscore.stats.resample import Resampling, bootstrap_mean

_CLIPSCORE = "Hessel et al., EMNLP 2021"
_EXPECTED = "expected values of capevalkit"
_CAPARENA = "Cheng et al., CapArena, 2025, table 2 (agreement with ties)"
_SUGARCREPE = "table of the SugarCrepe repository; the mean of the seven subsets is ours"


@dataclass(frozen=True, slots=True)
class Quoted:
    """One published figure, times 100; `references` marks metrics that read references."""

    benchmark: str
    metric: str
    value: float
    source: str
    references: bool = False


_RATINGS = (  # metric, Flickr8k-Expert tau-c, Flickr8k-CF tau-b, Composite tau-c, source, references
    ("CLIP-S", 51.2, 34.4, 53.8, _CLIPSCORE, False),
    ("RefCLIP-S", 53.0, 36.4, 55.4, _CLIPSCORE, True),
    ("PAC-S B/32", 54.3, 36.0, 55.7, _EXPECTED, False),
    ("RefPAC-S", 55.9, 37.6, 57.3, _EXPECTED, True),
    ("Polos", 56.4, 37.8, 57.6, _EXPECTED, True),
    ("FLEUR", 53.0, 38.6, 63.5, _EXPECTED, False),
    ("RefFLEUR", 51.9, 38.8, 64.2, _EXPECTED, True),
    ("EXPERT", 56.7, 39.3, 65.0, _EXPECTED, False),
)
_ARENA = (
    ("GPT-4o", 62.8, False), ("Qwen2.5-VL", 62.5, False), ("LLaVA-Critic", 60.9, False), ("output length", 58.5, False),
    ("METEOR", 57.6, True), ("Polos", 47.9, True), ("FLEUR", 45.8, False), ("LongCLIPScore", 40.0, False),
    ("CIDEr", 38.4, True), ("CLIP-S", 32.5, False),
)  # fmt: skip
_CREPE = (("GPT-4V", 91.0), ("CLIP bigG/14", 81.9), ("CLIP H/14", 81.6), ("CLIP B/32", 73.1), ("CLIP L/14", 73.0))

QUOTED: tuple[Quoted, ...] = (
    *(
        Quoted(benchmark, name, value, source, references)
        for name, expert, crowd, composite, source, references in _RATINGS
        for benchmark, value in (("flickr8k-expert", expert), ("flickr8k-cf", crowd), ("composite", composite))
    ),
    Quoted("pascal50s", "CLIP-S", 80.7, _CLIPSCORE),
    Quoted("pascal50s", "RefCLIP-S", 83.1, _CLIPSCORE, references=True),
    Quoted("pascal50s", "FLEUR", 83.3, "counted from FLEUR's released outputs"),
    Quoted("foil", "CLIP-S", 87.2, _CLIPSCORE),
    Quoted("foil", "RefCLIP-S", 91.0, f"{_CLIPSCORE}, one reference", references=True),
    *(Quoted("caparena", name, value, _CAPARENA, references) for name, value, references in _ARENA),
    *(Quoted("sugarcrepe", name, value, _SUGARCREPE) for name, value in _CREPE),
)


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


@dataclass(frozen=True, slots=True)
class HeadlineCell:
    """A figure, and whether it differs from the baseline's."""

    figure: Figure
    marked: bool = False


def overview(
    opened: Sequence[StoredResult],
    *,
    against: str = "",
    quoted: bool = False,
    how: Resampling | None = None,
    marked: Mapping[str, set[str]] | None = None,
) -> Grid:
    """One row per metric and encoder, one column per benchmark with its headline figure.

    With `against`, figures that differ from that metric's on the same items (p below 0.05 after Holm's correction over
    the metrics of the benchmark) are marked; `marked` gives the labels by benchmark where they are known already.
    With `quoted`, published figures follow, which are never the best.
    """
    columns = list(dict.fromkeys(entry.column for entry in opened))
    if marked is None:
        tested = opened if against else ()
        marked = {entry.result.benchmark: _different(entry, against, how or Resampling()) for entry in tested}
    cells = headline_cells(opened, marked)
    rows = [
        (label, *(_text(own.get(column)) for column in columns))
        for label, own in zip(labels(list(cells)), cells.values(), strict=True)
    ]
    best = frozenset((row, 1 + at) for at, column in enumerate(columns) for row in _best(column, cells))
    rows += [_length_row(opened, columns)] if any(entry.result.length for entry in opened) else []
    notes = _notes(opened, against)
    if quoted:
        known = [entry for entry in QUOTED if (entry.benchmark, "official") in columns]
        rows += _quoted_rows(known, columns)
        notes += ["(quoted) figures are published ones, on the full sets; (R) metrics read references"]
        notes += [f"{name}: {source}" for source, name in _sources(known).items()]
    titles = [_title(next(entry.result for entry in opened if entry.column == column)) for column in columns]
    return Grid("Headline figures", ("metric", *titles), tuple(rows), tuple(notes), best)


def headline_cells(
    opened: Sequence[StoredResult], marked: Mapping[str, set[str]] | None = None
) -> dict[Row, dict[Column, HeadlineCell]]:
    """The headline figure of every metric on every benchmark that has one."""
    marked = marked or {}
    cells: dict[Row, dict[Column, HeadlineCell]] = defaultdict(dict)
    for entry in opened:
        differs = marked.get(entry.result.benchmark, set())
        for metric in entry.result.metrics:
            if metric.figures:
                row = metric.label, metric.signature.partition("|bench:")[0]
                if entry.column in cells[row] and cells[row][entry.column].figure.value != metric.figures[0].value:
                    raise InputError(
                        f"two results of {entry.result.benchmark} have figures of {metric.label}; expected one of them"
                    )
                cells[row][entry.column] = HeadlineCell(metric.figures[0], metric.label in differs)
    return cells


def labels(rows: Sequence[Row]) -> list[str]:
    """The names of the metrics; where one stands with several signatures, with what tells these apart."""
    signatures: dict[str, list[set[str]]] = defaultdict(list)
    for label, signature in rows:
        signatures[label].append(set(signature.split("|")))
    names = []
    for label, signature in rows:
        shared = set.intersection(*signatures[label])
        own = [part for part in signature.split("|") if part not in shared]
        names.append(f"{label} ({' '.join(own)})" if own else label)
    return names


def _different(entry: StoredResult, against: str, how: Resampling) -> set[str]:
    if not any(metric.label == against and metric.figures for metric in entry.result.metrics):
        return set()
    comparisons = compare_all(entry.result, entry.folder, against, how=how)
    return {label for label, (_, adjusted) in comparisons.items() if adjusted < LEVEL}


def _best(column: Column, cells: dict[Row, dict[Column, HeadlineCell]]) -> list[int]:
    values = {row: own[column].figure.value for row, own in enumerate(cells.values()) if column in own}
    known = {row: value for row, value in values.items() if value == value}
    return [row for row, value in known.items() if value == max(known.values())]


def _text(cell: HeadlineCell | None) -> str:
    return NONE if cell is None else number(cell.figure) + (MARK if cell.marked else "")


def _length_row(opened: Sequence[StoredResult], columns: Sequence[Column]) -> tuple[str, ...]:
    lengths = {entry.column: entry.result.length for entry in opened if entry.result.length is not None}
    ways = {length_label(alone) for alone in lengths.values()}
    label = ways.pop() if len(ways) == 1 else "length alone (better direction)"
    return (label, *(number(lengths[column].figures[0]) if column in lengths else NONE for column in columns))


def _quoted_rows(known: Sequence[Quoted], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    names = {quoted.metric: quoted.references for quoted in known}
    rows = []
    for name, references in names.items():
        mine = {quoted.benchmark: quoted.value for quoted in known if quoted.metric == name}
        cells = (f"{mine[b]:.1f}" if b in mine and protocol == "official" else NONE for b, protocol in columns)
        rows.append((f"{name}{' (R)' if references else ''} (quoted)", *cells))
    return rows


def _sources(known: Sequence[Quoted]) -> dict[str, str]:
    by_source: dict[str, list[str]] = defaultdict(list)
    for quoted in known:
        by_source[quoted.source].append(quoted.metric)
    return {source: ", ".join(dict.fromkeys(names)) for source, names in by_source.items()}


def _title(result: Result) -> str:
    name = next((metric.figures[0].name for metric in result.metrics if metric.figures), "")
    return f"{result.title} {name}" + ("" if result.protocol == "official" else f", {result.protocol}")


def _notes(opened: Sequence[StoredResult], against: str) -> list[str]:
    notes = [f"{MARK} differs from {against} (p < {LEVEL}, Holm over the metrics of a benchmark)"] if against else []
    for entry in opened:
        result = entry.result
        part = "" if result.counted == result.items else f" of {result.items}"
        notes.append(f"{result.title}: {result.counted}{part} items, {result.pictures} pictures")
    return notes


def mean_ranks(opened: Sequence[StoredResult], *, how: Resampling | None = None) -> Grid:
    """Ranks of the headline figures, 1 is best and ties share; intervals of the mean come from resampled benchmarks.

    Only metrics with a figure on every benchmark are ranked.

    Raises:
        InputError: there are fewer than two benchmarks, or fewer than two such metrics.
    """
    columns = list(dict.fromkeys(entry.column for entry in opened))
    cells = headline_cells(opened)
    whole = {row: own_cells for row, own_cells in cells.items() if all(column in own_cells for column in columns)}
    if len(columns) < 2 or len(whole) < 2:
        raise InputError(
            f"expected at least two benchmarks and two metrics that all have, got {len(columns)} and {len(whole)}"
        )
    values = np.array([[own_cells[column].figure.value for column in columns] for own_cells in whole.values()])
    ranks = rankdata(-np.nan_to_num(values, nan=-np.inf), axis=0)
    means = [bootstrap_mean(own, how=how or Resampling()) for own in ranks]
    order = sorted(range(len(means)), key=lambda row_number: means[row_number].value)
    named = labels(list(whole))
    rows = tuple(
        (
            named[row_number],
            f"{means[row_number].value:.2f}",
            f"[{means[row_number].low:.2f}, {means[row_number].high:.2f}]",
            *(f"{rank:g}" for rank in ranks[row_number]),
        )
        for row_number in order
    )
    note = f"1 is best of {len(rows)}; intervals from resampled benchmarks"
    return Grid("Mean ranks", ("metric", "mean rank", "95 % interval", *(name for name, _ in columns)), rows, (note,))
