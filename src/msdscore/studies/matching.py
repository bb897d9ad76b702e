"""Does `match` mean what it says? Predicted probabilities against how often captions do belong to their pictures.

Every picture is shown its own captions, captions of the pictures whose captions are most like its own, and captions of
a picture far away in the list: the same three kinds that the map was fitted on, own ones counting as much as all others
together. The pictures must be others than those of the bank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.base import picture
from msdscore.benchmarks.readers.captioned import CaptionedPicture
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.scoring.calibrate import similar_texts
from msdscore.scoring.embedded import require_some
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.ranks import auc, prepare
from msdscore.stats.resample import Interval, bootstrap
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress, per_cent

Floats = npt.NDArray[np.float64]
BINS = 10
_PICTURES = 16  # worked on together
KINDS = ("own", "similar", "other")


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Captions whose `match` falls between two tenths: what was predicted of them on average, and how many belong."""

    low: float
    high: float
    n: int
    predicted: float
    observed: Interval


@dataclass(frozen=True, slots=True)
class Reliability:
    """The bins, the mean distance between predicted and observed, and what each kind of caption gets."""

    bins: tuple[ReliabilityBin, ...]
    error: Interval
    medians: dict[str, float]
    areas: dict[str, float]  # own captions against the two other kinds
    pictures: int
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Judged:
    match: Floats
    own: npt.NDArray[np.bool_]
    clusters: npt.NDArray[np.int64]

    @property
    def shares(self) -> Floats:
        """Own captions count as much as all others together."""
        truth = self.own.mean()
        return np.where(self.own, 0.5 / truth, 0.5 / (1 - truth))


def reliability(
    pipeline: Pipeline,
    entries: Sequence[CaptionedPicture],
    *,
    limit: int | None = None,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> Reliability:
    """The reliability of `match` on captioned pictures, at most `limit` of them; all lend captions to the others."""
    if pipeline.bank is None or pipeline.bank.bank.match is None:
        raise ConfigError(
            "expected settings with a match; build a bank with: msdscore bank PICTURES --pairs ROWS.jsonl"
        )
    if len(entries) < 2:
        raise InputError(f"expected at least 2 captioned pictures, got {len(entries)}")
    similar = similar_texts([entry.captions for entry in entries])
    rows: list[tuple[int, int, float]] = []
    most = len(entries) if limit is None else limit
    chosen = range(0, len(entries), max(1, len(entries) // most))[:most]
    for number, start in enumerate(range(0, len(chosen), _PICTURES)):
        some = chosen[start : start + _PICTURES]
        rows += [tuple(row) for row in steps(number, partial(_measure, pipeline, entries, similar, some))]
        progress(min(start + _PICTURES, len(chosen)), len(chosen))
    if not rows:
        require_some(pipeline.decode([picture(entries[place].image)])[0] for place in chosen)
    return _summary(rows, pipeline.signature)


def _measure(
    pipeline: Pipeline, entries: Sequence[CaptionedPicture], similar: Sequence[Sequence[str]], some: range
) -> list[tuple[int, int, float]]:
    """Picture, kind of caption and match of every caption that could be scored."""
    shown = [(place, kind, text) for place in some for kind, text in _captions(entries, similar, place)]
    decoded = pipeline.decode([picture(entries[place].image) for place in some])
    scored = pipeline.score(decoded, [text for _, _, text in shown], [some.index(place) for place, _, _ in shown])
    return [
        (place, kind, found.match)
        for (place, kind, _), found in zip(shown, scored, strict=True)
        if not isinstance(found, RowError) and found.match is not None
    ]


def _captions(
    entries: Sequence[CaptionedPicture], similar: Sequence[Sequence[str]], place: int
) -> Iterator[tuple[int, str]]:
    """Kind and text of every caption that a picture is shown."""
    away = entries[(place + len(entries) // 2) % len(entries)]
    for kind, texts in enumerate((entries[place].captions, similar[place], away.captions)):
        yield from ((kind, text) for text in texts)


def _summary(rows: Sequence[tuple[int, int, float]], signature: str) -> Reliability:
    if not rows:
        raise ConfigError("no caption has a match; it is known only under the settings that the bank was fitted with")
    place, kind, match = (np.array(column) for column in zip(*rows, strict=True))
    own = kind == 0
    if own.all() or not own.any():
        raise InputError("expected captions that belong to their pictures and captions that do not")
    judged = _Judged(match.astype(np.float64), own, place)
    areas = {KINDS[other]: auc(prepare(match[own | (kind == other)], own[own | (kind == other)])) for other in (1, 2)}
    medians = {name: float(np.median(match[kind == number])) for number, name in enumerate(KINDS)}
    error = bootstrap(partial(_error, judged), len(match), clusters=place)
    return Reliability(tuple(_bins(judged)), error, medians, areas, len(np.unique(place)), signature)


def _bins(judged: _Judged) -> Iterator[ReliabilityBin]:
    tenth, shares = _tenths(judged.match), judged.shares
    for number in range(BINS):
        here = tenth == number
        if not here.any():
            continue
        weights, own, clusters = shares[here], judged.own[here], judged.clusters[here]

        def share(drawn: Floats, weights: Floats = weights, own: npt.NDArray[np.bool_] = own) -> float:
            return float((drawn * weights)[own].sum() / max((drawn * weights).sum(), 1e-12))

        predicted = float(np.average(judged.match[here], weights=weights))
        observed = bootstrap(share, int(here.sum()), clusters=clusters)
        yield ReliabilityBin(number / BINS, (number + 1) / BINS, int(here.sum()), predicted, observed)


def _error(judged: _Judged, drawn: Floats) -> float:
    """The expected calibration error: distances of the tenths, weighed by their captions."""
    weights, tenth = drawn * judged.shares, _tenths(judged.match)
    distances = np.bincount(tenth, weights * (judged.match - judged.own), minlength=BINS)
    return float(np.abs(distances).sum() / weights.sum())


def _tenths(match: Floats) -> npt.NDArray[np.int64]:
    return np.minimum((match * BINS).astype(np.int64), BINS - 1)


def section(result: Reliability) -> str:
    """The table of a reliability diagram in Markdown."""
    lines = ["| match | captions | predicted | belong |", "| :--- | ---: | ---: | ---: |"]
    lines += [
        f"| {one.low:.1f} to {one.high:.1f} | {one.n} | {100 * one.predicted:.1f} | {per_cent(one.observed)} |"
        for one in result.bins
    ]
    typical = ", ".join(f"{name} {result.medians[name]:.2f}" for name in KINDS)
    areas = ", ".join(f"{name} {100 * area:.1f}" for name, area in result.areas.items())
    return (
        f"Reliability of match on {result.pictures} pictures (own captions count as much as all others together).\n\n"
        + "\n".join(lines)
        + f"\n\nMean distance between predicted and observed: {per_cent(result.error)}. Median match: {typical}. "
        f"AUC of own captions against: {areas}.\n\n`{result.signature}`\n"
    )


def charts(result: Reliability) -> tuple[Chart, ...]:
    """Predicted against observed, beside what a perfect map would show."""
    observed = {one.predicted: one.observed for one in result.bins}
    lines = (ChartLine("perfect", (0.0, 1.0), (0.0, 1.0)), ChartLine.of("match", observed, scale=1))
    return (Chart(title="Does match mean what it says?", x_label="match", y_label="share that belong", lines=lines),)
