"""Figures of battle benchmarks: agreement with people's choices, the ranking that follows, DocENT's aspects."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from msdscore.benchmarks.base import Battle
from msdscore.benchmarks.protocols.counting import Credit, Figure, Figures, Floats, Sheet
from msdscore.benchmarks.readers.battles import ASPECTS, HUMAN_ORDER
from msdscore.stats.elo import EloConfig, Games, Ratings, bootstrap_elo, bradley_terry, games, replay
from msdscore.stats.pairs import agreement, decide_beyond, decide_matched
from msdscore.stats.ranks import MEASURES, prepare
from msdscore.stats.resample import Interval

Signs = NDArray[np.int64]

# The authors' script: a difference up to 1e-4 is a tie; Elo with K 32, five shuffles as in their README.
AUTHORS_EPSILON = 1e-4
_AUTHORS_ELO = EloConfig(k=32.0)
_AUTHORS_SEED, _AUTHORS_ROUNDS = 1234, 5
_SIGN = {"a": 1, "b": -1, "tie": 0}
_CORRELATIONS = (("model/spearman", "spearman"), ("model/kendall", "kendall_b"))


@dataclass(frozen=True, slots=True)
class Decided:
    """The battles that count under a protocol, people's choices and the metric's, and what fell out."""

    sheet: Sheet[Battle]
    human: Signs
    metric: Signs
    missing: int
    skipped: int

    def played(self, outcome: Signs) -> Games:
        """The battles as games of the given outcome."""
        battles = self.sheet.items
        first, second = [b.system_a for b in battles], [b.system_b for b in battles]
        return games(first, second, (outcome + 1) / 2)


def caparena(sheet: Sheet[Battle]) -> Figures:
    """CapArena: agreement, overall and by level, then rank correlation of the systems.

    official: no battles of the human writer, three-way agreement with as many ties as people gave, bootstrap
    Elo against the paper's human order. posh: the same against the Elo of the people's choices in the file.
    bradley-terry: the same with Bradley–Terry on both sides. authors: ties of people left out, the human
    writer kept, a fixed tie threshold, Elo with K 32.
    """
    decided = _decide_by_protocol(sheet)
    agreements = tuple(credit.figure() for credit in _agreements(decided))
    if not decided.sheet.items:
        return (*agreements, *(Figure(name, float("nan"), None, 0) for name, _ in _CORRELATIONS))
    return (*agreements, *_compare(*_ranking(decided), decided))


def caparena_credits(sheet: Sheet[Battle]) -> list[Credit[Battle]]:
    """Agreement with people in each battle that counts, over all and by level."""
    return _agreements(_decide_by_protocol(sheet))


def auto_credits(sheet: Sheet[Battle]) -> list[Credit[Battle]]:
    """The tested system's outcome in each battle: 1 won, 0.5 tied, 0 lost."""
    decided = _decide(sheet, np.ones(len(sheet.items), dtype=bool), 0.0)
    return [Credit("outcome/all", decided.sheet, (decided.metric + 1) / 2, missing=decided.missing)]


def _decide_by_protocol(sheet: Sheet[Battle]) -> Decided:
    battles = sheet.items
    if sheet.protocol == "authors":
        return _decide(sheet, np.array([b.winner in ("a", "b") for b in battles], dtype=bool), AUTHORS_EPSILON)
    without_human = [b.winner is not None and "human" not in (b.system_a, b.system_b) for b in battles]
    return _decide(sheet, np.array(without_human, dtype=bool), None)


def caparena_auto(sheet: Sheet[Battle]) -> Figures:
    """CapArena-Auto: (wins − losses)/2 against each fixed opponent, and their mean over the three."""
    decided = _decide(sheet, np.ones(len(sheet.items), dtype=bool), 0.0)
    levels = np.array([battle.level for battle in decided.sheet.items], dtype=np.str_)
    parts = [_margin(decided, levels == name, f"score/{name}") for name in sorted(set(levels.tolist()))]
    # A system that is itself an opponent has no battles there and scores 0, as on the leaderboard.
    whole = _margin(decided, np.ones(len(levels), dtype=bool), "score/average", share=3)
    return (whole, *parts)


def _decide(sheet: Sheet[Battle], eligible: NDArray[np.bool_], epsilon: float | None) -> Decided:
    """The metric's choices: beyond `epsilon`, or (None) with people's number of ties; a judge's unchanged."""
    counted = sheet.take(eligible)
    difference = counted.scores[:, 0] - counted.scores[:, 1]
    kept = counted.take(~np.isnan(difference))
    difference = difference[~np.isnan(difference)]
    winners = [battle.winner for battle in kept.items]
    human = np.array([_SIGN.get(str(winner), 0) for winner in winners], dtype=np.int64)
    if sheet.judged:
        metric = decide_beyond(difference, 0.0)
    elif epsilon is None:
        metric = decide_matched(difference, int((human == 0).sum()))
    else:
        metric = decide_beyond(difference, epsilon)
    return Decided(kept, human, metric, len(counted.items) - len(kept.items), int((~eligible).sum()))


def _agreements(decided: Decided) -> list[Credit[Battle]]:
    levels = np.array([battle.level for battle in decided.sheet.items], dtype=np.str_)
    same = agreement(decided.human, decided.metric)
    tied = decided.metric == 0
    agreements = [Credit("agreement/all", decided.sheet, same, int(tied.sum()), decided.missing, decided.skipped)]
    for level in sorted({*levels.tolist()} - {""}):
        at = levels == level
        agreements.append(Credit(f"agreement/{level}", decided.sheet.take(at), same[at], int(tied[at].sum())))
    return agreements


def _ranking(decided: Decided) -> tuple[Ratings, Mapping[str, float]]:
    """The metric's rating of the systems, and people's."""
    protocol, metric = decided.sheet.protocol, decided.played(decided.metric)
    if protocol == "bradley-terry":
        human = bradley_terry(decided.played(decided.human))
        return bradley_terry(metric), dict(zip(human.systems, human.values.tolist(), strict=True))
    if protocol == "authors":
        ours, theirs = (_shuffled_elo(decided.played(side)) for side in (decided.metric, decided.human))
        theirs.pop("human", None)
        return Ratings(tuple(ours), np.array(list(ours.values())), np.empty((0, len(ours)))), theirs
    table = bootstrap_elo(metric)
    if protocol == "posh":
        rounded = np.array([table.rounded[name] for name in table.systems], dtype=np.float64)
        return Ratings(table.systems, rounded, table.draws), bootstrap_elo(decided.played(decided.human)).rounded
    return table, {name: -float(rank) for rank, name in enumerate(HUMAN_ORDER) if name != "human"}


def _shuffled_elo(played: Games) -> dict[str, float]:
    orders = []
    for number in range(_AUTHORS_ROUNDS):
        order = list(range(len(played.outcome)))
        random.Random(_AUTHORS_SEED + number).shuffle(order)
        orders.append(order)
    means = replay(played, np.array(orders), _AUTHORS_ELO).mean(axis=0)
    return dict(zip(played.systems, means.tolist(), strict=True))


def _compare(table: Ratings, human: Mapping[str, float], decided: Decided) -> Figures:
    """Rank correlations over the systems that both sides know; `missing` counts the systems that one lacks.

    The interval, where there are resampled tables, is that of the correlations of the single tables.
    """
    names = [name for name in table.systems if name in human]
    if len(names) < 2:
        return tuple(Figure(name, float("nan"), None, 0) for name, _ in _CORRELATIONS)
    at = [table.systems.index(name) for name in names]
    people = np.array([human[name] for name in names])
    counts = {"n": len(names), "missing": len(table.systems) - len(names)}
    figures = []
    for name, method in _CORRELATIONS:
        value = MEASURES[method](prepare(table.values[at], people), None)
        interval = _draw_interval(value, table.draws[:, at], people, method, decided)
        figures.append(Figure(name, value, interval, **counts))
    return tuple(figures)


def _draw_interval(value: float, draws: Floats, people: Floats, method: str, decided: Decided) -> Interval | None:
    values = np.array([MEASURES[method](prepare(row, people), None) for row in draws])
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    level = decided.sheet.how.level
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    seed = EloConfig().seed
    return Interval(value, float(low), float(high), level, "Elo bootstrap", len(decided.sheet.items), seed)


def _margin(decided: Decided, at: NDArray[np.bool_], name: str, share: int = 1) -> Figure:
    part, margins = decided.sheet.take(at), decided.metric[at].astype(np.float64)
    total = len(margins) / (2 * share)
    figure = part.figure(name, lambda w: float(w @ margins / w.sum() * total), len(margins))
    counts = {"ties": int((margins == 0).sum()), "missing": decided.missing}
    return Figure(name, figure.value, figure.interval, figure.n, scale=1, **counts)


def docent(sheet: Sheet[Battle]) -> Figures:
    """DocENT: each aspect, overall quality first, against one score; give coverage for omissions, and so on.

    official: three-way accuracy with as many ties as people gave, and correlation of score differences with
    the preference −2 … 2. authors: overall quality alone, two-way accuracy without the pairs that people
    tied, in which equal scores count for the second caption.
    """
    methods = {"spearman": "spearman", "kendall": "kendall_b"}
    methods |= {"pearson": "pearson"} if sheet.protocol == "authors" else {}
    figures: list[Figure] = []
    for credit in docent_credits(sheet):
        aspect = credit.name.partition("/")[0]
        kept, difference, preference, missing = _scored(sheet, aspect)
        columns = prepare(difference, preference)
        figures.append(credit.figure())
        figures += [
            kept.figure(f"{aspect}/{name}", partial(MEASURES[method], columns), len(columns), missing=missing)
            for name, method in methods.items()
        ]
    return tuple(figures)


def docent_credits(sheet: Sheet[Battle]) -> list[Credit[Battle]]:
    """Agreement with people on each aspect that the protocol counts, overall quality first."""
    if sheet.protocol == "authors":
        return [_binary(sheet)]
    return [_three_way(sheet, aspect) for aspect in reversed(ASPECTS)]


def _three_way(sheet: Sheet[Battle], aspect: str) -> Credit[Battle]:
    kept, difference, preference, missing = _scored(sheet, aspect)
    human = np.sign(preference).astype(np.int64)
    ties = int((human == 0).sum())
    decided = decide_beyond(difference, 0.0) if sheet.judged else decide_matched(difference, ties)
    return Credit(f"{aspect}/accuracy", kept, agreement(human, decided), int((decided == 0).sum()), missing)


def _binary(sheet: Sheet[Battle]) -> Credit[Battle]:
    aspect = ASPECTS[-1]
    kept, difference, preference, missing = _scored(sheet, aspect)
    split = preference != 0
    right = ((preference[split] > 0) == (difference[split] > 0)).astype(np.float64)
    equal, skipped = int((difference[split] == 0).sum()), int((~split).sum())
    return Credit(f"{aspect}/binary accuracy", kept.take(split), right, equal, missing, skipped)


def _scored(sheet: Sheet[Battle], aspect: str) -> tuple[Sheet[Battle], Floats, Floats, int]:
    """The battles with both scores, score differences, people's preferences, and how many lack a score."""
    difference = sheet.scores[:, 0] - sheet.scores[:, 1]
    kept = ~np.isnan(difference)
    battles = sheet.take(kept).items
    answers = [{answer.name: answer.preference for answer in battle.aspects} for battle in battles]
    preference = np.array([answer[aspect] for answer in answers], dtype=np.float64)
    return sheet.take(kept), difference[kept], preference, int((~kept).sum())
