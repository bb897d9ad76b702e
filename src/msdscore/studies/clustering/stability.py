"""Do drawn starts change what is found? Clusterings of tokens, and scores, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.base import Pair, clusters, picture
from msdscore.benchmarks.results.grids import Grid, markdown
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.measurement import numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.clusterings import adjusted_rand
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.ablations.settings import MIXTURES
from msdscore.studies.clustering.assignments import NamedCaption, text_shares
from msdscore.studies.explanations.masking import pair_groups
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress, per_cent, spelled

Floats = npt.NDArray[np.float64]
_CAPTIONS = 128  # worked on together


@dataclass(frozen=True, slots=True)
class ClusterStability:
    """Mean adjusted Rand index over pairs of seeds, of one distribution: over captions, and caption by caption."""

    mixture: str
    mean: Interval
    deviation: float
    each: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreSpread:
    """What drawn starts do to MSD: accuracy per seed, a score's own spread, and the deterministic start beside them."""

    drawn: tuple[float, ...]
    spread: Interval
    deviation: Interval
    between: float
    pairs: int


def cluster_stability(
    pipeline: Pipeline,
    captions: Sequence[NamedCaption],
    *,
    seeds: int,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> tuple[ClusterStability, ...]:
    """Fit every caption's mixture from `seeds` drawn starts, in every distribution, and compare the clusterings."""
    found: dict[str, list[float]] = {name: [] for name in MIXTURES}
    for number, start in enumerate(range(0, len(captions), _CAPTIONS)):
        texts = [one.text for one in captions[start : start + _CAPTIONS]]
        for name, values in steps(number, partial(_rand_indices, pipeline, texts, seeds)).items():
            found[name] += values
        progress(min(start + _CAPTIONS, len(captions)), len(captions))
    names = np.array([one.picture for one in captions])
    return tuple(_stability(name, np.array(values), names) for name, values in found.items())


def score_spread(
    pipeline: Pipeline,
    pairs: Sequence[Pair],
    *,
    seeds: int,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> ScoreSpread:
    """MSD of both captions of every pair from the deterministic start and from `seeds` drawn ones."""
    values: list[list[float]] = []
    order: list[Pair] = []
    for number, some in enumerate(pair_groups(pairs)):
        values += steps(number, partial(_scores, pipeline, some, seeds))
        order += some
        progress(len(order), len(pairs))
    scores = np.array(values).reshape(len(order), 2, seeds + 1)  # pair, right and wrong, spread start then seeds
    right = (scores[:, 0] > scores[:, 1]).astype(np.float64)
    names = clusters(order)
    deviations = scores[:, :, 1:].std(axis=2, ddof=1).mean(axis=1)
    return ScoreSpread(
        tuple(right[:, 1:].mean(axis=0).tolist()),
        bootstrap_mean(right[:, 0], clusters=names),
        bootstrap_mean(deviations, clusters=names),
        float(scores[:, :, 0].std(ddof=1)),
        len(order),
    )


def _rand_indices(pipeline: Pipeline, captions: Sequence[str], seeds: int) -> dict[str, list[float]]:
    """For every distribution the mean index of each caption over all pairs of seeds."""
    texts = pipeline.embed_texts(captions).require()
    order = [texts.row(item) for item in range(len(captions))]
    found = {}
    for name, kind in MIXTURES.items():
        config = pipeline.config.changed(mixture=kind, init="sample")
        labels = [_labels(texts, config.changed(seed=seed)) for seed in range(seeds)]
        found[name] = [
            float(np.mean([adjusted_rand(a[row], b[row]) for a, b in combinations(labels, 2)])) for row in order
        ]
    return found


def _labels(texts: Embedded, config: MSDConfig) -> list[list[int]]:
    """The component that holds each real token, caption by caption."""
    shares, mask = text_shares(texts, config)
    most = shares.argmax(dim=1)
    return [row[real].tolist() for row, real in zip(most, mask, strict=True)]


def _scores(pipeline: Pipeline, some: Sequence[Pair], seeds: int) -> list[list[float]]:
    """MSD of both captions of each pair: with the deterministic start, then with every seed."""
    drawing = Pipeline(pipeline.encoder, pipeline.config.changed(init="sample"), batch_size=pipeline.batch_size)
    decoded = drawing.decode([picture(pair.image) for pair in some])
    images = drawing.embed_images(decoded).require()
    texts = drawing.embed_texts([text for pair in some for text in pair.captions]).require()
    owner = [place for place in range(len(some)) for _ in range(2)]
    configs = [drawing.config.changed(init="spread"), *(drawing.config.changed(seed=seed) for seed in range(seeds))]
    columns = []
    for config in configs:
        one = Pipeline(pipeline.encoder, config)
        columns.append([row.msd for row in numbers(one.measure(images, texts, owner, range(len(owner))), config)])
    return [list(row) for row in zip(*columns, strict=True)]


def _stability(name: str, values: Floats, names: npt.NDArray[np.str_]) -> ClusterStability:
    return ClusterStability(
        name, bootstrap_mean(values, clusters=names), float(values.std(ddof=1)), tuple(values.tolist())
    )


def to_dict(found: Sequence[ClusterStability], spread: ScoreSpread) -> dict[str, Any]:
    """Plain values, for JSON."""
    return {
        "clusterings": [
            {"mixture": one.mixture, "ari": spelled(one.mean), "deviation": one.deviation, "each": one.each}
            for one in found
        ],
        "scores": {
            "accuracy_sample": spread.drawn,
            "accuracy_spread": spelled(spread.spread),
            "deviation_over_seeds": spelled(spread.deviation),
            "deviation_between_captions": spread.between,
            "pairs": spread.pairs,
        },
    }


def section(found: Sequence[ClusterStability], spread: ScoreSpread, signature: str) -> str:
    """Both tables in Markdown."""
    rows = [(one.mixture, str(one.mean), f"{one.deviation:.3f}", str(len(one.each))) for one in found]
    table = Grid(
        "Adjusted Rand index of token clusterings between seeds, mean over captions",
        ("distribution", "mean with 95 % interval", "standard deviation over captions", "captions"),
        tuple(rows),
    )
    drawn = 100 * np.array(spread.drawn)
    over_seeds = f"{drawn.mean():.1f} ({drawn.min():.1f} to {drawn.max():.1f})"
    seeds = Grid(
        f"MSD over {len(drawn)} drawn starts (`sample`) and from the fixed one (`spread`), {spread.pairs} pairs",
        ("figure", "value"),
        (
            ("accuracy, sample: mean over seeds (range)", over_seeds),
            ("accuracy, spread", per_cent(spread.spread)),
            ("standard deviation of a score over seeds", str(spread.deviation)),
            ("standard deviation between captions", f"{spread.between:.4f}"),
        ),
        (f"`{signature}`",),
    )
    return f"{markdown(table)}\n{markdown(seeds)}"


def charts(found: Sequence[ClusterStability]) -> tuple[Chart, ...]:
    """The mean index of every distribution, and the index of every caption, sorted."""
    lines = tuple(
        ChartLine(one.mixture, tuple(np.linspace(0, 1, len(one.each)).tolist()), tuple(sorted(one.each)))
        for one in found
    )
    means = (ChartLine.of("mean", {one.mixture: one.mean for one in found}, scale=1),)
    return (
        Chart(title="adjusted Rand index between seeds", x_label="distribution", y_label="index", lines=means),
        Chart(title="caption by caption", x_label="share of captions", y_label="index", lines=lines, kind="points"),
    )
