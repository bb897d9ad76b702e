"""Is the changed word of a wrong caption the one that the terms call least supported?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import partial
from math import comb
from typing import Any

import numpy as np
import torch

from msdscore.benchmarks.base import Image, Pair, clusters, picture, wrong_images
from msdscore.encoders.text.pieces import Piece, segment
from msdscore.errors import InputError
from msdscore.explain.terms import judged_weights, token_gaps, units_of
from msdscore.scoring.measurement import Measurement
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.explanations.masking import Floats, drawn_pairs
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress, per_cent

SUBSETS = ("replace_obj", "replace_att")
DEPTHS = (1, 3)
_QUESTIONS = 16  # between two times that the work is kept


@dataclass(frozen=True, slots=True)
class LocalisationRow:
    """How often the changed word is among the first `depth` of a ranking, and by how much terms beat the others."""

    subset: str
    depth: int
    items: int
    terms: Interval
    occlusion: Interval
    wrong_picture: Interval
    chance: Interval
    over_occlusion: Interval
    over_chance: Interval


@dataclass(frozen=True, slots=True)
class Localisation:
    """The table, what it was made with, and how many pairs could not be asked."""

    rows: tuple[LocalisationRow, ...]
    left_out: int
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WrongCaption:
    """A wrong caption: its content words, and which of them were changed (numbers of the content words)."""

    pair: Pair
    words: tuple[Piece, ...]
    changed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rankings:
    """Content words of one caption, the least supported first, in three ways."""

    terms: list[int]
    occlusion: list[int]
    wrong_picture: list[int]


def questions(pairs: Sequence[Pair], subsets: Sequence[str] = SUBSETS) -> list[WrongCaption]:
    """The wrong captions whose change shows in a content word, and that have other content words."""
    asked = [_question(pair) for pair in pairs if pair.subset in subsets]
    return [one for one in asked if 0 < len(one.changed) < len(one.words)]


def changed_words(right: str, wrong: str) -> frozenset[int]:
    """Numbers of the content words of `wrong` that `right` does not have in the same place.

    >>> sorted(changed_words("a red car on a road", "a blue car on a road"))
    [0]
    """
    words = [piece for piece in segment(wrong) if piece.content]
    before = [piece.text.casefold() for piece in segment(right) if piece.kind == "word"]
    pieces = [piece for piece in segment(wrong) if piece.kind == "word"]
    after = [piece.text.casefold() for piece in pieces]
    steps = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    new = {pieces[place].start for step, _, _, low, high in steps if step != "equal" for place in range(low, high)}
    return frozenset(number for number, word in enumerate(words) if word.start in new)


def localisation(
    pipeline: Pipeline,
    pairs: Sequence[Pair],
    *,
    limit: int | None = None,
    seed: int = 0,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> Localisation:
    """Rank the content words of every wrong caption by terms, by occlusion, and by terms with a wrong picture."""
    wanted = [pair for pair in pairs if pair.subset in SUBSETS]
    if not wanted:
        raise InputError(f"expected pairs of the subsets {', '.join(SUBSETS)}, got none")
    chosen = drawn_pairs(wanted, limit, seed)
    asked = questions(chosen)
    if not asked:
        raise InputError(f"expected wrong captions that change one content word, got none among {len(chosen)}")
    strangers = wrong_images([one.pair for one in asked], seed)
    rankings: list[Rankings] = []
    both = list(zip(asked, strangers, strict=True))
    for number, start in enumerate(range(0, len(both), _QUESTIONS)):
        found = steps(number, partial(_rank_some, pipeline, both[start : start + _QUESTIONS]))
        rankings += [Rankings(*ranks) for ranks in found]
        progress(len(rankings), len(asked))
    rows = [
        _row(
            subset, depth, [(one, rank) for one, rank in zip(asked, rankings, strict=True) if one.pair.subset == subset]
        )
        for subset in SUBSETS
        if any(one.pair.subset == subset for one in asked)
        for depth in DEPTHS
    ]
    return Localisation(tuple(rows), len(chosen) - len(asked), pipeline.signature)


def _rank_some(pipeline: Pipeline, some: Sequence[tuple[WrongCaption, Image]]) -> list[list[list[int]]]:
    found = (rank_words(pipeline, one, stranger) for one, stranger in some)
    return [[ranks.terms, ranks.occlusion, ranks.wrong_picture] for ranks in found]


def rank_words(pipeline: Pipeline, question: WrongCaption, stranger: Image) -> Rankings:
    """Numbers of the content words, the least supported first, in three ways.

    By their gaps in the explanation; by how much the similarity rises when each is left out; by their gaps with
    another picture. Words that the encoder does not read come last.
    """
    caption = question.pair.negative
    shorter = [" ".join((caption[: word.start] + caption[word.end :]).split()) for word in question.words]
    decoded = pipeline.decode([picture(question.pair.image), picture(stranger)])
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts([caption, *shorter]).require()
    measured = pipeline.measure(images, texts, [0, 1] + [0] * len(shorter), [0, *range(len(shorter) + 1)])
    own, other = (_by_gap(question, measured, place) for place in (0, 1))
    return Rankings(own, _falling(measured.similarity[2:].double().tolist()), other)


def _by_gap(question: WrongCaption, measured: Measurement, place: int) -> list[int]:
    layout = measured.tokens[place]
    mask = torch.ones(len(layout.spans), dtype=torch.bool)
    terms = measured.divergence.support_terms[place, : len(layout.spans)].double().cpu().numpy()
    gaps_of, weights = token_gaps(measured, place, mask), judged_weights(measured, place, mask)
    units = units_of(question.pair.negative, layout, terms, gaps_of, weights)
    gaps = {unit.start: unit.gap for unit in units}
    values = [gaps.get(word.start) for word in question.words]
    return _falling([-np.inf if value is None else value for value in values])


def _question(pair: Pair) -> WrongCaption:
    words = tuple(piece for piece in segment(pair.negative) if piece.content)
    return WrongCaption(pair, words, changed_words(pair.positive, pair.negative))


def _falling(values: Sequence[float]) -> list[int]:
    return np.argsort(-np.asarray(values), kind="stable").tolist()


def _chance(question: WrongCaption, depth: int) -> float:
    """How often a random order has a changed word among the first `depth`."""
    words, changed = len(question.words), len(question.changed)
    depth = min(depth, words)
    return 1 - comb(words - changed, depth) / comb(words, depth)


def _row(subset: str, depth: int, answers: Sequence[tuple[WrongCaption, Rankings]]) -> LocalisationRow:
    asked = [one for one, _ in answers]

    def hits(way: str) -> Floats:
        return np.array([float(bool(one.changed & set(getattr(ranks, way)[:depth]))) for one, ranks in answers])

    terms, occlusion, stranger = hits("terms"), hits("occlusion"), hits("wrong_picture")
    chance = np.array([_chance(one, depth) for one in asked])
    columns = (terms, occlusion, stranger, chance, terms - occlusion, terms - chance)
    names = clusters([one.pair for one in asked])
    return LocalisationRow(subset, depth, len(asked), *(bootstrap_mean(values, clusters=names) for values in columns))


def section(result: Localisation) -> str:
    """The table in Markdown, in per cent."""
    lines = [
        "How often the changed word of a wrong SugarCrepe caption is among the first of its content words, in per cent "
        f"with 95 % cluster-bootstrap interval over pictures; {result.left_out} pairs change no single content word "
        "and are left out. Occlusion leaves out one word at a time and looks at the cosine.",
        "",
        f"`{result.signature}`",
        "",
        "| subset | captions | top | terms | occlusion | wrong picture | chance | terms − occlusion | terms − chance |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result.rows:
        cells = (row.terms, row.occlusion, row.wrong_picture, row.chance, row.over_occlusion, row.over_chance)
        lines.append(f"| {row.subset} | {row.items} | {row.depth} | {' | '.join(map(per_cent, cells))} |")
    return "\n".join(lines) + "\n"


def charts(result: Localisation) -> tuple[Chart, ...]:
    """One panel per depth: how often each ranking finds the changed word."""
    ways = ("terms", "occlusion", "wrong_picture", "chance")
    return tuple(
        Chart(
            title=f"changed word among the first {depth}",
            x_label="subset",
            y_label="per cent",
            lines=tuple(
                ChartLine.of(
                    way.replace("_", " "),
                    {row.subset: getattr(row, way) for row in result.rows if row.depth == depth},
                )
                for way in ways
            ),
        )
        for depth in DEPTHS
    )
