"""Rankings of captioners on shared images: means, ranks and differences, with intervals and significance tests."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np

from msdscore.errors import InputError, unknown_name
from msdscore.forms.registry import columns_logged, heading, lower_is_better
from msdscore.intervals import Interval, Resampling, bootstrap_mean
from msdscore_lab.benchmarks.results.grids import FEW_IMAGES, NONE, Grid, p_value
from msdscore_lab.benchmarks.results.result import plain
from msdscore_lab.captioners.contest import Contest
from msdscore_lab.stats.differences import Differences, all_pairs, bootstrap_means, compare_means, ranks_of
from msdscore_lab.stats.ranks import kendall_b, prepare, spearman

RANKED_BY = ("ref_msd", "msd", "soft_msd", "match")  # metrics with significance tests
_LEVEL, _POWER = 0.05, 0.8
_UNBOUNDED = 1e6  # ends of an interval that are not shown
_MAX_IMAGES_NEEDED = 100_000  # larger estimates are not shown
_EXTRAS = {"interval": "95 % interval", "rank": "rank", "p": "p vs. best", "n": "n"}


@dataclass(frozen=True, slots=True)
class CaptionerRank:
    """Result of one captioner in one metric: its mean with an interval over images, and its rank.

    The interval of the rank follows from the significance of all pairs.
    """

    captioner: str
    mean: Interval
    rank: Interval


@dataclass(frozen=True, slots=True)
class Duel:
    """Comparison of two captioners in one metric: the difference of their means, and its significance.

    Interval and p-value are corrected for all pairs of the metric, and agree: p < 0.05 exactly if the 95 % interval
    excludes 0.
    """

    first: str
    second: str
    difference: Interval
    error: float  # standard error of the difference
    p_value: float


@dataclass(frozen=True, slots=True)
class MetricRanking:
    """All captioners in one metric, best first, and all their pairs."""

    metric: str
    lower_is_better: bool
    placed: tuple[CaptionerRank, ...]
    duels: tuple[Duel, ...]


@dataclass(frozen=True, slots=True)
class PeopleAgreement:
    """Agreement between the ranking by a metric and the ranking by another column, such as human ratings."""

    metric: str
    column: str
    spearman: float
    kendall: float
    same_winner: Interval | None  # share of caption pairs of one image in the same order; None: no such pair


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rankings of the captioners by all metrics."""

    contest: Contest
    metrics: tuple[MetricRanking, ...]
    people: MetricRanking | None
    agreements: tuple[PeopleAgreement, ...]
    samples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an undefined number, such as an interval of one image, is None."""
        contest = self.contest
        values = {
            "signature": contest.signature,
            "files": [str(path) for path in contest.files],
            "captioners": list(contest.captioners),
            "images": len(contest.images),
            "left_out": contest.left_out,
            "samples": self.samples,
            "seed": self.seed,
            "metrics": [asdict(metric) for metric in self.metrics],
            "people": None if self.people is None else asdict(self.people),
            "agreements": [asdict(agreement) for agreement in self.agreements],
        }
        return dict(plain(values))


def ranking_grids(ranking: Ranking, columns: Sequence[str] = ()) -> list[Grid]:
    """Return the captioners with the selected columns, then the pairs in every metric among them.

    By default, the first score with its interval, human ratings, the test against the best captioner and the number of
    images; `all` selects all scores with their ranks.
    """
    people = [ranking.people.metric] if ranking.people else []
    selected = columns or (ranking.metrics[0].metric, *people, "interval", "p", "n")
    if list(columns) == ["all"]:
        selected = (*(metric.metric for metric in ranking.metrics), *people, "interval", "rank")
    grid = _means_grid(ranking, selected)
    notes = [*_notes_of(ranking), ranking.contest.signature]
    if "p" in selected:
        notes.insert(0, f"p: against the best captioner, {_method(ranking)}")
    return [replace(grid, notes=tuple(notes)), *_duel_grids(ranking, selected)]


def rank(contest: Contest, *, people: str | None = None, how: Resampling) -> Ranking:
    """Rank the captioners by every metric that all captions have."""
    ordered = dict.fromkeys((*RANKED_BY, "ref_msd", "soft_msd", *columns_logged()))
    names = [name for name in ordered if name in contest.numbers and not np.isnan(contest.means(name)).any()]
    columns = [*names, *([] if people is None else [people])]
    tables = [contest.means(name) for name in columns]
    means, size = bootstrap_means(np.hstack(tables), how=how), len(contest.captioners)
    compared = compare_means([all_pairs(table) for table in tables], how=how)
    rankings = tuple(
        _metric(contest.captioners, name, means[at * size : (at + 1) * size], pairs)
        for at, (name, pairs) in enumerate(zip(columns, compared, strict=True))
    )
    if people is None:
        return Ranking(contest, rankings, None, (), how.samples, how.seed)
    agreements = tuple(_agreement(contest, name, people, how) for name in (*RANKED_BY, "similarity") if name in names)
    return Ranking(contest, rankings[:-1], rankings[-1], agreements, how.samples, how.seed)


def _metric(captioners: Sequence[str], name: str, means: Sequence[Interval], pairs: Differences) -> MetricRanking:
    is_lower = name in lower_is_better()
    ranks = ranks_of(means, pairs, lower_is_better=is_lower)
    placed = [CaptionerRank(*facts) for facts in zip(captioners, means, ranks, strict=True)]
    placed.sort(key=lambda row: (row.rank.value, row.captioner))
    facts = zip(combinations(captioners, 2), pairs.intervals, pairs.errors, pairs.p_values, strict=True)
    duels = [Duel(*pair, difference, float(error), float(p)) for pair, difference, error, p in facts]
    return MetricRanking(name, is_lower, tuple(placed), tuple(duels if name in RANKED_BY else ()))


def _agreement(contest: Contest, name: str, people: str, how: Resampling) -> PeopleAgreement:
    scores, ratings = (-1.0 if name in lower_is_better() else 1.0) * contest.means(name), contest.means(people)
    first, second = np.triu_indices(len(contest.captioners), 1)
    preference = ratings[:, first] - ratings[:, second]
    images, _ = decided = preference.nonzero()
    agrees = 0.5 + 0.5 * np.sign(preference * (scores[:, first] - scores[:, second]))[decided]
    share = bootstrap_mean(agrees, clusters=images.tolist(), how=how) if len(agrees) else None
    columns = prepare(scores.mean(axis=0), ratings.mean(axis=0))
    return PeopleAgreement(name, people, spearman(columns), kendall_b(columns), share)


def _means_grid(ranking: Ranking, columns: Sequence[str]) -> Grid:
    """Return one row per captioner, in the order of the first number.

    `columns` are names of numbers, each followed by its `interval`, its `rank` and `p` (against the
    best captioner) if these are among the columns, and `n`, the number of images. With several numbers, intervals
    are in the cells of the numbers, and the other headings name their number.
    """
    selected, signature = _selected(ranking, columns), ranking.contest.signature
    cells: dict[str, list[str]] = {row.captioner: [row.captioner] for row in selected[0].placed}
    order, is_single = list(cells), len(selected) == 1
    headings, best = ["captioner"], set[tuple[int, int]]()
    for metric in selected:
        extras = [name for name in columns if name == "rank" or (name == "p" and metric.duels)]
        extras = ["interval", *extras] if is_single and "interval" in columns else extras
        name, column = heading(metric.metric, signature), len(headings)
        headings.append(f"{name} ↓" if metric.lower_is_better else name)
        headings += [_EXTRAS[extra] if is_single else f"{name}, {_EXTRAS[extra]}" for extra in extras]
        p_values = {rival: duel.p_value for rival, duel in _rivals(metric)}
        for row in metric.placed:
            p, at = p_values.get(row.captioner, float("nan")), order.index(row.captioner)
            texts = {"interval": _ends(row.mean) or NONE, "rank": _rank(row.rank), "p": p_value(p)}
            mean = f"{row.mean.value:.3f}" if is_single or "interval" not in columns else _with_interval(row.mean)
            cells[row.captioner] += [mean, *(texts[extra] for extra in extras)]
            if row.mean.value == metric.placed[0].mean.value:
                best.add((at, column))
    counts = [str(len(ranking.contest.images))] if "n" in columns else []
    headings += [_EXTRAS["n"]] if counts else []
    rows = tuple((*row, *counts) for row in cells.values())
    return Grid("Captioners", tuple(headings), rows, best=frozenset(best))


def _selected(ranking: Ranking, columns: Sequence[str]) -> list[MetricRanking]:
    """Return the numbers among the names of columns, by default the first one of the ranking."""
    numbers = {metric.metric: metric for metric in (*ranking.metrics, *([ranking.people] if ranking.people else []))}
    for name in columns:
        if name == "ref_msd" and (without := _without_references(ranking.contest)):
            raise InputError(
                f"ref_msd cannot be ranked: {without} images have no references; add them, or omit ref_msd"
            )
        if name not in numbers and name not in _EXTRAS:
            raise unknown_name("column", name, [*numbers, *_EXTRAS])
    return [numbers[name] for name in columns if name in numbers] or [ranking.metrics[0]]


def _notes_of(ranking: Ranking) -> list[str]:
    """Return notes on the images and on the agreement with people."""
    contest = ranking.contest
    count = len(contest.images)
    notes = [f"{count} images described by all; 95 % intervals over images ({ranking.samples:,} draws)"]
    if count < FEW_IMAGES:
        notes.append(f"only {count} images: intervals are rough, and only large differences can be significant")
    if contest.left_out:
        notes.append(f"{contest.left_out} images excluded: a captioner has no caption or no score for them")
    if without := _without_references(contest):
        notes.append(f"ref_msd is not ranked: {without} images have no references")
    return [*notes, *(_agreement_note(agreement, contest.signature) for agreement in ranking.agreements)]


def _without_references(contest: Contest) -> int:
    """Return the number of images without ref_msd, or 0 if none has it."""
    is_missing = np.isnan(contest.numbers.get("ref_msd", np.zeros(0)))
    return 0 if is_missing.all() else len(set(contest.image_of[is_missing].tolist()))


def _agreement_note(agreement: PeopleAgreement, signature: str) -> str:
    values = {"Spearman": agreement.spearman, "Kendall": agreement.kendall}
    correlations = "; ".join(f"{name} {value:.2f}" for name, value in values.items() if value == value)
    correlations = correlations or f"no correlation, since all captioners have the same mean {agreement.column}"
    sentence = f"{heading(agreement.metric, signature)} against {agreement.column}: {correlations}"
    if agreement.same_winner is None:
        return f"{sentence}; {agreement.column} is equal for all captions of each image"
    share, low, high = (
        100 * end for end in (agreement.same_winner.value, agreement.same_winner.low, agreement.same_winner.high)
    )
    ends = f" [{low:.1f}, {high:.1f}]" if low == low else ""
    return f"{sentence}; in people's order: {share:.1f} %{ends} of the pairs of captions with different ratings"


def verdict(ranking: Ranking) -> str:
    """Return one sentence: the best captioner by the first metric, and those without a significant difference."""
    metric = ranking.metrics[0]
    first = metric.placed[0].captioner
    rivals = [rival for rival, duel in _rivals(metric) if not duel.p_value < _LEVEL]
    contest = ranking.contest
    basis = f"by {heading(metric.metric, contest.signature)} on {len(contest.images)} images"
    sentence = f"{first} is the best {basis}: significantly ahead of all others."
    if rivals:
        names = " and ".join(filter(None, (", ".join([first, *rivals[:-1]]), rivals[-1])))
        sentence = f"Too close to call: no significant difference between {names} {basis}."
    if ranking.people is None:
        return sentence
    return f"{sentence} People rate {ranking.people.placed[0].captioner} highest."


def _rivals(metric: MetricRanking) -> list[tuple[str, Duel]]:
    """Return every captioner except the best, with its comparison to the best."""
    best = metric.placed[0].captioner
    duels = [duel for duel in metric.duels if best in (duel.first, duel.second)]
    return [(duel.second if duel.first == best else duel.first, duel) for duel in duels]


def _duel_grids(ranking: Ranking, metrics: Collection[str]) -> list[Grid]:
    """Return a table of all pairs of captioners for each of the metrics that were tested."""
    grids = []
    for metric in (candidate for candidate in ranking.metrics if candidate.duels and candidate.metric in metrics):
        rows = [
            (f"{duel.first} – {duel.second}", _with_interval(duel.difference), p_value(duel.p_value))
            for duel in metric.duels
        ]
        undecided = [duel for duel in metric.duels if not duel.p_value < _LEVEL]
        ties = "; ".join(
            f"{duel.first} and {duel.second}{_images_needed(duel, len(metric.duels))}" for duel in undecided
        )
        note = f"no significant difference at {_LEVEL:g}: {ties}"
        note = note if undecided else f"all differences are significant at {_LEVEL:g}"
        title = f"{heading(metric.metric, ranking.contest.signature)}: all pairs"
        notes = (note, f"p and intervals: {_method(ranking)}")
        grids.append(Grid(title, ("pair", "difference", "p"), tuple(rows), notes))
    return grids


def _method(ranking: Ranking) -> str:
    return f"corrected for all pairs (largest t of {ranking.samples:,} draws of signs per image)"


def _images_needed(duel: Duel, pairs: int) -> str:
    """Return the number of images at which the observed difference would be significant with a power of 80 %.

    It uses normal quantiles and Bonferroni's correction, which many images approach.
    """
    if not (duel.error > 0 and duel.difference.value):
        return ""
    quantiles = NormalDist().inv_cdf(1 - _LEVEL / (2 * pairs)) + NormalDist().inv_cdf(_POWER)
    images = duel.difference.n * (quantiles * duel.error / duel.difference.value) ** 2
    return f" (about {images:,.0f} images or more needed)" if duel.difference.n < images < _MAX_IMAGES_NEEDED else ""


def _with_interval(interval: Interval) -> str:
    """Format a mean with its interval, if it has one."""
    return f"{interval.value:.3f} {_ends(interval)}".rstrip()


def _ends(interval: Interval) -> str:
    """Return the ends of an interval; empty without one, or if two images leave it practically unbounded."""
    return "" if not max(-interval.low, interval.high) < _UNBOUNDED else f"[{interval.low:.3f}, {interval.high:.3f}]"


def _rank(interval: Interval) -> str:
    value, low, high = (f"{end:.1f}".removesuffix(".0") for end in (interval.value, interval.low, interval.high))
    return value if interval.low != interval.low else f"{value} [{low}, {high}]"
