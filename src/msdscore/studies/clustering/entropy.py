"""How soft the shares of components are: entropy of responsibilities against caption length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.results.grids import Grid, markdown
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean, bootstrap_share
from msdscore.studies.ablations.decided import quantile_bins
from msdscore.studies.clustering.assignments import NamedCaption, entropies, text_shares
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress, per_cent, spelled

KINDS = {"fixed kappa": "vmf", "adaptive kappa": "vmf-adaptive"}
HARD = 0.01  # nats: below it an assignment counts as hard
BINS = 5
_CAPTIONS = 256  # worked on together


@dataclass(frozen=True, slots=True)
class EntropyBin:
    """Captions of about equal length in tokens: mean entropy and share of hard assignments, by kind of mixture."""

    shortest: int
    longest: int
    captions: int
    entropy: dict[str, Interval]
    hard: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class EntropyStudy:
    """Entropy caption by caption, and in bins of length."""

    lengths: tuple[int, ...]
    each: dict[str, tuple[float, ...]]
    bins: tuple[EntropyBin, ...]
    most: float  # the entropy of equal shares
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "signature": self.signature,
            "largest_possible": self.most,
            "hard_below": HARD,
            "bins": [
                {
                    "shortest": one.shortest,
                    "longest": one.longest,
                    "captions": one.captions,
                    "entropy": {name: spelled(value) for name, value in one.entropy.items()},
                    "hard": {name: spelled(value) for name, value in one.hard.items()},
                }
                for one in self.bins
            ],
            "lengths": self.lengths,
            "entropy": self.each,
        }


def entropy_study(
    pipeline: Pipeline,
    captions: Sequence[NamedCaption],
    *,
    bins: int = BINS,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> EntropyStudy:
    """Mean entropy of the responsibilities of each caption's tokens, with fixed and with adaptive concentration."""
    rows: list[list[float]] = []
    for number, start in enumerate(range(0, len(captions), _CAPTIONS)):
        texts = [one.text for one in captions[start : start + _CAPTIONS]]
        rows += steps(number, partial(_entropies, pipeline, texts))
        progress(min(start + _CAPTIONS, len(captions)), len(captions))
    lengths, *columns = np.array(rows).T
    each = dict(zip(KINDS, columns, strict=True))
    names = np.array([one.picture for one in captions])
    found = tuple(_bin(lengths, each, names, chosen) for chosen in quantile_bins(lengths, bins))
    plain = {name: tuple(values.tolist()) for name, values in each.items()}
    most = float(np.log(pipeline.config.components[1]))
    return EntropyStudy(tuple(lengths.astype(int).tolist()), plain, found, most, pipeline.signature)


def _entropies(pipeline: Pipeline, captions: Sequence[str]) -> list[list[float]]:
    """Length and entropies of every caption."""
    texts = pipeline.embed_texts(captions).require()
    columns = []
    for kind in KINDS.values():
        shares, mask = text_shares(texts, pipeline.config.changed(mixture=kind))
        columns.append(entropies(shares.double(), mask).tolist())
    lengths = texts.vectors.mask.sum(dim=1).tolist()
    rows = list(zip(lengths, *columns, strict=True))
    return [list(rows[texts.row(item)]) for item in range(len(captions))]


def _bin(
    lengths: npt.NDArray[np.float64],
    each: dict[str, npt.NDArray[np.float64]],
    names: npt.NDArray[np.str_],
    chosen: npt.NDArray[np.int64],
) -> EntropyBin:
    mine = names[chosen]
    return EntropyBin(
        int(lengths[chosen].min()),
        int(lengths[chosen].max()),
        len(chosen),
        {name: bootstrap_mean(values[chosen], clusters=mine) for name, values in each.items()},
        {name: bootstrap_share((values[chosen] < HARD).astype(float), clusters=mine) for name, values in each.items()},
    )


def section(result: EntropyStudy) -> str:
    """The table in Markdown."""
    rows = [
        (
            f"{one.shortest} to {one.longest}",
            str(one.captions),
            *(str(one.entropy[name]) for name in KINDS),
            *(per_cent(one.hard[name]) for name in KINDS),
        )
        for one in result.bins
    ]
    heads = [f"entropy, {name}" for name in KINDS] + [f"hard, {name} (%)" for name in KINDS]
    notes = (
        f"entropy in nats, at most {result.most:.3f}; hard: mean entropy of a caption's tokens below {HARD} nats",
        f"`{result.signature}`",
    )
    title = "Entropy of responsibilities by caption length in tokens"
    return markdown(Grid(title, ("tokens", "captions", *heads), tuple(rows), notes))


def charts(result: EntropyStudy) -> tuple[Chart, ...]:
    """Every caption as a point, and the bins as lines."""
    points = tuple(ChartLine(name, tuple(map(float, result.lengths)), values) for name, values in result.each.items())
    middle = {place: (one.shortest + one.longest) / 2 for place, one in enumerate(result.bins)}
    lines = tuple(
        ChartLine.of(name, {middle[place]: one.entropy[name] for place, one in enumerate(result.bins)}, scale=1)
        for name in KINDS
    )
    shared = {"x_label": "tokens", "y_label": "entropy, nats", "level": result.most}
    return (
        Chart(title="responsibility entropy, caption by caption", lines=points, kind="points", **shared),  # type: ignore[arg-type]
        Chart(title="mean by length", lines=lines, **shared),  # type: ignore[arg-type]
    )
