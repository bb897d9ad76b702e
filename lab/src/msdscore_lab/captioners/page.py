"""The HTML page of a ranking of captioners: tables, a forest plot, both parts of the score, and examples of wins."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.explain.html import whole_page
from msdscore.forms.evidence import Evidence
from msdscore.forms.paper import Paper
from msdscore.forms.registry import heading
from msdscore.intervals import Interval
from msdscore.report.build import row_image
from msdscore.report.results import rows_with_images
from msdscore_lab.captioners.contest import Contest
from msdscore_lab.captioners.ranking import (
    RANKED_BY,
    MetricRanking,
    Ranking,
    duel_grids,
    means_grid,
    notes_of,
    verdict,
    with_interval,
)

_SIDE = 320  # pixels of the scatter plot
_LABEL = 14  # height of its labels
# Labels of the plot of both parts of the score: x axis, y axis, and a note on which corner is good.
_SCATTER = {
    Evidence.plotted: (
        "precision ↑: is the caption true?",
        "information ↑: how much does it say?",
        "the upper right corner is best: true and informative",
    ),
    Paper.plotted: (
        "coverage ↓: what is omitted",
        "support divergence ↓: what is invented",
        "the lower left corner is best: little omitted, little invented",
    ),
}


def wins(contest: Contest, captioner: str, count: int) -> list[tuple[float, int, int]]:
    """Return the largest leads of a captioner in MSD: difference, index of its caption and of the best other one."""
    values, captioner_index = contest.numbers["msd"], contest.captioners.index(captioner)
    leads = []
    bounds = np.searchsorted(contest.image_of, np.arange(len(contest.images) + 1))  # captions are sorted by image
    for start, end in pairwise(bounds):
        captions = np.arange(start, end)
        is_own = contest.captioner_of[captions] == captioner_index
        best, best_other = (int(side[values[side].argmax()]) for side in (captions[is_own], captions[~is_own]))
        if values[best] > values[best_other]:
            leads.append((float(values[best] - values[best_other]), best, best_other))
    return sorted(leads, key=lambda win: -win[0])[:count]


def ranking_page(
    ranking: Ranking, *, title: str, show: int = 3, images: Path | None = None, rows: Path | None = None
) -> str:
    """Return the self-contained HTML page."""
    contest = ranking.contest
    ranked = [metric.metric for metric in ranking.metrics if metric.metric in RANKED_BY]
    ranked += [ranking.people.metric] if ranking.people else []
    parts = [metric.metric for metric in ranking.metrics if metric.metric not in RANKED_BY]
    leads_of = {row.captioner: wins(contest, row.captioner, show) for row in ranking.metrics[0].placed}
    thumbs = _thumbs(
        contest, [contest.origins[caption] for leads in leads_of.values() for _, caption, _ in leads], images, rows
    )
    msd = contest.numbers["msd"]
    cards = {
        captioner: [
            {
                "image": thumbs.get(contest.origins[caption]),
                "caption": contest.captions[caption],
                "other": contest.captioners[contest.captioner_of[other_caption]],
                "beaten": contest.captions[other_caption],
                "msd": msd[caption],
                "less": msd[other_caption],
            }
            for _, caption, other_caption in leads
        ]
        for captioner, leads in leads_of.items()
        if leads
    }
    values = {
        "title": title,
        "verdict": verdict(ranking),
        "overview": replace(
            means_grid(ranking, [*ranked, "interval", "rank"], "Means and ranks"), notes=tuple(notes_of(ranking))
        ),
        "parts": means_grid(ranking, [*parts, "interval", "rank"], "Parts of the score") if parts else None,
        "forest": _forest(ranking.metrics[0], contest.signature),
        "scatter": _scatter(ranking),
        "duels": duel_grids(ranking),
        "wins": list(cards.items()),
        "signature": contest.signature,
        "score": heading("msd", contest.signature),
    }
    return whole_page("msdscore.report", "ranking.html", values, styles=["base.css", "ranking.css"])


def _forest(metric: MetricRanking, signature: str) -> dict[str, Any]:
    """Return the plot of the means of a metric: positions of dots, intervals and ticks, and the numbers as text."""
    axis = _axis([row.mean for row in metric.placed])
    rows = []
    for row in metric.placed:
        x, low, high = (135 + 210 * axis(value) for value in (row.mean.value, row.mean.low, row.mean.high))
        if not np.isfinite([low, high]).all():  # a single image has no interval
            low = high = x
        rows.append({"captioner": row.captioner, "x": x, "low": low, "high": high, "text": with_interval(row.mean)})
    limits = [end for row in metric.placed for end in (row.mean.low, row.mean.value, row.mean.high) if np.isfinite(end)]
    ticks = [(135 + 210 * axis(value), f"{value:.2f}") for value in dict.fromkeys((min(limits), max(limits)))]
    return {"metric": heading(metric.metric, signature), "rows": rows, "ticks": ticks}


def _scatter(ranking: Ranking) -> dict[str, Any] | None:
    """Return the plot of both parts of the score with intervals and labels; None if they were not scored."""
    means = {metric.metric: {row.captioner: row.mean for row in metric.placed} for metric in ranking.metrics}
    names = next((parts for parts in (Evidence.plotted, Paper.plotted) if set(parts) <= means.keys()), None)
    if names is None:
        return None
    x_axis, y_axis = (_axis(list(means[name].values())) for name in names)
    heights = _spread(
        {captioner: 6 + _SIDE * (1 - y_axis(mean.value)) - 7 for captioner, mean in means[names[1]].items()}
    )
    points = []
    for captioner, x in means[names[0]].items():
        y = means[names[1]][captioner]
        left, middle, right = (40 + _SIDE * x_axis(value) for value in (x.low, x.value, x.high))
        low, centre, high = (6 + _SIDE * (1 - y_axis(value)) for value in (y.low, y.value, y.high))
        lines = [
            ends for ends in ((left, right, centre, centre), (middle, middle, low, high)) if np.isfinite(ends).all()
        ]
        points.append({"name": captioner, "x": middle, "y": centre, "lines": lines, "label": heights[captioner]})
    x_label, y_label, note = _SCATTER[names]
    return {"side": _SIDE, "points": points, "names": names, "below": x_label, "beside": y_label, "verdict": note}


def _spread(heights: dict[str, float]) -> dict[str, float]:
    """Return vertical positions of labels, moved down so that they do not overlap."""
    moved: dict[str, float] = {}
    for captioner in sorted(heights, key=lambda captioner: heights[captioner]):
        moved[captioner] = max(heights[captioner], max(moved.values(), default=-_LABEL) + _LABEL)
    return moved


def _axis(intervals: Sequence[Interval]) -> Any:
    """Return a function that maps values to [0, 1], with a margin on both sides."""
    limits = [
        end for interval in intervals for end in (interval.value, interval.low, interval.high) if np.isfinite(end)
    ]
    low, high = min(limits), max(limits)
    margin = 0.08 * (high - low) or 1.0
    return lambda value: (value - low + margin) / (high - low + 2 * margin)


def _thumbs(
    contest: Contest, origins: Sequence[tuple[int, int]], images: Path | None, rows: Path | None
) -> dict[tuple[int, int], str]:
    """Return thumbnails by file and row."""
    thumbs: dict[tuple[int, int], str] = {}
    for file_index, path in enumerate(contest.files):
        needed = [row for file, row in origins if file == file_index]
        for position, row in rows_with_images(path, rows, images, needed).items() if needed else ():
            thumbs[file_index, position], _ = row_image(row)  # without an image, the card has captions only
    return thumbs
