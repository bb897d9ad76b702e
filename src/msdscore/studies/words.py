"""Do the terms of words find the words that a caption invents? On captions whose inventions are marked."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.base import Rated, clusters
from msdscore.benchmarks.readers.ratings import MarkedCaption, read_hat_words, read_long_words
from msdscore.benchmarks.run.cases import ItemBatch, item_batches
from msdscore.errors import InputError, unknown_name
from msdscore.explain.terms import doubt, units_of
from msdscore.scoring.config import Form
from msdscore.scoring.measurement import Measurement
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.ranks import auc, prepare
from msdscore.stats.resample import Interval, bootstrap, bootstrap_mean
from msdscore.studies.context import Study, every_nth, measure_readable
from msdscore.studies.match import word_reliability
from msdscore.studies.table import Column, Plot, Row, Table, per_cent
from msdscore.text.words import segment, stem

Floats = npt.NDArray[np.float64]
Span = tuple[int, int]
Mention = tuple[Span, bool]  # where a caption names something, and whether that is invented
Synonyms = Mapping[str, tuple[str, ...]]  # by object class every word or phrase that names it
MARKS = {"hat": read_hat_words, "chair": read_long_words}
_IMAGES = 16  # of a batch


def words(study: Study, *, marks: str = "hat", synonyms: Path | None = None) -> list[Table]:
    """How well the doubt of a word (how little the image supports it) tells invented words from the others.

    `marks` are those of people (`hat`) or absent objects by name (`chair`), which `synonyms` names, a line per class.
    With `captions`, whose root are rows of images and captions, p-values and probabilities of words are checked.
    """
    if marks == "captions":
        return word_reliability(study)
    if marks not in MARKS:
        raise unknown_name("kind of marks", marks, [*MARKS, "captions"])
    captions = every_nth(MARKS[marks](study.root), study.limit)
    names = read_synonyms(synonyms) if synonyms else {}
    mentions = [mentions_of(caption, names) for caption in captions]
    asked = [number for number, named in enumerate(mentions) if named]
    items = [Rated(captions[n].id, captions[n].image, captions[n].caption, (0.0,)) for n in asked]
    if not any(invented for number in asked for _, invented in mentions[number]):
        raise InputError("expected captions with marked inventions, got none")
    pipeline = study.pipeline()

    def measure(_: int, batch: ItemBatch) -> list[tuple[int, bool, list[float]]]:
        return _measure(pipeline, items, batch, [mentions[asked[item]] for item in batch.items])

    batches = list(item_batches(items, seed=study.seed, control=True, size=_IMAGES))
    answers = study.run("words", batches, measure, pipeline, marks=marks, synonyms=names or None)
    gaps = {(item, wrong): np.array(values) for answer in answers for item, wrong, values in answer}
    kept = [item for item in range(len(items)) if (item, False) in gaps and (item, True) in gaps]
    labels = [np.array([float(invented) for _, invented in mentions[asked[item]]]) for item in kept]
    scores = {wrong: [gaps[item, wrong] for item in kept] for wrong in (False, True)}
    rows = _rows(labels, scores, clusters([items[item] for item in kept]))
    return [_table(rows, len(kept), len(captions) - len(kept), pipeline.signature)]


def read_synonyms(path: Path) -> dict[str, tuple[str, ...]]:
    """One line per object class, its names separated by commas, the class first (CHAIR's list)."""
    names: dict[str, tuple[str, ...]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        first, *rest = (name.strip() for name in line.split(","))
        if first:
            names[first] = tuple(name for name in rest if name)
    return names


def mentions_of(caption: MarkedCaption, synonyms: Synonyms) -> tuple[Mention, ...]:
    """The content words of HAT's captions with people's marks, or the object names of CHAIR's.

    >>> cat = MarkedCaption("1", Path("x.jpg"), "A dog, two cats.", present=("dog",), absent=("cat",))
    >>> [(cat.caption[slice(*span)], invented) for span, invented in mentions_of(cat, {})]
    [('dog', False), ('cats', True)]
    """
    if caption.words:
        return _marked_words(caption)
    named = [
        (span, invented)
        for names, invented in ((caption.present, False), (caption.absent, True))
        for name in names
        for span in _spans(caption.caption, (name, *synonyms.get(name, ())))
    ]
    # "hot dog" names no dog: of spans that overlap the longest stands.
    kept: list[Mention] = []
    for span, invented in sorted(named, key=lambda mention: mention[0][0] - mention[0][1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other, _ in kept):
            kept.append((span, invented))
    return tuple(sorted(kept))


def _marked_words(caption: MarkedCaption) -> tuple[Mention, ...]:
    """Words split at spaces, looked up in the caption one after another; those without a content word are left out."""
    content = [(piece.start, piece.end) for piece in segment(caption.caption) if piece.content]
    mentions, end = [], 0
    for word, invented in caption.words:
        start = caption.caption.find(word, end)
        if start < 0:
            continue
        end = start + len(word)
        if any(start <= low and high <= end for low, high in content):
            mentions.append(((start, end), invented))
    return tuple(mentions)


def _spans(caption: str, names: Sequence[str]) -> list[Span]:
    """Where any of some names stands as a whole word, in the singular or the plural."""
    words = "|".join(re.escape(name) for name in sorted(set(names), key=len, reverse=True))
    return [match.span() for match in re.finditer(rf"\b(?:{words})(?:e?s)?\b", caption, re.IGNORECASE)]


def _measure(
    pipeline: Pipeline, items: Sequence[Rated], batch: ItemBatch, mentions: Sequence[Sequence[Mention]]
) -> list[tuple[int, bool, list[float]]]:
    """The doubt of every mention of a batch's captions, with the item and whether the image is the wrong one."""
    texts = [items[number].caption for number in batch.items]
    wanted = [
        (number, owner, wrong)
        for wrong, owners in ((False, batch.owner), (True, batch.stranger))
        for number, owner in enumerate(owners)
    ]
    pairs = [(owner, number) for number, owner, _ in wanted]
    readable, measured = measure_readable(pipeline, batch.images, texts, pairs)
    if measured is None:
        return []
    return [
        (
            batch.items[number],
            wrong,
            _doubts(items[batch.items[number]].caption, mentions[number], pipeline.config, measured, pair),
        )
        for pair, (number, _, wrong) in enumerate(wanted[number] for number in readable)
    ]


def _doubts(caption: str, mentions: Sequence[Mention], form: Form, measured: Measurement, pair: int) -> list[float]:
    """The mean doubt of the words inside each mention; where none of them is judged, that of a middling word."""
    units = [unit for unit in units_of(form, measured, pair, caption) if unit.kind == "word"]
    # A word that was said before is as doubtful as it was then.
    known = {stem(unit.text.casefold()): value for unit in reversed(units) if (value := doubt(unit)) is not None}
    neutral = float(np.median(list(known.values()))) if known else 0.0
    doubts = []
    for (start, end), _ in mentions:
        inside = [known.get(stem(unit.text.casefold())) for unit in units if start <= unit.start and unit.end <= end]
        judged = [value for value in inside if value is not None]
        doubts.append(float(np.mean(judged)) if judged else neutral)
    return doubts


def _rows(labels: Sequence[Floats], scores: Mapping[bool, Sequence[Floats]], names: npt.NDArray[np.str_]) -> list[Row]:
    both = [number for number, marks in enumerate(labels) if 0 < marks.sum() < len(marks)]
    owner = np.repeat(np.arange(len(labels)), [len(marks) for marks in labels])
    marks = np.concatenate(labels)

    def pooled(wrong: bool) -> Interval:
        columns = prepare(np.concatenate(scores[wrong]), marks)
        return bootstrap(lambda weights: auc(columns, weights[owner]), len(labels), clusters=names)

    def within(wrong: bool) -> Interval:
        values = [auc(prepare(scores[wrong][number], labels[number])) for number in both]
        return bootstrap_mean(values, clusters=names[both])

    def least(wrong: bool) -> Interval:
        values = [labels[number][int(np.argmax(scores[wrong][number]))] for number in both]
        return bootstrap_mean(values, clusters=names[both])

    rows: list[Row] = [
        {"name": "AUC, all words", "n": len(marks), "true": pooled(False), "wrong": pooled(True), "chance": 0.5}
    ]
    if both:
        chance = float(np.mean([labels[number].mean() for number in both]))
        figures = (("AUC within captions", within, 0.5), ("least supported word is invented", least, chance))
        rows += [
            {"name": name, "n": len(both), "true": figure(False), "wrong": figure(True), "chance": level}
            for name, figure, level in figures
        ]
    return rows


def _table(rows: Sequence[Row], captions: int, left_out: int, signature: str) -> Table:
    figures = [per_cent("true", "terms"), per_cent("wrong", "wrong image"), per_cent("chance")]
    plot = Plot(x="name", y=[column.name for column in figures], title="invented words by their terms",
                x_label="figure", y_label="per cent")  # fmt: skip
    return Table(
        name="rows",
        title=f"Invented words by their terms over {captions} captions, per cent",
        columns=[Column("name", "figure"), Column("n"), *figures],
        rows=rows,
        notes=["95 % cluster-bootstrap intervals over images",
               f"{left_out} captions name nothing that is marked, or could not be read"],
        signature=signature,
        facts={"captions": captions, "left_out": left_out},
        plots=[plot],
    )  # fmt: skip
