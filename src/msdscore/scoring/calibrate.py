"""How the evidence of words is read under an encoder, measured on captioned images that it was not trained on.

Every word of an image's own captions is present. Words of the captions of similar images that no caption of this one
has are hard absent words: likely, and not there. From the evidence of both follow how well each word can be judged,
and what true and absent words of each kind look like; from the scores of own and similar captions, when a caption
belongs to an image at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.evidence import JUDGED, Evidence, Match, WordCalibration, WordKind
from msdscore.core.mixture import log_density_spread
from msdscore.encoders.base import Encoder, TokenLayout
from msdscore.errors import ConfigError
from msdscore.scoring.bank import NamedBank, build_bank, moved, named
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.logistic import fit_logistic
from msdscore.scoring.measurement import columns, match_settings
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.vocabulary import build_vocabulary
from msdscore.text.words import content_words, segment, stem

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SIMILAR = 8  # similar images that lend hard absent words, one caption each
LEAST = 50  # captioned images; fewer tell nothing about words
STEPS = 200  # of probability at which quantiles of evidence are kept
KINDS = (JUDGED, 0.25, 0.45, 0.65)  # least reliability of each kind of words
_RARE = 40  # labelled mentions under which a word counts as rare
_SHRINK = 10.0  # mentions that the prior of a rare word is worth
_FEWEST = 100  # present and absent mentions that a kind is fitted on; with fewer it is joined with the next
_TEXTS = 64  # texts whose spreads are taken at once
_MATCHED = 1000  # images that `match` is fitted on, spread over all
_PARAGRAPHS = (2, 4)  # captions that are joined into one, so that `match` knows paragraphs too


@dataclass(frozen=True, slots=True)
class Captioned:
    """An image and the captions that people gave it."""

    image: Image
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Mentions of words with their evidence; `present` says whether the word is true of the image."""

    stems: npt.NDArray[np.str_]
    evidence: Floats
    present: Flags


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts shown with images: `own` belong to the image of their number, all others are of similar images."""

    texts: list[str]
    image: list[int]
    own: Flags


def calibrated_bank(
    encoder: Encoder,
    form: Evidence,
    pairs: Sequence[Captioned],
    *,
    background: int = 1000,
    others: Sequence[str] = (),
    batch_size: int = 32,
) -> NamedBank:
    """A bank for the evidence form: background images, words, vocabulary, and the map to a match.

    The first `background` of the captioned images are the background. `others` are captions of further images: the
    more there are, the more similar are the captions that lend words which are likely and not there.
    """
    if len(pairs) < LEAST:
        raise ConfigError(f"calibration needs at least {LEAST} captioned images, got {len(pairs)}")
    plain = build_bank(encoder, form, [pair.image for pair in pairs[:background]], batch_size=batch_size)
    everything = WordCalibration({}, 1.0, (WordKind(0.0, (0.0, 1.0), 1.0, 0.0),), 1.0)
    pipeline = Pipeline(
        encoder, form, bank=replace(plain, bank=replace(plain.bank, words=everything)), batch_size=batch_size
    )
    images = pipeline.embed_images(pipeline.decode([pair.image for pair in pairs])).require()
    similar = similar_texts([*(pair.captions for pair in pairs), *((text,) for text in others)], first=len(pairs))
    shown = _shown(pairs, similar)
    texts = pipeline.embed_texts(shown.texts)
    labelled = _labelled(pipeline, pairs, images, texts, shown)
    words = word_calibration(labelled, spread=_spread(pipeline, texts))
    vocabulary = build_vocabulary(pipeline, images, [pair.captions for pair in pairs], others)
    bank = replace(plain.bank, words=words, vocabulary=vocabulary)
    judged = Pipeline(encoder, form, bank=named(bank, encoder), batch_size=batch_size)
    return named(replace(bank, match=_match(judged, images, pairs, similar)), encoder)


def similar_texts(
    captions: Sequence[Sequence[str]], *, first: int | None = None, count: int = SIMILAR
) -> list[tuple[str, ...]]:
    """For each image one caption of each of the `count` images whose captions share most rare words with its own.

    `captions` are those of every image; for the `first` so many images (all).

    >>> similar_texts([["a red dog"], ["a red cat"], ["two boats"]], count=1)[0]
    ('a red cat',)
    """
    own = [stems_of(texts) for texts in captions]
    known = {word: number for number, word in enumerate(sorted(frozenset().union(*own)))}
    table = np.zeros((len(captions), len(known)), dtype=np.float32)
    for row, words in enumerate(own):
        table[row, [known[word] for word in words]] = 1.0
    table *= np.log(len(captions) / np.maximum(table.sum(axis=0), 1.0)).clip(0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
    similar = []
    for row in range(len(captions) if first is None else first):
        alike = table @ table[row]
        alike[row] = -1.0
        near = np.argsort(-alike, kind="stable")[: min(count, len(captions) - 1)]
        others = ([text for text in captions[number] if text not in captions[row]] for number in near.tolist())
        similar.append(tuple(texts[row % len(texts)] for texts in others if texts))
    return similar


def stems_of(captions: Sequence[str]) -> frozenset[str]:
    """Stems of the words of all captions of an image that name something to see."""
    return frozenset(stem(word) for caption in captions for word in content_words(caption))


def _shown(pairs: Sequence[Captioned], similar: Sequence[Sequence[str]]) -> _Texts:
    """Own captions of every image, and captions of similar ones."""
    rows = [
        (text, number, own)
        for number, (pair, near) in enumerate(zip(pairs, similar, strict=True))
        for text, own in [*((text, True) for text in pair.captions), *((text, False) for text in near)]
    ]
    texts, image, own = zip(*rows, strict=True)
    return _Texts(list(texts), list(image), np.array(own))


def _labelled(
    pipeline: Pipeline, pairs: Sequence[Captioned], images: Embedded, texts: Embedded, shown: _Texts
) -> Labelled:
    """Mentions that are present or hard absent, with their evidence; a word that may be either is left out."""
    good = [item for item in range(len(shown.texts)) if item not in texts.reasons]
    measured = pipeline.measure(images, texts, [shown.image[item] for item in good], good).words
    assert measured is not None, "the evidence form measures words"
    known = [stems_of(pair.captions) for pair in pairs]
    stems, values, present = [], [], []
    for item, spoken, judged, row in zip(
        good, measured.spoken, measured.judged, measured.evidence.tolist(), strict=True
    ):
        own = bool(shown.own[item])
        for number, value in zip(judged, row, strict=False):
            if own or spoken[number].stem not in known[shown.image[item]]:
                stems.append(spoken[number].stem)
                values.append(value)
                present.append(own)
    return Labelled(np.array(stems), np.array(values), np.array(present, dtype=bool))


def word_calibration(labelled: Labelled, *, spread: float) -> WordCalibration:
    """Reliability of every word, and what true and absent words of each kind look like."""
    if labelled.present.all() or not labelled.present.any():
        raise ConfigError("calibration needs captions that share words and differ in others; these tell nothing")
    reliability, other = reliabilities(labelled)
    values = np.array([reliability.get(word, other) for word in labelled.stems.tolist()])
    kinds: list[WordKind] = []
    upper = np.inf
    for least in reversed(KINDS):
        here = (values >= least) & (values < upper)
        if min((here & labelled.present).sum(), (here & ~labelled.present).sum()) < _FEWEST:
            if least > KINDS[0]:
                continue  # too few to tell: they are of the next kind
            here = np.ones(len(values), dtype=bool)  # the last kind: as all words together
        features = np.stack([np.ones(here.sum()), labelled.evidence[here]], axis=1)
        intercept, slope = fit_logistic(features, labelled.present[here])
        levels = np.quantile(labelled.evidence[here & labelled.present], np.linspace(0, 1, STEPS + 1))
        kinds.append(WordKind(least, tuple(np.round(levels, 4).tolist()), max(slope, 0.0), intercept))
        upper = least
    return WordCalibration(reliability, other, tuple(reversed(kinds)), spread)


def reliabilities(labelled: Labelled) -> tuple[dict[str, float], float]:
    """How well each word can be judged, (2 AUC − 1)², and the same for words that are not known.

    The AUC is that of present against absent mentions of the word, drawn towards that of all rare words.
    """
    known, number, counts = np.unique(labelled.stems, return_inverse=True, return_counts=True)
    rare = counts[number] < _RARE
    prior = share_above(labelled.evidence[rare & labelled.present], labelled.evidence[rare & ~labelled.present])
    order = np.argsort(number, kind="stable")
    values = {}
    for word, rows in zip(known.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True):
        here, evidence = labelled.present[rows], labelled.evidence[rows]
        size = 2.0 * min(here.sum(), (~here).sum())
        if size:
            area = (size * share_above(evidence[here], evidence[~here]) + _SHRINK * prior) / (size + _SHRINK)
            values[word] = round(reliability_of(area), 4)
    return values, reliability_of(prior)


def reliability_of(area: float) -> float:
    """The reliability of a word whose present and absent mentions are told apart with this AUC.

    >>> reliability_of(1.0), reliability_of(0.75), reliability_of(0.4)
    (1.0, 0.25, 0.0)
    """
    return max(2 * area - 1, 0.0) ** 2


def share_above(positive: Floats, negative: Floats) -> float:
    """The share of pairs in which the positive one is larger, ties half; 0.5 where one side is empty.

    >>> share_above(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return 0.5
    rising = np.sort(negative)
    below = np.searchsorted(rising, positive, "left") + np.searchsorted(rising, positive, "right")
    return float(below.mean() / 2 / len(negative))


def _spread(pipeline: Pipeline, texts: Embedded) -> float:
    """The mean over content words of the standard deviation of their evidence over background images."""
    assert pipeline.bank is not None, "calibration has a bank"
    vectors, values = texts.vectors, []
    background = moved(pipeline.bank.bank, vectors.points.device).images
    for start in range(0, min(len(texts.captions), 64 * _TEXTS), _TEXTS):
        rows = range(start, min(start + _TEXTS, len(texts.captions)))
        width = int(vectors.mask[start : rows.stop].sum(dim=1).max())
        spreads = log_density_spread(background, vectors.points[start : rows.stop, :width].float()).tolist()
        for row, by_token in zip(rows, spreads, strict=True):
            layout = vectors.layout[row]
            assert isinstance(layout, TokenLayout), "texts have tokens"
            words = segment(texts.captions[row], layout.spans, compounds=False)
            values += [by_token[token] for word in words if word.content for token in word.tokens]
    return round(float(np.mean(values)), 4) if values else 1.0


def _match(pipeline: Pipeline, images: Embedded, pairs: Sequence[Captioned], similar: Sequence[Sequence[str]]) -> Match:
    """The map from score and length to the probability that a caption, or a paragraph of captions, belongs."""
    rows = list(_matching(pairs, similar))
    texts = pipeline.embed_texts([text for text, _, _ in rows])
    good = [item for item in range(len(rows)) if item not in texts.reasons]
    measured = pipeline.measure(images, texts, [rows[item][1] for item in good], good)
    assert measured.words is not None, "the evidence form measures words"
    scores = columns(measured, pipeline.config)["msd"].numpy()
    length = np.log([max(len(judged), 1) for judged in measured.words.judged])
    own = np.array([rows[item][2] for item in good])
    features = np.stack([np.ones(len(scores)), scores, length, scores * length], axis=1)
    first, slope, offset, steeper = fit_logistic(features, own)
    return Match((first, slope, offset, steeper), match_settings(pipeline.config))


def _matching(pairs: Sequence[Captioned], similar: Sequence[Sequence[str]]) -> Iterator[tuple[str, int, bool]]:
    """Text, image and whether they belong together: sentences and paragraphs of own, similar and other captions."""
    for number in range(0, len(pairs), max(1, len(pairs) // _MATCHED)):
        pair, near = pairs[number], similar[number]
        away = pairs[(number + len(pairs) // 2) % len(pairs)].captions
        for texts, own in ((pair.captions, True), (near, False), (away, False)):
            for text in texts[:2]:
                yield text, number, own
            for size in _PARAGRAPHS:
                if len(texts) >= size:
                    yield joined(texts[:size]), number, own


def joined(captions: Sequence[str]) -> str:
    """Captions as sentences of one text.

    >>> joined(["A dog runs", "the sea ."])
    'A dog runs. The sea.'
    """
    tidy = [text.strip().rstrip(".").rstrip() for text in captions]
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in tidy if text)
