"""Do the maps show what moves the score? Regions are masked, and the local divergence is measured again.

For right captions regions are ranked by the support map, and the number is d(masked) − d(original); for wrong captions
by the penalty map, and the number is d(original) − d(masked). A faithful map gives top > random > bottom for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from msdscore.benchmarks.base import Pair, clusters
from msdscore.errors import ConfigError
from msdscore.explain.maps import PROJECTIONS
from msdscore.explain.terms import PROJECTION
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.explanations.masking import (
    Floats,
    MeasuredPairs,
    Places,
    drawn_pairs,
    measured_pairs,
    pair_groups,
    without_patches,
    without_pixels,
)
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress

CaptionKind = Literal["correct", "incorrect"]
Region = Literal["top", "random", "bottom"]
Masking = Literal["patches", "pixels"]
KINDS: tuple[CaptionKind, ...] = ("correct", "incorrect")
REGIONS: tuple[Region, ...] = ("top", "random", "bottom")
MASKINGS: dict[Masking, Callable[[Pipeline, MeasuredPairs, Sequence[Places]], Floats]] = {
    "patches": without_patches,
    "pixels": without_pixels,
}
Effects = dict[str, list[float]]  # by kind/masking/region, one number per pair


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingSettings:
    """How much is masked, by which map, on how many pairs."""

    share: float = 0.1  # paper, table of faithfulness
    projection: str = PROJECTION
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(f"share must lie between 0 and 0.5, got {self.share}")


@dataclass(frozen=True, slots=True)
class FaithfulnessRow:
    """One line of the table: mean effect of masking each region, and the two differences that make the order."""

    kind: CaptionKind
    masking: Masking
    top: Interval
    random: Interval
    bottom: Interval
    top_over_random: Interval
    random_over_bottom: Interval

    @property
    def ordered(self) -> bool:
        """Whether top > random > bottom."""
        return self.top.value > self.random.value > self.bottom.value


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """The whole table, with what it was made with."""

    rows: tuple[FaithfulnessRow, ...]
    pairs: int
    share: float
    projection: str
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"ordered": all(row.ordered for row in self.rows)}


def faithfulness(
    pipeline: Pipeline,
    pairs: Sequence[Pair],
    settings: MaskingSettings,
    *,
    maskings: Sequence[Masking] = ("patches", "pixels"),
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> Faithfulness:
    """Mask top, random and bottom regions of every pair's picture for both captions."""
    chosen = drawn_pairs(pairs, settings.limit, settings.seed)
    effects: Effects = {}
    order: list[Pair] = []
    for number, some in enumerate(pair_groups(chosen)):
        made = partial(_measure, pipeline, some, settings, maskings, np.random.default_rng((settings.seed, number)))
        for name, values in steps(number, made).items():
            effects.setdefault(name, []).extend(values)
        order += some
        progress(len(order), len(chosen))
    rows = [_row(kind, masking, effects, order) for kind in KINDS for masking in maskings]
    return Faithfulness(tuple(rows), len(chosen), settings.share, settings.projection, pipeline.signature)


def compare_projections(
    pipeline: Pipeline, pairs: Sequence[Pair], settings: MaskingSettings, **options: Any
) -> list[Faithfulness]:
    """The same for every projection: which of them make faithful maps."""
    return [faithfulness(pipeline, pairs, replace(settings, projection=name), **options) for name in PROJECTIONS]


def ranking(known: MeasuredPairs, caption: int) -> Places:
    """Numbers of the patches of a caption's picture, the most important for its kind of map first."""
    regions = known.regions[caption]
    return np.argsort(-(regions.support if caption % 2 == 0 else regions.penalty), kind="stable")


def _measure(
    pipeline: Pipeline,
    some: Sequence[Pair],
    settings: MaskingSettings,
    maskings: Sequence[Masking],
    rng: np.random.Generator,
) -> Effects:
    known = measured_pairs(pipeline, some, settings.projection)
    chosen = [_choose(ranking(known, caption), settings.share, rng) for caption in range(len(known.regions))]
    effects: Effects = {}
    for masking in maskings:
        for region in REGIONS:
            after = MASKINGS[masking](pipeline, known, [places[region] for places in chosen])
            rise = after - known.divergence
            effects[_name("correct", masking, region)] = rise[0::2].tolist()
            effects[_name("incorrect", masking, region)] = (-rise[1::2]).tolist()
    return effects


def _name(kind: CaptionKind, masking: Masking, region: Region) -> str:
    return f"{kind}/{masking}/{region}"


def _choose(order: Places, share: float, rng: np.random.Generator) -> dict[Region, Places]:
    count = max(1, round(share * len(order)))
    return {"top": order[:count], "random": rng.permutation(len(order))[:count], "bottom": order[-count:]}


def _row(
    kind: CaptionKind,
    masking: Masking,
    effects: Effects,
    pairs: list[Pair],
) -> FaithfulnessRow:
    top, middle, bottom = (np.array(effects[_name(kind, masking, region)]) for region in REGIONS)
    columns = (top, middle, bottom, top - middle, middle - bottom)
    return FaithfulnessRow(kind, masking, *(bootstrap_mean(values, clusters=clusters(pairs)) for values in columns))


def section(results: Sequence[Faithfulness]) -> str:
    """The tables in Markdown."""
    first = results[0]
    lines = [
        f"Effect on the local divergence of masking {100 * first.share:g} % of the regions, {first.pairs} pairs, mean "
        "with 95 % cluster-bootstrap interval over pictures. Right captions: support map, d(masked) − d(original). "
        "Wrong captions: penalty map, d(original) − d(masked).",
        "",
        f"`{first.signature}`",
        "",
        "| projection | caption | masked | top | random | bottom | top − random | random − bottom | order |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines += [_line(result.projection, row) for row in result.rows]
    return "\n".join(lines) + "\n"


def charts(result: Faithfulness) -> tuple[Chart, ...]:
    """One panel per kind of caption: what masking each region does."""
    return tuple(
        Chart(
            title=f"{kind} captions, {'support' if kind == 'correct' else 'penalty'} map",
            x_label="masked regions",
            y_label="change of d, nats",
            level=0.0,
            lines=tuple(
                ChartLine.of(row.masking, {"top": row.top, "random": row.random, "bottom": row.bottom}, scale=1)
                for row in result.rows
                if row.kind == kind
            ),
        )
        for kind in KINDS
    )


def _line(projection: str, row: FaithfulnessRow) -> str:
    cells = (row.top, row.random, row.bottom, row.top_over_random, row.random_over_bottom)
    order = "held" if row.ordered else "**not held**"
    return f"| {projection} | {row.kind} | {row.masking} | {' | '.join(map(str, cells))} | {order} |"
