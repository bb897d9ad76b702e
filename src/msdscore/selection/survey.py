"""What a selection looks like: how its numbers are spread, rows on both sides of the cut, agreement with cosine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.selection.choose import Choice, Rule
from msdscore.selection.scores import Floats, ScoreFile, ScoreRows, read_scores
from msdscore.selection.top import Mask
from msdscore.stats.ranks import prepare, spearman

COSINE = "similarity"
SHOWN = ("similarity", "msd", "match", "coverage", "support", "information", "length")
BINS = 60
_SAMPLED = 50_000  # rows from which ranges and rank correlation are taken
_OUTSIDE = 0.001  # share on each side that is put into the last bin
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Rows by the value of one column, in equal steps from `low` to `high`; the last bins hold what lies outside."""

    name: str
    low: float
    high: float
    kept: Ints
    dropped: Ints


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the selection is that of plain cosine, which keeps `kept` rows too; both keep `shared`.

    `expected` is the share that chance alone would share. `correlation` is Spearman's, of the two rankings.
    """

    kept: int
    shared: int
    expected: float
    correlation: float | None

    @property
    def share(self) -> float:
        """The share of its rows that cosine keeps as well."""
        return self.shared / self.kept if self.kept else 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """A row to look at; those with the lowest `order` were picked."""

    file: ScoreFile
    row: int  # among all rows of all files
    order: float
    key: str
    caption: str
    numbers: dict[str, float]
    worst_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """All of it; `examples` by what they show."""

    histograms: tuple[Histogram, ...]
    agreement: Agreement | None
    examples: dict[str, list[Example]] = field(default_factory=dict)


class Surveyor:
    """Gathers a survey in one reading of the rows, in memory that does not grow with them."""

    def __init__(self, files: Sequence[ScoreFile], choice: Choice, cosine: Choice | None, *, show: int) -> None:
        self._choice, self._cosine, self._show = choice, cosine, show
        shared = set.intersection(*(set(file.schema.names) for file in files))
        names = dict.fromkeys([*choice.rule.numbers, *SHOWN])
        self._sample = _sample(files, [name for name in names if name in shared], choice.rule)
        self._histograms = {name: _empty(name, values) for name, values in self._sample.items() if len(values)}
        self._examples: dict[str, list[Example]] = {}
        self._shared = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it needs, where a file has them."""
        return (*self._histograms, "caption", "worst_words", "key", "id")

    def add(self, rows: ScoreRows, kept: Mask, cosine: Mask | None) -> None:
        """Take some rows, which of them are kept, and which cosine would keep."""
        for name, histogram in self._histograms.items():
            _count(histogram, rows.numbers(name), kept)
        rule = self._choice.rule
        order, valid = rows.numbers(rule.by) * (-1 if rule.lower_is_better else 1), rule.valid(rows)
        self._pick("last kept", rows, order, kept)
        self._pick("first dropped", rows, -order, valid & ~kept)
        if cosine is not None:
            self._shared += int((kept & cosine).sum())
            similarity = rows.numbers(COSINE)
            self._pick("kept here, dropped by cosine", rows, similarity, kept & ~cosine)
            self._pick("dropped here, kept by cosine", rows, -similarity, cosine & ~kept)

    def finish(self) -> Survey:
        """The survey of all rows taken."""
        agreement = None
        if self._cosine is not None:
            kept, rows = self._choice.kept, max(self._choice.rows, 1)
            agreement = Agreement(kept, self._shared, self._cosine.kept / rows, self._correlation())
        return Survey(tuple(self._histograms.values()), agreement, self._examples)

    def _correlation(self) -> float | None:
        first, second = self._sample[self._choice.rule.by], self._sample[COSINE]
        whole = ~(np.isnan(first) | np.isnan(second))
        if whole.sum() < 2:
            return None
        sign = -1 if self._choice.rule.lower_is_better else 1
        found = float(spearman(prepare(sign * first[whole], second[whole])))
        return None if np.isnan(found) else found

    def _pick(self, what: str, rows: ScoreRows, order: Floats, among: Mask) -> None:
        """Keep the rows that come first in an order, of all batches so far."""
        places = np.flatnonzero(among & ~np.isnan(order))
        if len(places) > self._show:
            places = places[np.argpartition(order[places], self._show)[: self._show]]
        found = self._examples.setdefault(what, [])
        found += [_example(rows, int(place), float(order[place])) for place in places]
        found.sort(key=lambda one: (one.order, one.row))
        del found[self._show :]


def _sample(files: Sequence[ScoreFile], names: Sequence[str], rule: Rule) -> dict[str, Floats]:
    """Some rows spread evenly over all."""
    step = max(1, sum(file.rows for file in files) // _SAMPLED)
    found: dict[str, list[Floats]] = {name: [] for name in names}
    for rows in read_scores(files, names):
        places = np.arange(-rows.start % step, len(rows), step)
        for name in names:
            found[name].append(rows.numbers(name)[places])
    joined = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in found.items()}
    return {name: values for name, values in joined.items() if name in (rule.by, COSINE) or not np.isnan(values).all()}


def _empty(name: str, values: Floats) -> Histogram:
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [_OUTSIDE, 1 - _OUTSIDE]) if len(finite) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    return Histogram(name, float(low), float(high), np.zeros(BINS, dtype=np.int64), np.zeros(BINS, dtype=np.int64))


def _count(histogram: Histogram, values: Floats, kept: Mask) -> None:
    known = np.isfinite(values)
    scaled = (values - histogram.low) / (histogram.high - histogram.low) * BINS
    bins = np.clip(np.where(known, scaled, 0.0), 0, BINS - 1).astype(np.int64)
    for counts, chosen in ((histogram.kept, kept & known), (histogram.dropped, ~kept & known)):
        counts += np.bincount(bins[chosen], minlength=BINS)


def _example(rows: ScoreRows, place: int, order: float) -> Example:
    names = rows.table.schema.names
    values: dict[str, Any] = {name: rows.table.column(names.index(name))[place].as_py() for name in names}
    numbers = {name: float(values[name]) for name in SHOWN if values.get(name) is not None}
    return Example(
        rows.file,
        rows.start + place,
        order,
        str(values.get(rows.file.key_name)),
        str(values.get("caption") or ""),
        numbers,
        tuple(values.get("worst_words") or ()),
    )
