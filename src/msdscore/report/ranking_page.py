"""The page of a ranking of captioners: tables, ranks, what is left out or invented, and wins to look at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from msdscore.benchmarks.results.grids import Grid, p_value
from msdscore.errors import RowError
from msdscore.explain.html import data_uri, whole_page
from msdscore.explain.look import thumbnail
from msdscore.io.images import open_image
from msdscore.report.build import THUMB_PIXELS, rows_with_images
from msdscore.report.ranking import RANKED_BY, Contest, Entry, MetricRanking, Ranking
from msdscore.report.results import EVIDENCE, PAPER
from msdscore.stats.resample import Interval

_WIDTH, _ROW = 460, 26
_SIDE = 320  # of the scatter plot
_LABEL = 14  # height of a label in it
_SURE = 0.05


@dataclass(frozen=True, slots=True)
class Win:
    """An image on which a captioner beats all others, with its caption and that of the best other one."""

    captioner: str
    other: str
    gap: float
    own: Entry
    beaten: Entry


def overview_grid(ranking: Ranking) -> Grid:
    """One row per captioner in the order of MSD: means with intervals, ranks, and people's where they are known."""
    grid = _means(ranking, [*ranking.metrics, *([ranking.people] if ranking.people else [])], "Means and ranks")
    return replace(grid, notes=(*_notes(ranking), ranking.contest.signature))


def _means(ranking: Ranking, metrics: Sequence[MetricRanking], title: str) -> Grid:
    columns = ["captioner"]
    for metric in metrics:
        columns += [f"{metric.metric}{' ↓' if metric.lower_is_better else ''}", "rank"]
    rows = []
    for first in ranking.metrics[0].placed:
        row = [first.captioner]
        for metric in metrics:
            one = next(place for place in metric.placed if place.captioner == first.captioner)
            row += [_plain(one.mean), _rank(one.rank)]
        rows.append(tuple(row))
    return Grid(title, tuple(columns), tuple(rows))


def _notes(ranking: Ranking) -> list[str]:
    contest = ranking.contest
    notes = [f"{len(contest.images)} images described by all; means and ranks with 95 % intervals over images"]
    notes += [f"{contest.left_out} images left out: one captioner lacks them or failed"] if contest.left_out else []
    notes += [
        f"{one.metric} against {one.column}: Spearman {one.spearman:.2f}, Kendall {one.kendall:.2f} over captioners; "
        f"in people's order: {100 * one.same_winner.value:.1f} % [{100 * one.same_winner.low:.1f}, "
        f"{100 * one.same_winner.high:.1f}] of the pairs of captions that people tell apart"
        for one in ranking.agreements
    ]
    return notes


def verdict(ranking: Ranking) -> str:
    """Who is first by MSD, and whom the images do not tell from it, in one sentence."""
    metric = ranking.metrics[0]
    first = metric.placed[0].captioner
    rivals = [
        one.second if one.first == first else one.first
        for one in metric.duels
        if first in (one.first, one.second) and not one.adjusted < _SURE
    ]
    unsure = f"not told apart from {' and '.join(rivals)}" if rivals else "told apart from all others"
    sentence = f"{first} is first by {metric.metric} on {len(ranking.contest.images)} images, {unsure}."
    if ranking.people is None:
        return sentence
    return f"{sentence} People put {ranking.people.placed[0].captioner} first."


def duel_grid(metric: MetricRanking) -> Grid:
    """All pairs of captioners in one metric."""
    rows = tuple(
        (f"{one.first} – {one.second}", _plain(one.difference), p_value(one.p_value), p_value(one.adjusted))
        for one in metric.duels
    )
    unsure = [f"{one.first} and {one.second}" for one in metric.duels if not one.adjusted < _SURE]
    note = f"not told apart at {_SURE:g}: {'; '.join(unsure)}" if unsure else f"all are told apart at {_SURE:g}"
    columns = ("pair", "difference", "p", "p, Holm")
    return Grid(f"{metric.metric}: pairs, by swapping them image by image", columns, rows, (note,))


def wins(contest: Contest, captioner: str, count: int, *, by: str = "msd") -> list[Win]:
    """The images on which a captioner is furthest ahead of the best of the others."""
    found = []
    for what in contest.images:
        best = {who: max(contest.entries[who][what], key=lambda one: one.numbers[by]) for who in contest.captioners}
        other = max((who for who in contest.captioners if who != captioner), key=lambda who: best[who].numbers[by])
        gap = best[captioner].numbers[by] - best[other].numbers[by]
        if gap > 0:
            found.append(Win(captioner, other, gap, best[captioner], best[other]))
    return sorted(found, key=lambda one: -one.gap)[:count]


def page(ranking: Ranking, *, title: str, show: int = 3, images: Path | None = None, rows: Path | None = None) -> str:
    """The whole document; it fetches nothing."""
    contest = ranking.contest
    shown = {who: wins(contest, who, show) for who in (one.captioner for one in ranking.metrics[0].placed)}
    thumbs = _thumbs(contest, [one.own for some in shown.values() for one in some], images, rows)
    values = {
        "title": title,
        "verdict": verdict(ranking),
        "overview": replace(_means(ranking, _drawn(ranking), "Means and ranks"), notes=tuple(_notes(ranking))),
        "parts": _means(ranking, [one for one in ranking.metrics if one.metric not in RANKED_BY], "Parts of the score"),
        "ranks": [(one.metric, rank_plot(one)) for one in _drawn(ranking)],
        "scatter": scatter_plot(ranking),
        "duels": [duel_grid(one) for one in ranking.metrics if one.duels],
        "wins": [(who, [_card(one, thumbs) for one in some]) for who, some in shown.items() if some],
        "signature": contest.signature,
    }
    return whole_page("msdscore.report", "ranking.html", values, styles=["base.css", "ranking.css"])


def rank_plot(metric: MetricRanking) -> Markup:
    """A dot and an interval per captioner, on an axis of ranks."""
    count = len(metric.placed)
    left, step = 150, (_WIDTH - 170) / max(1, count - 1)
    parts = []
    for place in range(count):
        x = left + place * step
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{count * _ROW + 4}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{count * _ROW + 18}">{place + 1}</text>')
    for row, one in enumerate(metric.placed):
        y = row * _ROW + 18
        low, middle, high = (left + (value - 1) * step for value in (one.rank.low, one.rank.value, one.rank.high))
        parts.append(f'<text class="name" x="{left - 14}" y="{y + 4}">{escape(one.captioner[:24])}</text>')
        if np.isfinite(low) and np.isfinite(high):
            parts.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle cx="{middle:.1f}" cy="{y}" r="5"/>')
    return _svg(_WIDTH, count * _ROW + 26, parts, f"ranks by {metric.metric}")


# What the plot of both parts of the score says under its axes and beneath: across, up, and where good captioners are.
_SCATTER = {
    EVIDENCE: (
        "precision ↑: is what is said true?",
        "information ↑: how much is told",
        "near the upper right corner is good: true, and much of it",
    ),
    PAPER: (
        "coverage ↓: what is left out",
        "support divergence ↓: what is invented",
        "near the lower left corner is good: little left out, little invented",
    ),
}


def scatter_plot(ranking: Ranking) -> tuple[Markup, str] | None:
    """Both parts of the score against each other, with intervals, and how to read it; None where they are not known."""
    means = {metric.metric: {place.captioner: place.mean for place in metric.placed} for metric in ranking.metrics}
    names = next((parts for parts in (EVIDENCE, PAPER) if set(parts) <= means.keys()), None)
    if names is None:
        return None
    xs, ys = (means[name] for name in names)
    across, up = _axis(list(xs.values())), _axis(list(ys.values()))
    parts, labels = [f'<rect class="frame" x="40" y="6" width="{_SIDE}" height="{_SIDE}"/>'], list[str]()
    heights = _spread({who: 6 + _SIDE * (1 - up(mean.value)) - 7 for who, mean in ys.items()})
    for who, x in xs.items():
        y = ys[who]
        a, b = 40 + _SIDE * across(x.value), 6 + _SIDE * (1 - up(y.value))
        lines = (
            (40 + _SIDE * across(x.low), 40 + _SIDE * across(x.high), b, b),
            (a, a, 6 + _SIDE * (1 - up(y.low)), 6 + _SIDE * (1 - up(y.high))),
        )
        for ends in lines:
            if np.isfinite(ends).all():
                parts.append('<line class="range" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'.format(*ends))
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5"/>')
        labels.append(f'<text class="at" x="{a + 8:.1f}" y="{heights[who]:.1f}">{escape(who[:24])}</text>')
    below, beside, reading = _SCATTER[names]
    middle = 6 + _SIDE / 2
    parts.append(f'<text class="tick" x="{40 + _SIDE / 2}" y="{_SIDE + 26}">{below}</text>')
    label = f'<text class="tick" transform="translate(24 {middle}) rotate(-90)">{beside}</text>'
    return _svg(_SIDE + 190, _SIDE + 34, [*parts, *labels, label], " against ".join(names)), reading


def _spread(heights: dict[str, float]) -> dict[str, float]:
    """Heights of labels, moved down where one would cover the label above it."""
    moved: dict[str, float] = {}
    for who in sorted(heights, key=lambda who: heights[who]):
        moved[who] = max(heights[who], max(moved.values(), default=-_LABEL) + _LABEL)
    return moved


def _axis(intervals: Sequence[Interval]) -> Any:
    """A function from values to places between 0 and 1, with some room on both sides."""
    ends = [end for one in intervals for end in (one.value, one.low, one.high) if np.isfinite(end)]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 1.0
    return lambda value: (value - low + room) / (high - low + 2 * room)


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> Markup:
    # Names are escaped where they are put in; the rest are numbers of our own.
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def _drawn(ranking: Ranking) -> list[MetricRanking]:
    people = [ranking.people] if ranking.people else []
    return [*(one for one in ranking.metrics if one.metric in RANKED_BY), *people]


def _thumbs(
    contest: Contest, wanted: Sequence[Entry], images: Path | None, rows: Path | None
) -> dict[tuple[int, int], str]:
    thumbs: dict[tuple[int, int], str] = {}
    for number, path in enumerate(contest.files):
        own = [one.row for one in wanted if one.file == number]
        for place, row in rows_with_images(path, rows, images, own).items() if own else ():
            try:
                if row.image is not None:
                    thumbs[number, place] = data_uri(thumbnail(open_image(row.image), THUMB_PIXELS))
            except RowError:  # a card without an image still has its captions
                continue
    return thumbs


def _card(one: Win, thumbs: dict[tuple[int, int], str]) -> dict[str, Any]:
    return {
        "image": thumbs.get((one.own.file, one.own.row)),
        "caption": one.own.caption,
        "other": one.other,
        "beaten": one.beaten.caption,
        "msd": one.own.numbers["msd"],
        "less": one.beaten.numbers["msd"],
    }


def _plain(one: Interval) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def _rank(one: Interval) -> str:
    value, low, high = (f"{end:.1f}".removesuffix(".0") for end in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"
