"""Captioners ranked on shared images: means, ranks and differences with intervals over images, and significance."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import InputError
from msdscore.report.results import LOWER_IS_BETTER, METRICS, Floats, Results, read_results
from msdscore.scoring.config import facts_of
from msdscore.stats.ranks import kendall_b, prepare, spearman
from msdscore.stats.resample import Interval, Resampling, bootstrap, bootstrap_mean, holm, paired_difference
from msdscore.stats.resample import permutation_test as permute

RANKED_BY = ("msd", "soft_msd", "match")  # what is tested; the other numbers are shown beside them


@dataclass(frozen=True, slots=True)
class Entry:
    """One scored caption of one captioner: which file and row, and its numbers."""

    file: int
    row: int
    caption: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Contest:
    """Captioners and the images that all of them described; `entries[captioner][image]` are the captions."""

    files: tuple[Path, ...]
    signature: str
    captioners: tuple[str, ...]
    images: tuple[str, ...]
    entries: Mapping[str, Mapping[str, tuple[Entry, ...]]]
    left_out: int  # images that one captioner lacks or whose caption could not be scored

    def means(self, name: str) -> Floats:
        """A number averaged over the captions of each image: (images, captioners)."""
        return np.array(
            [
                [np.mean([one.numbers[name] for one in self.entries[who][what]]) for who in self.captioners]
                for what in self.images
            ]
        )


@dataclass(frozen=True, slots=True)
class CaptionerRank:
    """One captioner in one metric: its mean and its rank, both with an interval over images."""

    captioner: str
    mean: Interval
    rank: Interval


@dataclass(frozen=True, slots=True)
class Duel:
    """Two captioners in one metric: the difference of their means, and whether it could be chance."""

    first: str
    second: str
    difference: Interval
    p_value: float
    adjusted: float  # Holm's, over all pairs of the metric


@dataclass(frozen=True, slots=True)
class MetricRanking:
    """All captioners in one metric, the best first, and all pairs of them."""

    metric: str
    lower_is_better: bool
    placed: tuple[CaptionerRank, ...]
    duels: tuple[Duel, ...]


@dataclass(frozen=True, slots=True)
class PeopleAgreement:
    """The ranking of a metric against that of another column, such as people's ratings."""

    metric: str
    column: str
    spearman: float
    kendall: float
    same_winner: Interval  # share of pairs of captions of one image that both order alike


@dataclass(frozen=True, slots=True)
class Ranking:
    """What is known about the captioners."""

    contest: Contest
    metrics: tuple[MetricRanking, ...]
    people: MetricRanking | None
    agreements: tuple[PeopleAgreement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        contest = self.contest
        return {
            "signature": contest.signature,
            "files": [str(path) for path in contest.files],
            "captioners": list(contest.captioners),
            "pictures": len(contest.images),
            "left_out": contest.left_out,
            "metrics": [asdict(one) for one in self.metrics],
            "people": None if self.people is None else asdict(self.people),
            "agreements": [asdict(one) for one in self.agreements],
        }


def read_contest(files: Sequence[str], *, shared: bool = False, people: str | None = None) -> Contest:
    """Scored files of several captioners, one file each or together in one with a column `system`.

    NAME=FILE names the captioner of a file. All must have the same signature and the same images; with `shared`, the
    images that all of them have are enough. `people` is a column of the rows that is read beside the scores.
    """
    paths, read = [], []
    for given in files:
        name, equals, place = given.partition("=")
        path = Path(place if equals and not Path(given).exists() else given)
        paths.append(path)
        read.append((name if path != Path(given) else "", read_results(path)))
    _require_same_signature(paths, [one for _, one in read])
    entries: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for number, (name, results) in enumerate(read):
        for who, what, entry in _entries(number, name, results, people):
            entries[who][what].append(entry)
    if len(entries) < 2:
        raise InputError(f"expected captions of two captioners or more, got {len(entries)}: {', '.join(entries)}")
    images, left_out = _shared_images(entries, shared=shared)
    kept = {who: {what: tuple(entries[who][what]) for what in images} for who in entries}
    contest = Contest(tuple(paths), read[0][1].signature, tuple(entries), images, kept, left_out)
    return _softened(contest)


def rank(contest: Contest, *, people: str | None = None, how: Resampling | None = None) -> Ranking:
    """Rank the captioners by every metric that all captions have."""
    chosen = how or Resampling()
    some = next(iter(contest.entries[contest.captioners[0]].values()))[0].numbers
    names = [name for name in METRICS if name in some and not np.isnan(contest.means(name)).any()]
    metrics = tuple(_metric(contest, name, chosen) for name in names)
    if people is None:
        return Ranking(contest, metrics, None, ())
    agreements = [_agreement(contest, name, people, chosen) for name in (*RANKED_BY, "similarity") if name in names]
    return Ranking(contest, metrics, _metric(contest, people, chosen), tuple(agreements))


def _entries(file: int, name: str, results: Results, people: str | None) -> "list[tuple[str, str, Entry]]":
    system = results.systems
    alone = name or Path(results.name).name.split(".")[0]
    entries = []
    for row in range(len(results)):
        who = system[row] if system is not None and not name else alone
        if not results.images[row]:
            raise InputError(f"{results.name} row {row}: names no image; captioners are compared image by image")
        numbers = {one: float(values[row]) for one, values in results.numbers.items()}
        if people is not None:
            numbers[people] = _given(results, people, row)
        bad = bool(results.errors[row]) or np.isnan(numbers["msd"])
        entry = Entry(file, row, results.captions[row], {} if bad else numbers)
        entries.append((who or alone, Path(results.images[row]).name, entry))
    return entries


def _given(results: Results, people: str, row: int) -> float:
    if people not in results.others:
        raise InputError(f"{results.name}: no column {people!r}; it has {', '.join(results.others) or 'no others'}")
    try:
        return float(results.others[people][row])
    except ValueError as error:
        raise InputError(f"{results.name} row {row}: expected a number in {people}") from error


def _require_same_signature(paths: Sequence[Path], read: Sequence[Results]) -> None:
    first = read[0].signature
    for path, results in zip(paths, read, strict=True):
        if not results.signature:
            raise InputError(f"{path}: carries no signature; score it with msdscore score")
        if results.signature != first:
            raise InputError(f"{path} was scored with {results.signature}, {paths[0]} with {first}; score both alike")


def _shared_images(
    entries: Mapping[str, Mapping[str, Sequence[Entry]]], *, shared: bool
) -> tuple[tuple[str, ...], int]:
    """The images that every captioner has described, and how many are left out."""
    every = {what for own in entries.values() for what in own}
    common = set.intersection(*(set(own) for own in entries.values()))
    if common != every and not shared:
        who, own = min(entries.items(), key=lambda entry: len(entry[1]))
        raise InputError(
            f"{who} has {len(own)} of {len(every)} images, {len(common)} are shared by all; captioners are ranked on "
            "the same images: caption the others too, or pass --shared"
        )
    good = [what for what in sorted(common) if all(one.numbers for own in entries.values() for one in own[what])]
    if not good:
        raise InputError("no image is shared by all captioners; expected files about the same images")
    return tuple(good), len(every) - len(good)


def _softened(contest: Contest) -> Contest:
    """Soft-MSD over the captions of all captioners of an image: one candidate set, however they were scored."""
    import torch

    from msdscore.core.paper import soften

    rows = [
        (who, what, number, entry)
        for number, what in enumerate(contest.images)
        for who in contest.captioners
        for entry in contest.entries[who][what]
    ]
    similarity, msd = (
        torch.tensor([entry.numbers[name] for *_, entry in rows], dtype=torch.float64) for name in ("similarity", "msd")
    )
    sets = torch.tensor([number for _, _, number, _ in rows])
    _, values = soften(similarity, msd, sets, temperature=float(facts_of(contest.signature).get("xi", 0.2)))
    soft: dict[str, dict[str, list[Entry]]] = {who: defaultdict(list) for who in contest.captioners}
    for (who, what, _, entry), value in zip(rows, values.tolist(), strict=True):
        soft[who][what].append(Entry(entry.file, entry.row, entry.caption, {**entry.numbers, "soft_msd": value}))
    kept = {who: {what: tuple(some) for what, some in own.items()} for who, own in soft.items()}
    return Contest(contest.files, contest.signature, contest.captioners, contest.images, kept, contest.left_out)


def _metric(contest: Contest, name: str, how: Resampling) -> MetricRanking:
    values, lower = contest.means(name), name in LOWER_IS_BETTER
    sign = -1.0 if lower else 1.0
    placed = [
        CaptionerRank(
            who, bootstrap_mean(values[:, at], how=how), bootstrap(_rank_of(sign * values, at), len(values), how=how)
        )
        for at, who in enumerate(contest.captioners)
    ]
    placed.sort(key=lambda one: (one.rank.value, one.captioner))
    pairs = list(combinations(range(len(contest.captioners)), 2)) if name in RANKED_BY else []
    tests = [permute(values[:, one], values[:, two], how=how).p_value for one, two in pairs]
    adjusted = holm(tests).tolist() if tests else []
    duels = [
        Duel(
            contest.captioners[one],
            contest.captioners[two],
            paired_difference(values[:, one], values[:, two], how=how),
            test,
            corrected,
        )
        for (one, two), test, corrected in zip(pairs, tests, adjusted, strict=True)
    ]
    return MetricRanking(name, lower, tuple(placed), tuple(duels))


def _rank_of(values: Floats, at: int) -> Any:
    """The rank of a captioner as a statistic of image weights: 1 is the best, and ties share their mean rank."""

    def statistic(weights: Floats) -> float:
        means = weights @ values
        better, equal = int((means > means[at]).sum()), int((means == means[at]).sum())
        return better + (equal + 1) / 2

    return statistic


def _agreement(contest: Contest, name: str, people: str, how: Resampling) -> PeopleAgreement:
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    ours, theirs = sign * contest.means(name), contest.means(people)
    steps = list(combinations(range(len(contest.captioners)), 2))
    same, images = [], []
    for row in range(len(ours)):
        for one, two in steps:
            preference = theirs[row, one] - theirs[row, two]
            if preference:
                same.append(0.5 + 0.5 * np.sign(preference * (ours[row, one] - ours[row, two])))
                images.append(row)
    share = bootstrap_mean(same, clusters=images, how=how)
    means = ours.mean(axis=0), theirs.mean(axis=0)
    columns = prepare(*means)
    return PeopleAgreement(name, people, spearman(columns), kendall_b(columns), share)
