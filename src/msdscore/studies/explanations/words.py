"""Do the terms of words find the words that a caption invents? On captions whose inventions are marked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from msdscore.benchmarks.base import Rated, clusters, picture
from msdscore.benchmarks.readers.hallucinations import MarkedCaption
from msdscore.benchmarks.run.portions import Portion, portions
from msdscore.encoders.text.pieces import segment
from msdscore.errors import InputError, RowError
from msdscore.explain.terms import judged_weights, token_gaps, units_of
from msdscore.scoring.measurement import Measurement
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.ranks import auc, prepare
from msdscore.stats.resample import Interval, bootstrap, bootstrap_mean
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress, per_cent

Floats = npt.NDArray[np.float64]
Span = tuple[int, int]
Synonyms = Mapping[str, tuple[str, ...]]  # by object class every word or phrase that names it
_PICTURES = 16  # worked on together


@dataclass(frozen=True, slots=True)
class MarkedMention:
    """A place of a caption that names something, and whether that is invented."""

    span: Span
    invented: bool


@dataclass(frozen=True, slots=True)
class InventedWordsRow:
    """One figure with the true pictures, with the wrong ones, and what chance gives."""

    name: str
    n: int
    true: Interval
    wrong: Interval
    chance: float


@dataclass(frozen=True, slots=True)
class WordStudy:
    """The table, what it was made with, and how many captions could not be asked."""

    rows: tuple[InventedWordsRow, ...]
    captions: int
    left_out: int
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def mentions_of(one: MarkedCaption, synonyms: Synonyms) -> tuple[MarkedMention, ...]:
    """The content words of HAT's captions with people's marks, or the object names of CHAIR's.

    >>> cat = MarkedCaption("1", Path("x.jpg"), "A dog, two cats.", present=("dog",), absent=("cat",))
    >>> [(cat.caption[slice(*found.span)], found.invented) for found in mentions_of(cat, {})]
    [('dog', False), ('cats', True)]
    """
    if one.words:
        return _marked_words(one)
    named = [
        MarkedMention(span, invented)
        for names, invented in ((one.present, False), (one.absent, True))
        for name in names
        for span in _places(one.caption, (name, *synonyms.get(name, ())))
    ]
    # "hot dog" names no dog: of places that overlap the longest stands.
    longest = sorted(named, key=lambda found: found.span[0] - found.span[1])
    kept: list[MarkedMention] = []
    for found in longest:
        if all(found.span[1] <= other.span[0] or other.span[1] <= found.span[0] for other in kept):
            kept.append(found)
    return tuple(sorted(kept, key=lambda found: found.span))


def word_study(
    pipeline: Pipeline,
    captions: Sequence[MarkedCaption],
    *,
    synonyms: Synonyms | None = None,
    seed: int = 0,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> WordStudy:
    """How well the gap of a word (how little the picture supports it) tells invented words from the others."""
    mentions = [mentions_of(one, synonyms or {}) for one in captions]
    asked = [number for number, found in enumerate(mentions) if found]
    items = [Rated(captions[n].id, captions[n].image, captions[n].caption, (0.0,)) for n in asked]
    if not any(found.invented for number in asked for found in mentions[number]):
        raise InputError("expected captions with marked inventions, got none")
    gaps: dict[tuple[int, bool], Floats] = {}
    for number, portion in enumerate(portions(items, seed=seed, control=True, size=_PICTURES)):
        named = [mentions[asked[place]] for place in portion.items]
        found = steps(number, partial(_measure, pipeline, items, portion, named))
        gaps |= {(place, wrong): np.array(values) for place, wrong, values in found}
        progress(len(gaps) // 2, len(items))
    kept = [place for place in range(len(items)) if (place, False) in gaps and (place, True) in gaps]
    labels = [np.array([float(found.invented) for found in mentions[asked[place]]]) for place in kept]
    scores = {wrong: [gaps[place, wrong] for place in kept] for wrong in (False, True)}
    rows = _rows(labels, scores, clusters([items[place] for place in kept]))
    return WordStudy(rows, len(kept), len(captions) - len(kept), pipeline.signature)


def _marked_words(one: MarkedCaption) -> tuple[MarkedMention, ...]:
    """Words split at spaces, found in the caption one after another; those without a content word are left out."""
    content = [(piece.start, piece.end) for piece in segment(one.caption) if piece.content]
    found, place = [], 0
    for word, invented in one.words:
        start = one.caption.find(word, place)
        if start < 0:
            continue
        place = start + len(word)
        if any(start <= low and high <= place for low, high in content):
            found.append(MarkedMention((start, place), invented))
    return tuple(found)


def _places(caption: str, names: Sequence[str]) -> list[Span]:
    """Where any of some names stands as a whole word, in the singular or the plural."""
    words = "|".join(re.escape(name) for name in sorted(set(names), key=len, reverse=True))
    return [found.span() for found in re.finditer(rf"\b(?:{words})(?:e?s)?\b", caption, re.IGNORECASE)]


def _measure(
    pipeline: Pipeline, items: Sequence[Rated], portion: Portion, mentions: Sequence[Sequence[MarkedMention]]
) -> list[tuple[int, bool, list[float]]]:
    """The gap of every mention of a portion's captions, with the item and whether the picture is the wrong one."""
    decoded = pipeline.decode([_source(image) for image in portion.pictures])
    images = pipeline.embed_images(decoded)
    texts = pipeline.embed_texts([items[number].caption for number in portion.items])
    wanted = [
        (place, owner, wrong)
        for wrong, owners in ((False, portion.owner), (True, portion.stranger))
        for place, owner in enumerate(owners)
        if images.rows[owner] is not None and texts.rows[place] is not None
    ]
    if not wanted:
        return []
    measured = pipeline.measure(images, texts, [owner for _, owner, _ in wanted], [place for place, _, _ in wanted])
    return [
        (portion.items[place], wrong, _gaps(items[portion.items[place]].caption, mentions[place], measured, pair))
        for pair, (place, _, wrong) in enumerate(wanted)
    ]


def _source(image: Any) -> Any:
    try:
        return picture(image)
    except RowError:
        return b""  # not a picture: the pipeline says so


def _gaps(caption: str, mentions: Sequence[MarkedMention], measured: Measurement, pair: int) -> list[float]:
    """The mean gap of the content words inside each mention; 0 where the encoder reads none of them."""
    layout = measured.tokens[pair]
    terms = measured.divergence.support_terms[pair, : len(layout.spans)].double().cpu().numpy()
    mask = torch.ones(len(layout.spans), dtype=torch.bool)
    weights = judged_weights(measured, pair, mask)
    found_units = units_of(caption, layout, terms, token_gaps(measured, pair, mask), weights)
    units = [unit for unit in found_units if unit.kind == "word" and unit.gap is not None]
    found = []
    for mention in mentions:
        inside = [unit.gap for unit in units if mention.span[0] <= unit.start and unit.end <= mention.span[1]]
        found.append(float(np.mean([gap for gap in inside if gap is not None])) if inside else 0.0)
    return found


def _rows(
    labels: Sequence[Floats], scores: Mapping[bool, Sequence[Floats]], names: npt.NDArray[np.str_]
) -> tuple[InventedWordsRow, ...]:
    both = [place for place, found in enumerate(labels) if 0 < found.sum() < len(found)]
    owner = np.repeat(np.arange(len(labels)), [len(found) for found in labels])
    marks = np.concatenate(labels)

    def pooled(wrong: bool) -> Interval:
        columns = prepare(np.concatenate(scores[wrong]), marks)
        return bootstrap(lambda weights: auc(columns, weights[owner]), len(labels), clusters=names)

    def within(wrong: bool) -> Interval:
        values = [auc(prepare(scores[wrong][place], labels[place])) for place in both]
        return bootstrap_mean(values, clusters=names[both])

    def least(wrong: bool) -> Interval:
        values = [labels[place][int(np.argmax(scores[wrong][place]))] for place in both]
        return bootstrap_mean(values, clusters=names[both])

    rows = [InventedWordsRow("AUC, all words", len(marks), pooled(False), pooled(True), 0.5)]
    if both:
        chance = float(np.mean([labels[place].mean() for place in both]))
        rows.append(InventedWordsRow("AUC within captions", len(both), within(False), within(True), 0.5))
        rows.append(InventedWordsRow("least supported word is invented", len(both), least(False), least(True), chance))
    return tuple(rows)


def read_synonyms(path: Path) -> dict[str, tuple[str, ...]]:
    """One line per object class, its names separated by commas, the class first (CHAIR's list)."""
    found: dict[str, tuple[str, ...]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        first, *rest = (name.strip() for name in line.split(","))
        if first:
            found[first] = tuple(name for name in rest if name)
    return found


def section(result: WordStudy) -> str:
    """The table in Markdown, in per cent."""
    lines = [
        "Invented words by their terms, in per cent with 95 % cluster-bootstrap interval over pictures, over "
        f"{result.captions} captions; {result.left_out} captions name nothing that is marked, or could not be read.",
        "",
        f"`{result.signature}`",
        "",
        "| figure | n | terms | wrong picture | chance |",
        "|---|---|---|---|---|",
        *(
            f"| {r.name} | {r.n} | {per_cent(r.true)} | {per_cent(r.wrong)} | {100 * r.chance:.1f} |"
            for r in result.rows
        ),
    ]
    return "\n".join(lines) + "\n"


def charts(result: WordStudy) -> tuple[Chart, ...]:
    """The figures with true and with wrong pictures."""
    names = {row.name: row for row in result.rows}
    lines = (
        ChartLine.of("terms", {name: row.true for name, row in names.items()}),
        ChartLine.of("wrong picture", {name: row.wrong for name, row in names.items()}),
        ChartLine("chance", tuple(names), tuple(100 * row.chance for row in names.values())),
    )
    return (Chart(title="invented words by their terms", x_label="figure", y_label="per cent", lines=lines),)
