"""Detection of hallucinated words by their terms, on captions with marked hallucinations."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError, unknown_name
from msdscore.forms.base import Unit, rank_key
from msdscore.intervals import Floats, Interval, bootstrap_mean
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import segment, stem
from msdscore_lab.benchmarks.base import Rated, clusters
from msdscore_lab.benchmarks.readers.battles import read_docent_spans
from msdscore_lab.benchmarks.readers.ratings import MarkedCaption, read_long_words
from msdscore_lab.benchmarks.run.cases import ItemBatch, item_batches
from msdscore_lab.benchmarks.run.plan import pipeline_for
from msdscore_lab.stats.ranks import auc, prepare
from msdscore_lab.stats.resample import bootstrap
from msdscore_lab.studies.changed import changed
from msdscore_lab.studies.context import Study, every_nth, measure_readable
from msdscore_lab.studies.match import word_reliability
from msdscore_lab.studies.table import Column, Plot, Row, Table, per_cent

Span = tuple[int, int]
Mention = tuple[Span, bool]  # span in the caption, and whether it is hallucinated
Synonyms = Mapping[str, tuple[str, ...]]  # all names of each object class
MARKS: dict[str, Callable[[Path], list[MarkedCaption]]] = {
    "chair": read_long_words,
    "docent": read_docent_spans,
}
_IMAGES = 16  # per batch
_LEAST_SUPPORTED = "least supported word is invented"


def words(study: Study, *, marks: str = "docent", synonyms: Path | None = None) -> list[Table]:
    """Measure how well the doubt of a word (lack of support by the image) separates hallucinated words from others.

    `marks` are spans that experts marked as mistakes in long captions (`docent`), or names of absent objects (`chair`),
    with a file of `synonyms`, one line per class. `captions` reads rows of images
    and captions and checks p-values and probabilities of words; `changed` compares the p-values of words that were
    changed in SugarCrepe's wrong captions with those of the original words.
    """
    if marks == "captions":
        return word_reliability(study)
    if marks == "changed":
        return changed(study)
    if marks not in MARKS:
        raise unknown_name("kind of marks", marks, [*MARKS, "captions", "changed"])
    # DocENT is also a benchmark: its folder and its number of components are those of `bench`.
    is_benchmark = marks == "docent"
    captions = every_nth(MARKS[marks](study.folder(marks) if is_benchmark else study.root), study.limit)
    names = read_synonyms(synonyms) if synonyms else {}
    marked = [(caption, spans) for caption in captions if (spans := mentions_of(caption, names))]
    mentions = [spans for _, spans in marked]
    if not any(hallucinated for spans in mentions for _, hallucinated in spans):
        raise InputError("expected captions with marked words, got none")
    items = [Rated(caption.id, caption.image, caption.caption, (0.0,)) for caption, _ in marked]
    pipeline = study.pipeline()
    pipeline = pipeline_for(marks, pipeline, study.spec) if is_benchmark else pipeline
    batches = list(item_batches(items, seed=study.seed, control=True, size=_IMAGES))
    answers = study.run(
        "words", batches, lambda _, batch: _measure(pipeline, items, batch, mentions), pipeline,
        marks=marks, synonyms=names or None,
    )  # fmt: skip
    doubts = {(item, wrong): np.array(values) for answer in answers for item, wrong, values in answer}
    measured = [item for item in range(len(items)) if (item, False) in doubts and (item, True) in doubts]
    labels = [np.array([float(hallucinated) for _, hallucinated in mentions[item]]) for item in measured]
    scores = {wrong: [doubts[item, wrong] for item in measured] for wrong in (False, True)}
    rows = _rows(labels, scores, clusters([items[item] for item in measured]))
    return [_table(rows, len(measured), len(captions) - len(measured), pipeline.signature)]


def read_synonyms(path: Path) -> dict[str, tuple[str, ...]]:
    """Read names of object classes: one line per class, separated by commas, the class first (CHAIR's list)."""
    names: dict[str, tuple[str, ...]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        first, *rest = (name.strip() for name in line.split(","))
        if first:
            names[first] = tuple(name for name in rest if name)
    return names


def mentions_of(caption: MarkedCaption, synonyms: Synonyms) -> tuple[Mention, ...]:
    """Return the content words of DocENT captions with human marks, or the object names of CHAIR captions.

    >>> cat = MarkedCaption("1", Path("x.jpg"), "A dog, two cats.", present=("dog",), absent=("cat",))
    >>> [(cat.caption[slice(*span)], invented) for span, invented in mentions_of(cat, {})]
    [('dog', False), ('cats', True)]
    """
    if caption.spans is not None:
        content = [(piece.start, piece.end) for piece in segment(caption.caption) if piece.content]
        return tuple((span, any(span[0] < end and start < span[1] for start, end in caption.spans)) for span in content)
    return _named_objects(caption, synonyms)


def _named_objects(caption: MarkedCaption, synonyms: Synonyms) -> tuple[Mention, ...]:
    """Return the names of objects in a caption, in order; of overlapping ones the longest: "hot dog" is not a dog."""
    mentions = [
        (span, hallucinated)
        for names, hallucinated in ((caption.present, False), (caption.absent, True))
        for name in names
        for span in _spans(caption.caption, (name, *synonyms.get(name, ())))
    ]
    longest: list[Mention] = []
    for span, hallucinated in sorted(mentions, key=lambda mention: mention[0][0] - mention[0][1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other, _ in longest):
            longest.append((span, hallucinated))
    return tuple(sorted(longest))


def _spans(caption: str, names: Sequence[str]) -> list[Span]:
    """Return the spans of names as whole words, in the singular or the plural."""
    words = "|".join(re.escape(name) for name in sorted(set(names), key=len, reverse=True))
    return [match.span() for match in re.finditer(rf"\b(?:{words})(?:e?s)?\b", caption, re.IGNORECASE)]


def _measure(
    pipeline: Pipeline, items: Sequence[Rated], batch: ItemBatch, mentions: Sequence[Sequence[Mention]]
) -> list[tuple[int, bool, list[float]]]:
    """Return the doubt of every mention of a batch's captions, with the item and whether the image is wrong."""
    texts = [items[item].caption for item in batch.items]
    cells = [(False, cell) for cell in enumerate(batch.owner)] + [(True, cell) for cell in enumerate(batch.wrong)]
    pairs = [(owner, caption) for _, (caption, owner) in cells]
    readable, measured = measure_readable(pipeline, batch.images, texts, pairs)
    answers = []
    for pair, (wrong, (caption, _)) in enumerate(cells[index] for index in readable):
        assert measured is not None, "some pairs are readable"
        units = [unit for unit in pipeline.form.units(measured, pair) if unit.kind == "word"]
        item = batch.items[caption]
        answers.append((item, wrong, _doubts(units, [span for span, _ in mentions[item]])))
    return answers


def _doubts(units: Sequence[Unit], spans: Sequence[Span]) -> list[float]:
    """Return the mean doubt of the words inside each span; the median doubt if none of them is judged."""
    # A repeated word has the doubt of its first occurrence.
    doubt_by_stem = {
        stem(unit.text.casefold()): value for unit in reversed(units) if (value := rank_key(unit)) is not None
    }
    neutral = float(np.median(list(doubt_by_stem.values()))) if doubt_by_stem else 0.0
    doubts = []
    for start, end in spans:
        inside = [
            doubt_by_stem.get(stem(unit.text.casefold())) for unit in units if start <= unit.start and unit.end <= end
        ]
        judged = [value for value in inside if value is not None]
        doubts.append(float(np.mean(judged)) if judged else neutral)
    return doubts


def _rows(labels: Sequence[Floats], scores: Mapping[bool, Sequence[Floats]], names: npt.NDArray[np.str_]) -> list[Row]:
    mixed = [caption for caption, marks in enumerate(labels) if 0 < marks.sum() < len(marks)]
    owner = np.repeat(np.arange(len(labels)), [len(marks) for marks in labels])
    marks = np.concatenate(labels)

    def figures(doubts: Sequence[Floats]) -> dict[str, Interval]:
        columns = prepare(np.concatenate(doubts), marks)
        area = bootstrap(lambda weights: auc(columns, weights[owner]), len(labels), clusters=names)
        if not mixed:
            return {"AUC, all words": area}
        areas = [auc(prepare(doubts[caption], labels[caption])) for caption in mixed]
        firsts = [labels[caption][int(np.argmax(doubts[caption]))] for caption in mixed]
        return {
            "AUC, all words": area,
            "AUC within captions": bootstrap_mean(areas, clusters=names[mixed]),
            _LEAST_SUPPORTED: bootstrap_mean(firsts, clusters=names[mixed]),
        }

    true, wrong = figures(scores[False]), figures(scores[True])
    rows: list[Row] = []
    for name, figure in true.items():
        level = float(np.mean([labels[caption].mean() for caption in mixed])) if name == _LEAST_SUPPORTED else 0.5
        rows.append({"name": name, "n": len(mixed) if rows else len(marks), "true": figure, "wrong": wrong[name],
                     "chance": level})  # fmt: skip
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
