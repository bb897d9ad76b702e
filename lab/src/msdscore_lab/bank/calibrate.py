"""Calibration of the evidence of words for an encoder, on captioned images that it was not trained on.

Every word of an image's captions is present. Words in captions of similar images that no caption of this image has are
hard absent words: likely, but false. The evidence of both determines how reliably each word can be judged. The
distribution of true words of each kind is that of words that at least two captions of an image have: a word that only
one person uses may be a slip, or not visible. The scores of true and similar captions determine the probability
that a caption belongs to an image.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.arrays import accumulation_dtype, astype, device_of, namespace, to_numpy
from msdscore.core.embeddings import PerPoint, Points, extents, take
from msdscore.core.evidence import JUDGED, NEAREST, Bank, Familiarity, Match, Vocabulary, WordCalibration, WordKind
from msdscore.core.mixture import ITEMS, Mixture, log_densities
from msdscore.encoders.banks import BankQuality, NamedBank, build_bank, named
from msdscore.encoders.base import Encoder, TokenLayout
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.errors import ConfigError
from msdscore.forms.base import Measurement, match_settings
from msdscore.forms.evidence import Evidence, WordMeasurement
from msdscore.intervals import Floats, Ints
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.vocabulary import expected_densities, image_evidence
from msdscore.text.words import PERSONS, content_words, segment, stem
from msdscore_lab.bank.lengths import (
    Flags,
    Mentions,
    exchanged,
    fit_lengths,
    fit_logistic,
    is_sure,
    match_features,
    match_lengths,
    names_person,
    short_texts,
)
from msdscore_lab.edits import joined

Vectors = npt.NDArray[np.float32]
# Features of captions that `match` is fitted on, whether they are true of the image, and the image.
MatchRows = tuple[Floats, Flags, Ints]
LabelledText = tuple[str, int, bool]  # a text, an image index, and whether the text is a caption of that image

SIMILAR = 8  # similar images that hard absent words are taken from, one caption each
CONFIRMED = 2  # captions of an image that have a word, from which it counts as true when kinds are fitted
LEAST = 50  # captioned images; fewer are too few to calibrate words
STEPS = 200  # of probability at which quantiles of evidence are stored
KINDS = (JUDGED, 0.3, 0.5)  # least reliability of each kind of words
_RARE = 40  # labelled mentions under which a word counts as rare
_SHRINK = 10.0  # weight of the prior of a rare word, in mentions
_FEWEST = 100  # present and absent mentions that a kind is fitted on; with fewer it is joined with the next
_TEXTS = 64  # texts per batch of spreads
_MATCHED = 1000  # images that `match` is fitted on, spread over all
_PARAGRAPHS = (2, 4)  # captions that are joined into one, so that `match` knows paragraphs too
_MOST_WORDS = 1000  # of the vocabulary, the most frequent ones
_LEAST_SHARE = 0.002  # of images whose captions have a word, below which it is not in the vocabulary
_NEIGHBOURS = 24  # similar words that are stored per word
_REFERENCES = 1000  # captions that images are compared with
_UNFAMILIAR = 0.05  # share of the images of a bank that are called unfamiliar
_AT_ONCE = 128  # images whose texts are measured together
_ROWS_AT_ONCE = 64  # images whose similar images are found together
_HELD_OUT = 5  # every fifth image is held out to measure quality


class _Mentions(NamedTuple):
    """Mentions of words: stem, evidence, whether a caption of the image has it, whether others do, and the image.

    `length` is the number of content words of the text, `whole` whether it is a caption, not a part of one.
    """

    stem: npt.NDArray[np.str_]
    evidence: Floats
    present: Flags
    confirmed: Flags
    image: Ints
    length: Ints
    whole: Flags

    def take(self, rows: Flags) -> "_Mentions":
        """Return chosen mentions."""
        columns: tuple[npt.NDArray[Any], ...] = self
        return _Mentions(*(column[rows] for column in columns))


def calibrated_bank(
    encoder: Encoder,
    form: Evidence,
    images: Sequence[Image],
    captions: Sequence[Sequence[str]],
    *,
    background: int | Bank = 1000,
    others: Sequence[str] = (),
    batch_size: int = 32,
) -> NamedBank:
    """Build a bank for the evidence form: background images, words, vocabulary, and the map to a match.

    `captions` are those of every image, and the first `background` images are the background. `others` are captions
    of further images: the more there are, the more similar are the captions from which likely but absent words are
    taken. The bank is fitted on all images; its `quality` is that of one fitted without every fifth image, on those.
    If `background` is a bank, its images, words and vocabulary are used, so that scores do not change; calibrations by
    length, match and familiarity are fitted.
    """
    if len(images) < LEAST:
        raise ConfigError(f"calibration needs at least {LEAST} captioned images, got {len(images)}")
    if isinstance(background, Bank):
        base, plain = background, named(Bank(background.images, background.texts), encoder_signature(encoder))
    else:
        base, plain = None, build_bank(encoder, form, images[:background], batch_size=batch_size)
    # All words are measured first, so that their reliability can be estimated.
    uncalibrated = WordCalibration({}, 1.0, (WordKind(0.0, (0.0, 1.0), 1.0, 0.0),), 1.0)
    pipeline = Pipeline(
        encoder, form, bank=replace(plain, bank=replace(plain.bank, words=uncalibrated)), batch_size=batch_size
    )
    embedded = pipeline.embedder.images(pipeline.decode(images)).require()
    similar = similar_texts([*captions, *((text,) for text in others)], first=len(captions))
    whole = _whole_texts(captions, similar)
    labelled = [*whole, *_short_texts(captions, similar)]
    mentions = _mentions(pipeline, captions, embedded, labelled, len(whole))
    bank = replace(
        plain.bank,
        vocabulary=build_vocabulary(pipeline, embedded, captions, others) if base is None else base.vocabulary,
        familiarity=build_familiarity(pipeline, embedded, captions, others),
    )
    texts = list(dict.fromkeys(text for text, _, _ in labelled))[: 64 * _TEXTS]
    spread = _spread(plain.bank.images, pipeline.embedder.texts(texts)) if base is None else 0.0
    # Only of these images: the nearest of many thousand captions are often true of the image too.
    rows = list(_match_texts(captions, similar_texts(captions)))

    def fit(chosen: Flags) -> tuple[Bank, MatchRows]:
        """Fit words on chosen images; also return the rows that `match` is fitted on, as these words score them."""
        words = None if base is None else base.words
        if words is None:
            words = word_calibration(*mentions.take(chosen[mentions.image] & mentions.whole)[:4], spread=spread)
        known = _of_lengths(words, mentions.take(chosen[mentions.image]), captions)
        judged = replace(bank, words=replace(words, lengths=fit_lengths(words, known, STEPS)))
        scoring = Pipeline(encoder, form, bank=named(judged, encoder_signature(encoder)), batch_size=batch_size)
        return judged, _match_rows(scoring, embedded, rows)

    held_out = np.arange(len(images)) % _HELD_OUT == 0
    quality = _quality(*fit(~held_out), mentions, held_out)
    judged, (features, true, _) = fit(np.ones_like(held_out))
    match = Match((0.0, 0.0, 0.0, 0.0), match_settings(form), match_lengths(fit_logistic(features, true)))
    return replace(named(replace(judged, match=match), encoder_signature(encoder)), quality=quality)


def _whole_texts(captions: Sequence[Sequence[str]], similar: Sequence[Sequence[str]]) -> list[LabelledText]:
    """Return the captions of every image, and those of similar images."""
    return [
        (text, image, is_true)
        for image, sides in enumerate(zip(captions, similar, strict=True))
        for texts, is_true in zip(sides, (True, False), strict=True)
        for text in texts
    ]


def _short_texts(captions: Sequence[Sequence[str]], similar: Sequence[Sequence[str]]) -> Iterator[LabelledText]:
    """Yield parts of the captions of every image and of similar ones, true ones also with another word for a person."""
    for image, (true_texts, false_texts) in enumerate(zip(captions, similar, strict=True)):
        short = list(short_texts(true_texts, false_texts, seed=image))
        yield from ((text, image, is_true) for text, is_true in short)
        for text, is_true in short:  # see `lengths`
            if is_true and (other := exchanged(text)) != text:
                yield other, image, True


def _quality(trial: Bank, scored: MatchRows, mentions: _Mentions, held_out: Flags) -> BankQuality:
    """Measure words, and a `match` fitted on the other images, on the held-out images."""
    assert trial.words is not None, "a calibration has words"
    stems, evidence, present, *_ = mentions.take(held_out[mentions.image] & mentions.whole)
    kinds = [trial.words.kind_of(word) for word in stems.tolist()]
    judged = np.array([kind is not None for kind in kinds], dtype=bool)
    judged_kinds = np.array([kind for kind in kinds if kind is not None], dtype=np.int64)
    probabilities = trial.words.probabilities(evidence[judged], judged_kinds)
    features, true, image = scored
    tested = held_out[image]
    log_odds = features @ np.array(fit_logistic(features[~tested], true[~tested]))
    return BankQuality(
        words=share_above(probabilities[present[judged]], probabilities[~present[judged]]),
        match=share_above(log_odds[tested & true], log_odds[tested & ~true]),
        images=int(held_out.sum()),
    )


def similar_texts(
    captions: Sequence[Sequence[str]], *, first: int | None = None, count: int = SIMILAR
) -> list[tuple[str, ...]]:
    """Return, for each image, one caption of each of the `count` images whose captions share most rare words with it.

    `captions` are those of every image; the result is for the `first` images (default: all).

    >>> similar_texts([["a red dog"], ["a red cat"], ["two boats"]], count=1)[0]
    ('a red cat',)
    """
    stems = [stems_of(texts) for texts in captions]
    column_of = {word: column for column, word in enumerate(sorted(frozenset().union(*stems)))}
    table = np.zeros((len(captions), len(column_of)), dtype=np.float32)
    for row, words in enumerate(stems):
        table[row, [column_of[word] for word in words]] = 1.0
    table *= np.log(len(captions) / np.maximum(table.sum(axis=0), 1.0)).clip(0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
    similar = []
    rows = len(captions) if first is None else first
    for row in range(rows):
        if row % _ROWS_AT_ONCE == 0:
            block = table[row : min(row + _ROWS_AT_ONCE, rows)] @ table.T  # one product of many rows is faster
        cosines = block[row % _ROWS_AT_ONCE]
        cosines[row] = -1.0  # last; its captions are left out below
        near = np.argsort(-cosines, kind="stable")[:count]
        others = ([text for text in captions[number] if text not in captions[row]] for number in near.tolist())
        similar.append(tuple(texts[row % len(texts)] for texts in others if texts))
    return similar


def stems_of(captions: Sequence[str]) -> frozenset[str]:
    """Return the stems of the content words of all captions of an image."""
    return frozenset(stem(word) for caption in captions for word in content_words(caption))


def _mentions(
    pipeline: Pipeline,
    captions: Sequence[Sequence[str]],
    images: Embedded,
    labelled: Sequence[LabelledText],
    whole: int,
) -> _Mentions:
    """Return the mentions of judged words; words of similar images that a caption of the image has are omitted.

    The first `whole` texts are captions, the others parts of captions.
    """
    counts = [Counter(word for text in texts_of_image for word in stems_of([text])) for texts_of_image in captions]
    mentions = []
    for readable, measured in _measured(pipeline, images, labelled):
        words: WordMeasurement = measured.terms
        columns = (words.spoken, words.judged, words.evidence.tolist(), words.counts.astype(int).tolist())
        for item, spoken, judged, evidence, count in zip(readable, *columns, strict=True):
            _, image, present = labelled[item]
            for number, value in zip(judged, evidence, strict=False):  # evidence is padded
                word = spoken[number].stem
                if present or word not in counts[image]:
                    confirmed = counts[image][word] >= min(CONFIRMED, len(captions[image]))
                    mentions.append((word, value, present, confirmed, image, count, item < whole))
    if not mentions:
        raise ConfigError("calibration needs captions with words that the encoder can read; these have none")
    return _Mentions(*map(np.array, zip(*mentions, strict=True)))


def _measured(
    pipeline: Pipeline, images: Embedded, rows: Sequence[LabelledText]
) -> Iterator[tuple[list[int], Measurement[WordMeasurement]]]:
    """Measure texts with their images, some images at a time to bound memory; yield the readable rows of each time."""
    rows_of: dict[int, list[int]] = {}
    for row, (_, image, _) in enumerate(rows):
        rows_of.setdefault(image, []).append(row)
    for start in range(0, len(images), _AT_ONCE):
        numbers = [image for image in range(start, min(start + _AT_ONCE, len(images))) if image in rows_of]
        chosen = [row for image in numbers for row in rows_of[image]]
        texts = pipeline.embedder.texts([rows[row][0] for row in chosen])
        readable = [item for item in range(len(chosen)) if item not in texts.errors]
        if readable:
            image_rows = [images.row(image) for image in numbers]
            keys = tuple(images.keys[row] for row in image_rows)
            taken = Embedded(take(images.vectors, image_rows), tuple(range(len(image_rows))), {}, keys)
            owner = {image: number for number, image in enumerate(numbers)}
            measured = pipeline.measure(taken, texts, [owner[rows[chosen[item]][1]] for item in readable], readable)
            yield [chosen[item] for item in readable], measured


def _of_lengths(words: WordCalibration, mentions: _Mentions, captions: Sequence[Sequence[str]]) -> Mentions:
    """Return mentions with their kinds: true are confirmed words, absent those that no caption of the image has.

    A word for a person is true if several captions have any, absent if none has.
    """
    kinds = [words.kind_of(word) for word in mentions.stem.tolist()]
    kind = np.array([-1 if own is None else own for own in kinds], dtype=np.int64)
    persons = np.array([names_person(texts) for texts in captions])[mentions.image]
    needed = np.array([min(CONFIRMED, len(texts)) for texts in captions])[mentions.image]
    is_person = np.array([word in PERSONS for word in mentions.stem.tolist()], dtype=bool) & (kind >= 0)
    kind[is_person] = len(words.kinds)
    true = np.where(is_person, persons >= needed, mentions.present & mentions.confirmed)
    absent = np.where(is_person, persons == 0, ~mentions.present)
    return Mentions(kind, mentions.length, mentions.evidence, true, absent, mentions.whole)


def word_calibration(
    stems: npt.NDArray[np.str_], evidence: Floats, present: Flags, confirmed: Flags, *, spread: float
) -> WordCalibration:
    """Fit the reliability of every word, and the distribution of true and absent words of each kind.

    Every mention has a stem, its evidence, whether a caption of the image has the word (`present`), and whether others
    confirm it. Reliability is estimated from all mentions: rare words are seldom confirmed.
    """
    if present.all() or not present.any():
        raise ConfigError("calibration needs captions that share words and differ in others; these do not")
    reliability, other = reliabilities(stems, evidence, present)
    values = np.array([reliability.get(word, other) for word in stems.tolist()])
    true = present & confirmed
    kinds: list[WordKind] = []
    upper = np.inf
    for least in reversed(KINDS):
        chosen = (true | ~present) & (values >= least) & (values < upper)
        if min((chosen & true).sum(), (chosen & ~true).sum()) < _FEWEST:
            if least > KINDS[0]:
                continue  # too few: they join the next kind
            chosen = true | ~present  # the last kind: as all words together
        features = np.stack([np.ones(chosen.sum()), evidence[chosen]], axis=1)
        intercept, slope = fit_logistic(features, true[chosen])
        levels = np.quantile(evidence[chosen & true], np.linspace(0, 1, STEPS + 1))
        kinds.append(WordKind(least, tuple(np.round(levels, 4).tolist()), max(slope, 0.0), intercept))
        upper = least
    return WordCalibration(reliability, other, tuple(reversed(kinds)), spread)


def reliabilities(stems: npt.NDArray[np.str_], evidence: Floats, present: Flags) -> tuple[dict[str, float], float]:
    """Return the reliability of each word, (2 AUC − 1)² or 0 below chance, and that of unknown words.

    The AUC is that of present against absent mentions of the word, shrunk towards that of all rare words.
    """
    known, number, counts = np.unique(stems, return_inverse=True, return_counts=True)
    rare = counts[number] < _RARE
    prior = share_above(evidence[rare & present], evidence[rare & ~present])
    order = np.argsort(number, kind="stable")
    values = {}
    for word, rows in zip(known.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True):
        true, absent = evidence[rows[present[rows]]], evidence[rows[~present[rows]]]
        size = 2.0 * min(len(true), len(absent))
        if size:
            area = (size * share_above(true, absent) + _SHRINK * prior) / (size + _SHRINK)
            values[word] = round(max(2 * area - 1, 0.0) ** 2, 4)
    return values, max(2 * prior - 1, 0.0) ** 2


def share_above(positive: Floats, negative: Floats) -> float:
    """Return the share of pairs in which the positive value is larger, ties half; 0.5 if one side is empty.

    >>> share_above(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return 0.5
    rising = np.sort(negative)
    below = np.searchsorted(rising, positive, "left") + np.searchsorted(rising, positive, "right")
    return float(below.mean() / 2 / len(negative))


def _spread(background: Mixture, texts: Embedded) -> float:
    """Return the mean over content words of the standard deviation of their evidence over background images."""
    vectors, values = texts.vectors, []
    background = background.on(device_of(vectors.points))
    for start in range(0, min(len(texts.captions), 64 * _TEXTS), _TEXTS):
        rows = range(start, min(start + _TEXTS, len(texts.captions)))
        width = int(extents(vectors.mask[start : rows.stop]).max())
        points = vectors.points[start : rows.stop, :width]
        spreads = log_density_spread(background, astype(points, accumulation_dtype(points))).tolist()
        for row, by_token in zip(rows, spreads, strict=True):
            layout = vectors.layout[row]
            assert isinstance(layout, TokenLayout), "texts have tokens"
            words = segment(texts.captions[row], layout.spans, compounds=False)
            values += [by_token[token] for word in words if word.content for token in word.tokens]
    return round(float(np.mean(values)), 4) if values else 1.0


def _match_rows(pipeline: Pipeline, images: Embedded, rows: Sequence[LabelledText]) -> MatchRows:
    """Return the readable rows with their features."""
    features, chosen = [], list[int]()
    for readable, measured in _measured(pipeline, images, rows):
        features.append(match_features(pipeline.form.numbers(measured)["msd"], measured.terms.counts))
        chosen += readable
    true, owner = np.array([rows[row][2] for row in chosen]), np.array([rows[row][1] for row in chosen])
    return np.concatenate(features), true, owner


def _match_texts(captions: Sequence[Sequence[str]], similar: Sequence[Sequence[str]]) -> Iterator[LabelledText]:
    """Yield sentences, parts of them and paragraphs of true, similar and unrelated captions."""
    for image in range(0, len(captions), max(1, len(captions) // _MATCHED)):
        unrelated = captions[(image + len(captions) // 2) % len(captions)]
        counts = Counter(word for text in captions[image] for word in stems_of([text]))
        for texts, is_true in ((captions[image], True), (similar[image], False), (unrelated, False)):
            for text in texts[:2]:
                yield text, image, is_true
            for part, _ in short_texts(texts, (), seed=image):
                if is_sure(stems_of([part]), counts, is_true=is_true):
                    yield part, image, is_true
            for size in _PARAGRAPHS:
                if len(texts) >= size:
                    yield joined(texts[:size]), image, is_true


def build_familiarity(
    pipeline: Pipeline, images: Embedded, captions: Sequence[Sequence[str]], others: Sequence[str]
) -> Familiarity | None:
    """Return captions of many images, and the limit that a few in a hundred of these images are below.

    The captions are `others` if there are enough of them, else the first ones of these images, except its own for each
    image. None for an encoder whose pooled vectors of images and texts cannot be compared.
    """
    apart = len(others) >= _REFERENCES
    known = [texts[0] for texts in captions]
    pool = others if apart else known
    count = min(len(pool), _REFERENCES)
    chosen = [number * len(pool) // count for number in range(count)]  # no fixed step: texts may alternate
    texts = pipeline.embedder.texts([pool[item] for item in chosen])
    readable = [item for item in range(len(chosen)) if item not in texts.errors]
    rows = np.array([texts.row(item) for item in readable], dtype=np.int64)
    vectors = to_numpy(texts.vectors.pooled)[rows].astype(np.float16).astype(np.float32)
    pooled = to_numpy(images.vectors.pooled).astype(np.float32)
    if len(vectors) <= NEAREST or vectors.shape[1] != pooled.shape[1]:
        return None
    cosines = pooled[[images.row(item) for item in range(len(captions))]] @ vectors.T
    for column, item in enumerate(readable if not apart else ()):
        cosines[chosen[item], column] = -1.0
    nearest = np.sort(cosines, axis=1)[:, -NEAREST:].mean(axis=1)
    return Familiarity(vectors, round(float(np.quantile(nearest, _UNFAMILIAR)), 4))


def build_vocabulary(
    pipeline: Pipeline, images: Embedded, captions: Sequence[Sequence[str]], others: Sequence[str]
) -> Vocabulary | None:
    """Build the vocabulary of captioned images; None if too few words are frequent enough."""
    judged = [
        [
            word
            for text in texts
            for word in segment(text, compounds=False)
            if word.content and not word.negated and word.text.isalpha()
        ]
        for texts in captions
    ]
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for word in chain.from_iterable(judged):
        spellings[word.stem][word.text.lower()] += 1
    stems = [{word.stem for word in image_words} for image_words in judged]  # of an image's captions
    counts = Counter(stem for image_stems in stems for stem in sorted(image_stems))  # sorted: ties keep this order
    least = max(_LEAST_SHARE * len(captions), 3)
    frequent = [stem for stem, count in counts.most_common(_MOST_WORDS) if count >= least]
    words = {stem: spellings[stem].most_common(1)[0][0] for stem in frequent}
    points = _points(pipeline, list(words.values()))
    usable = [stem for stem in frequent if words[stem] in points]
    if len(usable) < 2:
        return None
    frequency = np.clip([counts[stem] / len(captions) for stem in usable], 1e-6, 1 - 1e-6)
    vectors = np.stack([points[words[stem]] for stem in usable]).astype(np.float32)
    present = np.array([[stem in image_stems for stem in usable] for image_stems in stems])
    evidence = image_evidence(pipeline, images, vectors, expected_densities(pipeline, vectors))
    logit = np.broadcast_to(np.log(frequency / (1 - frequency)), evidence.shape)
    features = np.stack([np.ones(evidence.size), evidence.ravel(), logit.ravel()], axis=1)
    fitted = fit_logistic(features, present.ravel(), balanced=False)
    rounded = vectors.astype(np.float16).astype(np.float32)
    alike = _alike(usable, [*(text for texts in captions for text in texts), *others])
    return Vocabulary(
        tuple(words[stem] for stem in usable), tuple(usable), frequency.astype(np.float32), rounded, alike,
        (fitted[0], fitted[1], fitted[2]),
    )  # fmt: skip


def _points(pipeline: Pipeline, words: Sequence[str]) -> dict[str, Vectors]:
    """Return the vectors of the words that are one token of the encoder."""
    texts = pipeline.embedder.texts(list(words))
    points = {}
    for item, word in enumerate(words):
        row = texts.rows[item]
        layout = None if row is None else texts.vectors.layout[row]
        if row is not None and isinstance(layout, TokenLayout) and len(layout.spans) == 1:
            points[word] = to_numpy(texts.vectors.points[row, 0])
    return points


def _alike(stems: Sequence[str], captions: Sequence[str]) -> Ints:
    """Return, for each word, the indices of words that occur in the same contexts, most similar first; -1: none.

    A context is the word before and the word after; words are alike by the cosine of their positive pointwise mutual
    information with contexts.
    """
    row_of = {word: row for row, word in enumerate(stems)}
    contexts: dict[tuple[int, str], int] = {}
    counts = Counter[tuple[int, int]]()
    for caption in captions:
        words = [word.stem for word in segment(caption, compounds=False) if word.stem]
        around = ["", *words, ""]
        for position, word in enumerate(words):
            if word in row_of:
                for side, other in ((0, around[position]), (1, around[position + 2])):
                    counts[row_of[word], contexts.setdefault((side, other), len(contexts))] += 1
    table = np.zeros((len(stems), len(contexts)), dtype=np.float32)
    for (row, column), count in counts.items():
        table[row, column] = count
    total = max(float(table.sum()), 1.0)
    rows, columns = table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.nan_to_num(np.maximum(np.log(table * total / (rows * columns)), 0.0), posinf=0.0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    cosines = table @ table.T
    np.fill_diagonal(cosines, -1.0)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :_NEIGHBOURS]
    alike = np.where(np.take_along_axis(cosines, nearest, axis=1) > 0, nearest, -1)
    return alike.astype(np.int64)


def log_density_spread(background: Mixture, points: Points) -> PerPoint:
    """Standard deviation of log P of each point over all background items, in the points' dtype."""
    blocks = (background.part(start, min(start + ITEMS, len(background))) for start in range(0, len(background), ITEMS))
    xp = namespace(points)
    return xp.std(xp.concat([log_densities(block, points) for block in blocks], axis=1), axis=1)
