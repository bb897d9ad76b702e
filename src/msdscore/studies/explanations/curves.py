"""Deletion and insertion: how the local divergence moves as regions go, or come, in the order of a map."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from msdscore.benchmarks.base import Pair, clusters
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.explanations.faithfulness import KINDS, CaptionKind, MaskingSettings, ranking
from msdscore.studies.explanations.masking import (
    Floats,
    MeasuredPairs,
    Places,
    drawn_pairs,
    measured_pairs,
    pair_groups,
    without_patches,
)
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress

Order = Literal["map", "random", "reverse"]
Way = Literal["deletion", "insertion"]
ORDERS: tuple[Order, ...] = ("map", "random", "reverse")
WAYS: tuple[Way, ...] = ("deletion", "insertion")
CurveKey = tuple[CaptionKind, Way, Order]
KEYS: tuple[CurveKey, ...] = tuple((kind, way, order) for order in ORDERS for way in WAYS for kind in KINDS)
# Shares of the patches that are gone; a picture without patches has no density.
DELETED = tuple(round(0.1 * step, 1) for step in range(10))


@dataclass(frozen=True, slots=True)
class Curve:
    """d over the share of patches deleted or inserted, and the area under it: mean d along the way."""

    kind: CaptionKind
    way: Way
    order: Order
    shares: tuple[float, ...]
    divergence: tuple[float, ...]
    area: Interval


@dataclass(frozen=True, slots=True)
class Curves:
    """All curves, with what they were made with, and how far the map's area lies from a random order's."""

    curves: tuple[Curve, ...]
    gains: tuple[tuple[CaptionKind, Way, Interval], ...]
    pairs: int
    projection: str
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def curves(
    pipeline: Pipeline,
    pairs: Sequence[Pair],
    settings: MaskingSettings,
    *,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> Curves:
    """Delete and insert patches in the order of the map, at random, and in reverse.

    Right captions follow the support map: deletion should raise d early (a large area), insertion should lower it
    early (a small one). Wrong captions follow the penalty map, with the opposite signs.
    """
    chosen = drawn_pairs(pairs, settings.limit, settings.seed)
    found: dict[CurveKey, list[list[float]]] = {key: [] for key in KEYS}
    order: list[Pair] = []
    for number, some in enumerate(pair_groups(chosen)):
        rng = np.random.default_rng((settings.seed, number))
        for key, values in zip(KEYS, steps(number, partial(_measure, pipeline, some, settings, rng)), strict=True):
            found[key] += values
        order += some
        progress(len(order), len(chosen))
    made = {key: np.array(values) for key, values in found.items()}
    names = clusters(order)
    lines = tuple(_curve(key, values, names) for key, values in made.items())
    gains = tuple(
        (kind, way, bootstrap_mean(_areas(made[kind, way, "map"]) - _areas(made[kind, way, "random"]), clusters=names))
        for kind in KINDS
        for way in WAYS
    )
    return Curves(lines, gains, len(chosen), settings.projection, pipeline.signature)


def _measure(
    pipeline: Pipeline, some: Sequence[Pair], settings: MaskingSettings, rng: np.random.Generator
) -> list[list[list[float]]]:
    """For every key in turn the heights of one curve per pair."""
    known = measured_pairs(pipeline, some, settings.projection)
    ranked = [ranking(known, caption) for caption in range(len(known.regions))]
    shuffled = [rng.permutation(len(one)) for one in ranked]
    orders: dict[Order, list[Places]] = {"map": ranked, "random": shuffled, "reverse": [one[::-1] for one in ranked]}
    found: dict[CurveKey, Floats] = {}
    for name, order in orders.items():
        # Having inserted the first of an order is having deleted the rest, which comes first in its reverse.
        backwards = [one[::-1] for one in order]
        both: dict[Way, Floats] = {
            "deletion": _deletion(pipeline, known, order),
            "insertion": _deletion(pipeline, known, backwards)[:, ::-1],
        }
        for way, values in both.items():
            found |= {(kind, way, name): values[place::2] for place, kind in enumerate(KINDS)}
    return [found[key].tolist() for key in KEYS]


def _deletion(pipeline: Pipeline, known: MeasuredPairs, order: list[Places]) -> Floats:
    """d of every caption (rows) after each share of its order is deleted (columns)."""
    dropped = [_first(one, share) for share in DELETED for one in order]
    return without_patches(pipeline, known, dropped).reshape(len(DELETED), len(order)).T


def _first(order: Places, share: float) -> Places:
    return order[: int(share * len(order))].copy()


def _areas(values: Floats) -> Floats:
    """The mean height of each curve, by the trapezoidal rule."""
    areas: Floats = np.trapezoid(values, dx=1 / (values.shape[1] - 1), axis=1)
    return areas


def _curve(key: CurveKey, values: Floats, names: Any) -> Curve:
    kind, way, order = key
    shares = DELETED if way == "deletion" else tuple(round(1 - share, 1) for share in DELETED[::-1])
    return Curve(kind, way, order, shares, tuple(values.mean(axis=0).tolist()), _mean(_areas(values), names))


def _mean(values: Floats, names: Any) -> Interval:
    return bootstrap_mean(values, clusters=names)


def section(result: Curves) -> str:
    """The table in Markdown."""
    lines = [
        f"Areas under deletion and insertion curves of d (patches dropped), {result.pairs} pairs, projection "
        f"`{result.projection}`, mean with 95 % cluster-bootstrap interval over pictures.",
        "",
        f"`{result.signature}`",
        "",
        "| caption | curve | map | random | reverse | map − random | should be |",
        "|---|---|---|---|---|---|---|",
    ]
    areas = {(curve.kind, curve.way, curve.order): curve.area for curve in result.curves}
    for kind, way, gain in result.gains:
        cells = " | ".join(str(areas[kind, way, order]) for order in ORDERS)
        wanted = "above 0" if (kind == "correct") == (way == "deletion") else "below 0"
        lines.append(f"| {kind} | {way} | {cells} | {gain} | {wanted} |")
    return "\n".join(lines) + "\n"


def charts(result: Curves) -> tuple[Chart, ...]:
    """One panel per kind of caption and way: d along the three orders."""
    return tuple(
        Chart(
            title=f"{kind} captions, {way}",
            x_label=f"share of patches after {way}" if way == "insertion" else "share of patches deleted",
            y_label="d, nats",
            lines=tuple(
                ChartLine(curve.order, curve.shares, curve.divergence)
                for curve in result.curves
                if (curve.kind, curve.way) == (kind, way)
            ),
        )
        for kind in KINDS
        for way in WAYS
    )
