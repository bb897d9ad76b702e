"""Figures of battle benchmarks: agreement with human choices, the resulting ranking, DocENT's aspects."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from msdscore.intervals import Floats, Interval, Ints
from msdscore_lab.benchmarks.base import Battle
from msdscore_lab.benchmarks.protocols.counting import Credit, Figure, Figures, Flags, Sheet
from msdscore_lab.benchmarks.readers.battles import ASPECTS, HUMAN_ORDER
from msdscore_lab.stats.elo import SEED, Ratings, bootstrap_elo, games, replay
from msdscore_lab.stats.pairs import decide_beyond, decide_matched
from msdscore_lab.stats.ranks import MEASURES, prepare

# The paper's threshold, also of the authors' script: a difference up to 1e-4 is a tie.
PAPER_EPSILON = 1e-4
# The authors' script: Elo with K 32, five shuffles as in their README.
_AUTHORS_K, _AUTHORS_SEED, _AUTHORS_ROUNDS = 32.0, 1234, 5
_SIGN = {"a": 1, "b": -1, "tie": 0}
_CORRELATIONS = {"model/spearman": MEASURES["spearman"], "model/kendall": MEASURES["tau_b"]}


@dataclass(frozen=True, slots=True)
class Decided:
    """Battles that a protocol evaluates, human and metric choices, and the numbers of excluded battles."""

    sheet: Sheet[Battle]
    human: Ints
    metric: Ints
    missing: int
    skipped: int


def caparena(sheet: Sheet[Battle]) -> Figures:
    """CapArena: agreement, overall and by level, then rank correlation of the systems.

    official: without battles of the human writer, three-way agreement with the number of human ties, bootstrap
    Elo against the human order of the CapArena paper. paper (MSD-Score's): a tie if scores differ by 1e-4 or
    less, human ties count, without the human writer; `with human/...` are the same figures with that writer.
    authors: without human ties, with the human writer, a fixed tie threshold, Elo with K 32.
    """
    figures = [*(credit.figure() for credit in caparena_credits(sheet)), *_system_figures(_decide_by_protocol(sheet))]
    if sheet.protocol == "paper":
        with_human = caparena_credits(sheet, human_writer=True)
        figures += [replace(credit.figure(), name=f"with human/{credit.name}") for credit in with_human]
    return tuple(figures)


def caparena_credits(sheet: Sheet[Battle], *, human_writer: bool = False) -> list[Credit[Battle]]:
    """Return the agreement with human choices in each evaluated battle, over all and by level."""
    decided = _decide_by_protocol(sheet, human_writer=human_writer)
    levels = np.array([battle.level for battle in decided.sheet.items], dtype=np.str_)
    agrees, tied = (decided.human == decided.metric).astype(np.float64), decided.metric == 0
    agreements = [Credit("agreement/all", decided.sheet, agrees, int(tied.sum()), decided.missing, decided.skipped)]
    for level in sorted({*levels.tolist()} - {""}):
        in_level = levels == level
        agreements.append(
            Credit(f"agreement/{level}", decided.sheet.take(in_level), agrees[in_level], int(tied[in_level].sum()))
        )
    return agreements


def _winners(sheet: Sheet[Battle]) -> Ints:
    """Return the human choices; 0 for a tie, or without a judgement."""
    return np.array([_SIGN.get(str(battle.winner), 0) for battle in sheet.items], dtype=np.int64)


def _decide_by_protocol(sheet: Sheet[Battle], *, human_writer: bool = False) -> Decided:
    if sheet.protocol == "authors":
        eligible = [b.winner in ("a", "b") for b in sheet.items]
    else:
        eligible = [
            b.winner is not None and (human_writer or "human" not in (b.system_a, b.system_b)) for b in sheet.items
        ]
    epsilon = PAPER_EPSILON if sheet.protocol in ("paper", "authors") else None
    return _decide(sheet, _winners(sheet), np.array(eligible, dtype=bool), epsilon)


def _decide(sheet: Sheet[Battle], human: Ints, eligible: Flags | None, epsilon: float | None) -> Decided:
    """Return the metric's choices, with ties up to `epsilon`, or (None) with as many ties as the human choices."""
    difference = sheet.scores[:, 0] - sheet.scores[:, 1]
    included = np.ones(len(human), dtype=bool) if eligible is None else eligible
    valid = included & ~np.isnan(difference)
    difference, human = difference[valid], human[valid]
    threshold = 0.0 if sheet.judged else epsilon
    if threshold is None:
        metric = decide_matched(difference, int((human == 0).sum()))
    else:
        metric = decide_beyond(difference, threshold)
    return Decided(sheet.take(valid), human, metric, int((included & ~valid).sum()), int((~included).sum()))


def _system_figures(decided: Decided) -> Figures:
    """Return rank correlations over the common systems; `missing` is the number of other systems.

    The interval is that of the correlations of the resampled tables, if there are any.
    """
    table, human = _ranking(decided) if decided.sheet.items else (Ratings((), np.empty(0), np.empty((0, 0))), {})
    names = [name for name in table.systems if name in human]
    if len(names) < 2:
        return tuple(Figure(name, float("nan"), None, 0) for name in _CORRELATIONS)
    columns, people = [table.systems.index(name) for name in names], np.array([human[name] for name in names])
    level, figures = decided.sheet.how.level, []
    for name, measure in _CORRELATIONS.items():
        value, interval = measure(prepare(table.values[columns], people), None), None
        draws = np.array([measure(prepare(row, people), None) for row in table.draws[:, columns]])
        if len(valid := draws[~np.isnan(draws)]):
            low, high = np.quantile(valid, [(1 - level) / 2, (1 + level) / 2]).tolist()
            interval = Interval(value, low, high, level, "Elo bootstrap", len(decided.sheet.items), SEED)
        figures.append(Figure(name, value, interval, len(names), missing=len(table.systems) - len(names)))
    return tuple(figures)


def _ranking(decided: Decided) -> tuple[Ratings, Mapping[str, float]]:
    """Return the metric's and the human ratings of the systems."""
    battles, protocol = decided.sheet.items, decided.sheet.protocol
    systems = [battle.system_a for battle in battles], [battle.system_b for battle in battles]
    metric, human = (games(*systems, (outcome + 1) / 2) for outcome in (decided.metric, decided.human))
    if protocol == "authors":
        orders = [list(range(len(battles))) for _ in range(_AUTHORS_ROUNDS)]
        for round_index, order in enumerate(orders):
            random.Random(_AUTHORS_SEED + round_index).shuffle(order)
        metric_elo, human_elo = (
            replay(outcomes, np.array(orders), _AUTHORS_K).mean(axis=0) for outcomes in (metric, human)
        )
        human_ratings = {
            name: value for name, value in zip(human.systems, human_elo.tolist(), strict=True) if name != "human"
        }
        return Ratings(metric.systems, metric_elo, np.empty((0, len(metric_elo)))), human_ratings
    return bootstrap_elo(metric), {name: -float(rank) for rank, name in enumerate(HUMAN_ORDER) if name != "human"}


def docent(sheet: Sheet[Battle]) -> Figures:
    """DocENT: each aspect, overall quality first, against one score; use e.g. coverage for omissions.

    official: three-way accuracy with the number of human ties, and correlation of score differences with
    the preference −2 … 2. paper (MSD-Score's): two-way accuracy on every aspect without the pairs that people tied,
    then the same three-way with a tie up to 1e-4, and the correlations. authors: overall quality only, two-way
    accuracy without the pairs that people tied, in which equal scores count for the second caption.
    """
    methods = {"spearman": "spearman", "kendall": "tau_b"}
    methods |= {"pearson": "pearson"} if sheet.protocol == "authors" else {}
    figures: list[Figure] = []
    for credit in docent_credits(sheet):
        aspect, _, kind = credit.name.partition("/")
        figures.append(credit.figure())
        if kind == "accuracy with ties":  # the correlations of this aspect were already added
            continue
        columns = prepare(sheet.scores[:, 0] - sheet.scores[:, 1], _preferences(sheet, aspect))
        valid, counts = sheet.take(columns.valid), {"missing": columns.missing}
        figures += [
            valid.figure(f"{aspect}/{name}", partial(MEASURES[method], columns), len(columns), **counts)
            for name, method in methods.items()
        ]
    return tuple(figures)


def docent_credits(sheet: Sheet[Battle]) -> list[Credit[Battle]]:
    """Return the agreement with human choices on each aspect of the protocol, overall quality first."""
    if sheet.protocol == "authors":
        return [_without_ties(sheet, ASPECTS[-1])]
    if sheet.protocol == "paper":
        return [
            count(sheet, aspect)
            for aspect in reversed(ASPECTS)
            for count in (_without_ties, partial(_three_way, name="accuracy with ties", epsilon=PAPER_EPSILON))
        ]
    return [_three_way(sheet, aspect) for aspect in reversed(ASPECTS)]


def _without_ties(sheet: Sheet[Battle], aspect: str) -> Credit[Battle]:
    """Return two-way accuracy over pairs without human ties; equal scores count for the second caption."""
    preference, difference = _preferences(sheet, aspect), sheet.scores[:, 0] - sheet.scores[:, 1]
    scored, decided = ~np.isnan(difference), preference != 0
    correct = ((preference > 0) == (difference > 0)).astype(np.float64)[scored & decided]
    counts = int((difference[decided] == 0).sum()), int((~scored).sum()), int((scored & ~decided).sum())
    return Credit(f"{aspect}/binary accuracy", sheet.take(scored & decided), correct, *counts)


def _three_way(
    sheet: Sheet[Battle], aspect: str, *, name: str = "accuracy", epsilon: float | None = None
) -> Credit[Battle]:
    decided = _decide(sheet, np.sign(_preferences(sheet, aspect)).astype(np.int64), None, epsilon)
    agrees = (decided.human == decided.metric).astype(np.float64)
    return Credit(f"{aspect}/{name}", decided.sheet, agrees, int((decided.metric == 0).sum()), decided.missing)


def _preferences(sheet: Sheet[Battle], aspect: str) -> Floats:
    return np.array([battle.aspects[aspect] for battle in sheet.items], dtype=np.float64)
