"""Is the changed word of a wrong caption the one that the terms call least supported?"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import comb

import numpy as np

from msdscore.benchmarks.base import Image, Pair, clusters, image_source, wrong_images
from msdscore.errors import InputError
from msdscore.explain.terms import doubt, units_of
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import bootstrap_mean
from msdscore.studies.context import Study, drawn_pairs, split
from msdscore.studies.table import Column, Plot, Row, Table, per_cent
from msdscore.text.words import Word, segment

BENCHMARK = "sugarcrepe"
SUBSETS = ("replace_obj", "replace_att")
DEPTHS = (1, 3)
RANKINGS = ("terms", "occlusion", "wrong_picture")
Ranks = Sequence[Sequence[int]]  # numbers of the content words, the least supported first, by each of `RANKINGS`
_CAPTIONS = 16  # of a batch


@dataclass(frozen=True, slots=True)
class WrongCaption:
    """A wrong caption: its content words, and which of them were changed (numbers of the content words)."""

    pair: Pair
    words: tuple[Word, ...]
    changed: frozenset[int]

    def chance(self, depth: int) -> float:
        """How often a random order has a changed word among the first `depth`."""
        words, depth = len(self.words), min(depth, len(self.words))
        return 1 - comb(words - len(self.changed), depth) / comb(words, depth)


def localisation(study: Study) -> list[Table]:
    """Rank the content words of every wrong caption by terms, by occlusion, and by terms with a wrong image."""
    wanted = [pair for pair in study.items(BENCHMARK) if isinstance(pair, Pair) and pair.subset in SUBSETS]
    if not wanted:
        raise InputError(f"expected pairs of the subsets {', '.join(SUBSETS)}, got none")
    chosen = drawn_pairs(wanted, study.limit, study.seed)
    captions = wrong_captions(chosen)
    if not captions:
        raise InputError(f"expected wrong captions that change one content word, got none among {len(chosen)}")
    pipeline = study.pipeline()
    strangers = wrong_images([caption.pair for caption in captions], study.seed)
    batches = split(list(zip(captions, strangers, strict=True)), _CAPTIONS)

    def measure(_: int, batch: Sequence[tuple[WrongCaption, Image]]) -> list[Ranks]:
        return [rank_words(pipeline, caption, stranger) for caption, stranger in batch]

    ranks = [row for answer in study.run("localisation", batches, measure, pipeline) for row in answer]
    rows = []
    for subset in SUBSETS:
        mine = [both for both in zip(captions, ranks, strict=True) if both[0].pair.subset == subset]
        rows += [_row(subset, depth, mine) for depth in DEPTHS if mine]
    return [_table(rows, len(chosen) - len(captions), pipeline.signature)]


def wrong_captions(pairs: Sequence[Pair]) -> list[WrongCaption]:
    """The wrong captions whose change shows in a content word, and that have other content words."""
    captions = []
    for pair in pairs:
        if pair.subset in SUBSETS:
            words = tuple(piece for piece in segment(pair.negative) if piece.content)
            captions.append(WrongCaption(pair, words, changed_words(pair.positive, pair.negative)))
    return [caption for caption in captions if 0 < len(caption.changed) < len(caption.words)]


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
    new = {pieces[at].start for step, _, _, low, high in steps if step != "equal" for at in range(low, high)}
    return frozenset(number for number, word in enumerate(words) if word.start in new)


def rank_words(pipeline: Pipeline, question: WrongCaption, stranger: Image) -> Ranks:
    """Numbers of the content words, the least supported first, in three ways.

    By their doubt in the explanation; by how much the similarity rises when each is left out; by their doubt with
    another image. Words that the encoder does not read come last.
    """
    caption = question.pair.negative
    shorter = [" ".join((caption[: word.start] + caption[word.end :]).split()) for word in question.words]
    decoded = pipeline.decode([image_source(question.pair.image), image_source(stranger)])
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts([caption, *shorter]).require()
    measured = pipeline.measure(images, texts, [0, 1] + [0] * len(shorter), [0, *range(len(shorter) + 1)])
    columns = [measured.similarity[2:].double().tolist()]
    for number in (0, 1):
        doubts = {unit.start: doubt(unit) for unit in units_of(pipeline.config, measured, number, caption)}
        values = [doubts.get(word.start) for word in question.words]
        columns.append([-np.inf if value is None else value for value in values])
    occlusion, own, other = (np.argsort(-np.asarray(column), kind="stable").tolist() for column in columns)
    return [own, occlusion, other]


def _row(subset: str, depth: int, answers: Sequence[tuple[WrongCaption, Ranks]]) -> Row:
    hits = {
        name: np.array([float(bool(caption.changed & set(ranks[at][:depth]))) for caption, ranks in answers])
        for at, name in enumerate(RANKINGS)
    }
    columns = hits | {"chance": np.array([caption.chance(depth) for caption, _ in answers])}
    columns |= {f"over_{name}": hits["terms"] - columns[name] for name in ("occlusion", "chance")}
    names = clusters([caption.pair for caption, _ in answers])
    shares = {name: bootstrap_mean(values, clusters=names) for name, values in columns.items()}
    return {"subset": subset, "items": len(answers), "depth": depth, **shares}


def _table(rows: Sequence[Row], left_out: int, signature: str) -> Table:
    ways = [per_cent("terms"), per_cent("occlusion"), per_cent("wrong_picture", "wrong image"), per_cent("chance")]
    gaps = [per_cent("over_occlusion", "terms − occlusion"), per_cent("over_chance", "terms − chance")]
    plot = Plot(x="subset", y=[column.name for column in ways], panel=["depth"], y_label="per cent",
                title="changed word among the first")  # fmt: skip
    return Table(
        name="rows",
        title="Changed word of a wrong SugarCrepe caption among the first of its content words, per cent of captions",
        columns=[Column("subset"), Column("items", "captions"), Column("depth", "top"), *ways, *gaps],
        rows=rows,
        notes=["95 % cluster-bootstrap intervals over images",
               f"{left_out} pairs change no single content word and are left out",
               "occlusion leaves out one word at a time and looks at the cosine"],
        signature=signature,
        facts={"left_out": left_out},
        plots=[plot],
    )  # fmt: skip
