"""Accuracy of the words that terms and explanations name.

The changed word of a wrong caption as the least supported one, suggestions for a word in doubt, and missing words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from math import comb

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import ZERO, Vocabulary
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.explain.explanation import explain
from msdscore.explain.terms import rank_key
from msdscore.intervals import Interval, bootstrap_mean
from msdscore.lab.benchmarks.base import Image, Pair, clusters, image_source, wrong_images
from msdscore.lab.benchmarks.readers.rows import CaptionedImage, captioned_images
from msdscore.lab.stats.ranks import Columns, auc, prepare
from msdscore.lab.stats.resample import bootstrap
from msdscore.lab.studies.context import Study, drawn_pairs, every_nth, measure_readable
from msdscore.lab.studies.table import Column, Plot, Row, Table, per_cent
from msdscore.scoring.calibrate import stems_of
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import Word, segment, stem

BENCHMARK = "sugarcrepe"
SUBSETS = ("replace_obj", "replace_att")
DEPTHS = (1, 3)
RANKINGS = ("terms", "occlusion", "wrong_picture")
Ranks = Sequence[Sequence[int]]  # indices of content words, least supported first, by each of `RANKINGS`
_UNREADABLE = [float("nan")] * 4


@dataclass(frozen=True, slots=True)
class WrongCaption:
    """A wrong caption: its content words, and the indices of those that were changed."""

    pair: Pair
    words: tuple[Word, ...]
    changed: frozenset[int]

    def chance(self, depth: int) -> float:
        """Return the probability that a random order has a changed word among the first `depth`."""
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
    asked = list(zip(captions, wrong_images([caption.pair for caption in captions], study.seed), strict=True))
    ranks = study.rows("localisation", asked, lambda batch: [rank_words(pipeline, *each) for each in batch], pipeline)
    rows = list[Row]()
    for subset in SUBSETS:
        mine = [both for both in zip(captions, ranks, strict=True) if both[0].pair.subset == subset]
        rows += [_row(subset, depth, mine) for depth in DEPTHS if mine]
    ways = [per_cent("terms"), per_cent("occlusion"), per_cent("wrong_picture", "wrong image"), per_cent("chance")]
    gaps = [per_cent("over_occlusion", "terms − occlusion"), per_cent("over_chance", "terms − chance")]
    plot = Plot(x="subset", y=[column.name for column in ways], panel=["depth"], y_label="per cent",
                title="changed word among the first")  # fmt: skip
    left_out = len(chosen) - len(captions)
    return [Table(
        name="rows",
        title="Changed word of a wrong SugarCrepe caption among the first of its content words, per cent of captions",
        columns=[Column("subset"), Column("items", "captions"), Column("depth", "top"), *ways, *gaps],
        rows=rows,
        notes=["95 % cluster-bootstrap intervals over images",
               f"{left_out} pairs left out: they do not change a single content word",
               "occlusion removes one word at a time and measures the cosine"],
        signature=pipeline.signature,
        facts={"left_out": left_out},
        plots=[plot],
    )]  # fmt: skip


def wrong_captions(pairs: Sequence[Pair]) -> list[WrongCaption]:
    """Return the wrong captions in which some, but not all, content words are changed."""
    captions = []
    for pair in pairs:
        if pair.subset in SUBSETS:
            words = tuple(piece for piece in segment(pair.negative) if piece.content)
            captions.append(WrongCaption(pair, words, changed_words(pair.positive, pair.negative)))
    return [caption for caption in captions if 0 < len(caption.changed) < len(caption.words)]


def changed_words(right: str, wrong: str) -> frozenset[int]:
    """Return the indices of the content words of `wrong` that differ from `right`.

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
    """Return the indices of the content words, least supported first, by three criteria.

    Their doubt in the explanation, the rise of the similarity without each, and their doubt with another image. Words
    that the encoder does not read come last.
    """
    caption = question.pair.negative
    shorter = [" ".join((caption[: word.start] + caption[word.end :]).split()) for word in question.words]
    decoded = pipeline.decode([image_source(question.pair.image), image_source(stranger)])
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts([caption, *shorter]).require()
    measured = pipeline.measure(images, texts, [0, 1] + [0] * len(shorter), [0, *range(len(shorter) + 1)])
    columns = [measured.similarity[2:].double().tolist()]
    for number in (0, 1):
        doubts = {unit.start: rank_key(unit) for unit in pipeline.config.units(measured, number)}
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


def replacements(study: Study) -> tuple[list[Pair], dict[str, tuple[str, str]]]:
    """Pairs in which one content word is replaced, and the original and the replacing word of each by its id."""
    pairs = [pair for pair in study.items(BENCHMARK) if isinstance(pair, Pair) and pair.subset in SUBSETS]
    words = {pair.id: both for pair in pairs if (both := replaced_word(pair.positive, pair.negative))}
    if not words:
        raise InputError("expected wrong captions in which one word is replaced by another, got none")
    return drawn_pairs([pair for pair in pairs if pair.id in words], study.limit, study.seed), words


def changed(study: Study) -> list[Table]:
    """P-values of the words that replace others in wrong captions, and of the words they replace."""
    pipeline = study.pipeline()
    chosen, words = replacements(study)
    answers = study.rows(
        "changed", chosen, lambda batch: _replaced_values(pipeline, batch, [words[pair.id] for pair in batch]), pipeline
    )
    values, names = np.array(answers, dtype=np.float64), clusters(chosen)
    judged = ~np.isnan(values).any(axis=1)
    subsets = np.array([pair.subset for pair in chosen])
    rows: list[Row] = []
    for subset in (*SUBSETS, "both"):
        here = judged & ((subsets == subset) | (subset == "both"))
        if not here.any():
            continue
        true, false = values[here, 0], values[here, 1]
        marks = np.repeat([0.0, 1.0], len(true))
        area = bootstrap(partial(_area, prepare(np.concatenate([true, false]), marks)), len(true), clusters=names[here])
        rows.append({
            "subset": subset, "n": int(here.sum()),
            "changed": bootstrap_mean((-false < ZERO).astype(float), clusters=names[here]),
            "original": bootstrap_mean((-true < ZERO).astype(float), clusters=names[here]),
            "lower": bootstrap_mean((false > true) + 0.5 * (false == true), clusters=names[here]),
            "auc": area,
        })  # fmt: skip
    columns = [Column("subset"), Column("n", "pairs"), per_cent("changed", f"changed word below {ZERO:g}"),
               per_cent("original", "original below it"), per_cent("lower", "changed below original"),
               per_cent("auc", "AUC")]  # fmt: skip
    return [Table(
        name="changed", title="P-values of changed words of SugarCrepe and of the words they replace, per cent",
        columns=columns, rows=rows, signature=pipeline.signature,
        notes=[f"{int((~judged).sum())} of {len(chosen)} pairs are left out: one of the words is not judged"],
    )]  # fmt: skip


def _area(columns: Columns, weights: npt.NDArray[np.float64]) -> float:
    return auc(columns, np.tile(weights, 2))


def _replaced_values(
    pipeline: Pipeline, pairs: Sequence[Pair], words: Sequence[tuple[str, str]]
) -> list[tuple[float, float]]:
    """How little the image supports the original and the changed word of each pair; NaN for those not judged."""
    texts = [text for pair in pairs for text in (pair.positive, pair.negative)]
    owners = [(number // 2, number) for number in range(len(texts))]
    readable, measured = measure_readable(pipeline, [pair.image for pair in pairs], texts, owners)
    values = np.full(len(texts), np.nan)
    for row, number in enumerate(readable):
        assert measured is not None, "some pairs are readable"
        word = stem(words[number // 2][number % 2].casefold())
        for unit in pipeline.config.units(measured, row):
            if stem(unit.text.casefold()) == word and (value := rank_key(unit)) is not None:
                values[number] = value
    return [(float(true), float(false)) for true, false in values.reshape(-1, 2)]


def suggestions(study: Study) -> list[Table]:
    """How often the original word is among the suggestions for the word that replaced it, in wrong captions."""
    pipeline = study.pipeline()
    _vocabulary(pipeline)
    chosen, words = replacements(study)
    answers = study.rows(
        "suggestions", chosen, lambda batch: [_suggested(pipeline, each, *words[each.id]) for each in batch], pipeline
    )
    values = np.array(answers)
    names, subsets = clusters(chosen), np.array([pair.subset for pair in chosen])
    rows: list[Row] = []
    for subset in SUBSETS:
        here = (subsets == subset) & ~np.isnan(values[:, 0])
        named = here & (values[:, 1] > 0)
        shares = {"doubtful": (here, 0), "named": (here, 1), "right": (named, 2), "true": (named, 3)}
        means = {name: _mean(values[mask, column], names[mask]) for name, (mask, column) in shares.items()}
        if here.any():
            rows.append({"subset": subset, "n": int(here.sum()), **means})
    columns = [
        Column("subset"),
        Column("n", "captions"),
        per_cent("doubtful", "replaced word in doubt"),
        per_cent("named", "and has suggestions"),
        per_cent("right", "of these: the original among them"),
        per_cent("true", "a word of the true caption among them"),
    ]
    title = "Suggestions for the replaced word of wrong SugarCrepe captions, per cent"
    return [Table(name="rows", title=title, columns=columns, rows=rows, signature=pipeline.signature)]


def replaced_word(right: str, wrong: str) -> tuple[str, str] | None:
    """Return the content word that was replaced, and its replacement; None if more has changed.

    >>> replaced_word("a red car on a road", "a blue car on a road")
    ('red', 'blue')
    """
    changed = []
    for before, after in ((wrong, right), (right, wrong)):
        words = [word for word in segment(after) if word.content]
        numbers = changed_words(before, after)
        if len(numbers) != 1:
            return None
        changed.append(words[next(iter(numbers))].text)
    return changed[0], changed[1]


def _suggested(pipeline: Pipeline, pair: Pair, original: str, replacement: str) -> list[float]:
    """Return whether the replacement is in doubt and has suggestions, with the original or another true word."""
    try:
        item = explain(pipeline, image_source(pair.image), [pair.negative])[0]
    except RowError:
        return _UNREADABLE
    wrong = stem(replacement.casefold())
    doubtful = any(stem(unit.text.casefold()) == wrong for unit in item.doubtful)
    suggested = (suggestion for suggestion in item.suggestions if stem(suggestion.word.casefold()) == wrong)
    instead = {stem(named.word) for suggestion in suggested for named in suggestion.instead}
    right = stem(original.casefold()) in instead, bool(instead & stems_of([pair.positive]))
    return [float(value) for value in (doubtful, bool(instead), *right)]


def missing(study: Study) -> list[Table]:
    """How many words called missing from a caption are in another caption of the image."""
    pipeline = study.pipeline()
    vocabulary = _vocabulary(pipeline)
    frequent = [vocabulary.stems[number] for number in vocabulary.frequency.argsort(descending=True).tolist()]
    entries = [entry for entry in captioned_images(study.root) if len(entry.captions) > 1]
    if not entries:
        raise InputError("expected images with at least two captions each, got none")
    chosen = [entries[number] for number in every_nth(range(len(entries)), study.limit)]
    values = np.array(
        study.rows("missing", chosen, lambda batch: [_confirmed(pipeline, each, frequent) for each in batch], pipeline)
    )
    values = values[~np.isnan(values[:, 0])]
    named = values[values[:, 0] > 0]
    row: Row = {
        "n": len(values),
        "words": float(values[:, 0].mean()),
        "right": _mean(named[:, 1] / named[:, 0]),
        "first": _mean(named[:, 2]),
        "frequent": _mean(named[:, 3] / named[:, 0]),
    }
    columns = [
        Column("n", "images"),
        Column("words", "words named per caption", ".1f"),
        per_cent("right", "confirmed by another caption"),
        per_cent("first", "the first of them"),
        per_cent("frequent", "as many of the most frequent words"),
    ]
    title = "Words called missing from one caption of an image that its other captions have, per cent"
    return [Table(name="rows", title=title, columns=columns, rows=[row], signature=pipeline.signature)]


def _confirmed(pipeline: Pipeline, entry: CaptionedImage, frequent: Sequence[str]) -> list[float]:
    """Return the number of missing words, how many are confirmed, whether the first is, and of frequent words."""
    first, *others = entry.captions
    try:
        item = explain(pipeline, image_source(entry.image), [first])[0]
    except RowError:
        return _UNREADABLE
    true, said = stems_of(others), stems_of([first])
    right = [stem(word.word) in true for word in item.missing]
    plain = [word for word in frequent if word not in said][: len(right)]
    return [float(value) for value in (len(right), sum(right), right[:1] == [True], sum(w in true for w in plain))]


def _vocabulary(pipeline: Pipeline) -> Vocabulary:
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None:
        raise ConfigError("expected a bank with a vocabulary; build one with: msdscore bank IMAGES --pairs ROWS.jsonl")
    return vocabulary


def _mean(values: npt.NDArray[np.float64], names: npt.NDArray[np.str_] | None = None) -> Interval | None:
    return bootstrap_mean(values, clusters=names) if len(values) else None
