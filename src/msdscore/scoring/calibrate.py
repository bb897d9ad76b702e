"""How an encoder's scores are to be read, measured on captioned pictures that it was not trained on.

Every word of a picture's own captions is present. Words of the captions of similar pictures that no caption of this
one has are hard absent words: likely, and not there. From the evidence of both follow the log-odds of a word, how well
each word can be judged, and when a caption belongs to a picture at all; from the scores of own and similar captions
follows the probability of a match.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image

from msdscore.core.calibration import log_density_spread
from msdscore.core.evidence import WordCalibration, evidence, strength
from msdscore.core.fusion import Match
from msdscore.core.mixture import Mixture
from msdscore.core.omission import KAPPA, every_token
from msdscore.core.schedule import PointSet
from msdscore.encoders.base import Encoder, TokenLayout
from msdscore.encoders.batches import encode_by_length
from msdscore.encoders.text.words import content_words, stem
from msdscore.errors import ConfigError
from msdscore.scoring.bank import NamedBank, build_bank, moved, named
from msdscore.scoring.comparison import settings_of
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.measurement import Measurement, numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.words import mentions, token_weights
from msdscore.stats.logistic import fit_logistic, fit_rising

Floats = npt.NDArray[np.float64]

SIMILAR = 8  # similar pictures that lend hard absent words, one caption each
CAPTIONS = 96  # background captions that coverage is held against: each costs as much per picture as a caption does
LEAST = 50  # captioned pictures; fewer tell nothing about words
_RARE = 40  # labelled mentions under which a word counts as rare
_SHRINK = 10.0  # mentions that the prior of a rare word is worth
_SPREAD = 5.0  # mentions that the prior of a spread is worth
_TEXTS = 64  # texts whose spreads are taken at once
_FLOOR = 0.02  # the least weight of a word


@dataclass(frozen=True, slots=True)
class Captioned:
    """A picture and the captions that people gave it."""

    picture: Image
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Mentions of words with their evidence; `present` says whether the word is true of the picture."""

    stems: npt.NDArray[np.str_]
    evidence: Floats
    present: npt.NDArray[np.bool_]


def calibrated_bank(
    encoder: Encoder,
    config: MSDConfig,
    pairs: Sequence[Captioned],
    *,
    pictures: int = 1000,
    others: Sequence[str] = (),
    batch_size: int = 32,
) -> NamedBank:
    """A bank for `calibration=evidence`: background pictures and captions, words, and the map to a match.

    The first `pictures` of the captioned pictures are the background. `others` are captions of further pictures: the
    more there are, the more similar are the captions that lend words which are likely and not there.
    """
    if len(pairs) < LEAST:
        raise ConfigError(f"calibration needs at least {LEAST} captioned pictures, got {len(pairs)}")
    plain = config.changed(calibration="background", information=0.0, tail=0.0, gate="support")
    background = build_bank(encoder, plain, [pair.picture for pair in pairs[:pictures]], batch_size=batch_size)
    captions = background_captions(encoder, pairs, batch_size=batch_size)
    bank = replace(background.bank, captions=captions)
    similar = similar_captions(pairs, others=others)
    pipeline = Pipeline(encoder, plain, bank=background, batch_size=batch_size)
    images, texts, places = _embed(pipeline, pairs, similar)
    bank = replace(bank, words=_words(pipeline, pairs, images, texts, places))
    judged = Pipeline(encoder, config, bank=named(bank, encoder), batch_size=batch_size)
    return named(replace(bank, match=_match(judged, images, texts, places)), encoder)


def background_captions(encoder: Encoder, pairs: Sequence[Captioned], *, batch_size: int) -> Mixture:
    """One caption of each of some pictures, spread over all of them, with one component per token."""
    step = max(1.0, len(pairs) / CAPTIONS)
    chosen = [pairs[int(number * step)].captions[0] for number in range(min(CAPTIONS, len(pairs)))]
    batch = encode_by_length(chosen, encoder.encode_texts, size=4 * batch_size)
    keys = torch.zeros(len(chosen), dtype=torch.int64, device=batch.points.device)
    tokens = every_token(PointSet(batch.points, batch.mask, keys), KAPPA)
    kept = batch.mask.any(dim=1)
    return Mixture(tokens.means[kept].cpu(), tokens.log_weights[kept].cpu(), KAPPA)


def similar_captions(
    pairs: Sequence[Captioned], *, others: Sequence[str] = (), count: int = SIMILAR
) -> list[tuple[str, ...]]:
    """For each picture one caption of each of the `count` pictures whose captions share most rare words with its own.

    `others` are captions of further pictures, one each.

    >>> from PIL import Image
    >>> pairs = [Captioned(Image.new("RGB", (1, 1)), (text,)) for text in ("a red dog", "a red cat", "two boats")]
    >>> similar_captions(pairs, count=1)[0]
    ('a red cat',)
    """
    whole = [*(pair.captions for pair in pairs), *((text,) for text in others)]
    return similar_texts(whole, first=len(pairs), count=count)


def similar_texts(
    captions: Sequence[Sequence[str]], *, first: int | None = None, count: int = SIMILAR
) -> list[tuple[str, ...]]:
    """The same from the captions alone, those of every picture in a list of their own; for the `first` so many."""
    own = [stems_of(texts) for texts in captions]
    known = {word: number for number, word in enumerate(sorted(frozenset().union(*own)))}
    table = np.zeros((len(captions), len(known)), dtype=np.float32)
    for row, words in enumerate(own):
        table[row, [known[word] for word in words]] = 1.0
    table *= np.log(len(captions) / np.maximum(table.sum(axis=0), 1.0)).clip(0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
    found = []
    for row in range(len(captions) if first is None else first):
        alike = table @ table[row]
        alike[row] = -1.0
        near = np.argsort(-alike, kind="stable")[: min(count, len(captions) - 1)]
        others = ([text for text in captions[place] if text not in captions[row]] for place in near.tolist())
        found.append(tuple(texts[row % len(texts)] for texts in others if texts))
    return found


def stems_of(captions: Sequence[str]) -> frozenset[str]:
    """Stems of the words of all captions of a picture that name something to see."""
    return frozenset(stem(word) for caption in captions for word in content_words(caption))


@dataclass(frozen=True, slots=True)
class _Places:
    """Pairs of picture and caption by number: own captions, and captions of similar pictures."""

    images: list[int]
    texts: list[int]
    own: npt.NDArray[np.bool_]
    captions: list[str]  # by number of the text


def _embed(
    pipeline: Pipeline, pairs: Sequence[Captioned], similar: Sequence[Sequence[str]]
) -> tuple[Embedded, Embedded, _Places]:
    images = pipeline.embed_images(pipeline.decode([pair.picture for pair in pairs])).require()
    captions, rows, own = [], [], []
    for number, (pair, near) in enumerate(zip(pairs, similar, strict=True)):
        for text, mine in [*((text, True) for text in pair.captions), *((text, False) for text in near)]:
            captions.append(text)
            rows.append(number)
            own.append(mine)
    texts = pipeline.embed_texts(captions)
    good = [place for place in range(len(captions)) if place not in texts.reasons]
    places = _Places([rows[place] for place in good], good, np.array([own[place] for place in good]), captions)
    return images, texts, places


def _words(
    pipeline: Pipeline, pairs: Sequence[Captioned], images: Embedded, texts: Embedded, places: _Places
) -> WordCalibration:
    measured = pipeline.measure(images, texts, places.images, places.texts)
    mask = texts.vectors.mask[measured.text_of]
    found = evidence(measured.divergence.support_terms, mask).double().cpu().numpy()
    labelled = label(
        pairs, places.images, places.own, [places.captions[text] for text in places.texts], measured.tokens, found
    )
    slope, zero = fit_logistic(labelled.evidence, labelled.present)
    weights, other = word_weights(labelled)
    spreads, other_spread = word_spreads(pipeline, texts)
    words = WordCalibration(weights, other, slope, zero, 0.0, 1.0, spreads, other_spread)
    return _gated(words, pipeline, images, texts, places)


def _gated(
    words: WordCalibration, pipeline: Pipeline, images: Embedded, texts: Embedded, places: _Places
) -> WordCalibration:
    """The same with the gate on doubts: own captions against the same ones held against a picture far away."""
    own = np.flatnonzero(places.own).tolist()
    chosen = [places.texts[place] for place in own]
    here = [places.images[place] for place in own]
    away = [(picture + len(images) // 2) % len(images) for picture in here]
    found = [_strength(words, pipeline.measure(images, texts, of, chosen), texts) for of in (here, away)]
    slope, center = fit_logistic(np.concatenate(found), np.arange(2 * len(own)) < len(own))
    return replace(words, center=center, width=1 / slope)


def _strength(words: WordCalibration, measured: Measurement, texts: Embedded) -> Floats:
    mask = texts.vectors.mask[measured.text_of]
    captions = [texts.captions[row] for row in measured.text_of.tolist()]
    weights = token_weights(captions, measured.tokens, words, width=mask.shape[1], device=mask.device)
    return strength(evidence(measured.divergence.support_terms, mask), weights, mask).double().cpu().numpy()


def word_spreads(pipeline: Pipeline, texts: Embedded) -> tuple[dict[str, float], float]:
    """How far the evidence of each word goes over the background pictures, and the same for words that are not known.

    A word's spread is the mean over its mentions, drawn towards that of rare words.
    """
    assert pipeline.bank is not None, "calibration has a bank"
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    vectors, rows = texts.vectors, range(len(texts.captions))
    background = moved(pipeline.bank.bank, vectors.points.device).images
    for start in range(0, len(rows), _TEXTS):
        some = list(rows[start : start + _TEXTS])
        width = int(vectors.mask[some].sum(dim=1).max())
        found = log_density_spread(background, vectors.points[some, :width].float()).tolist()
        for row, values in zip(some, found, strict=True):
            layout = vectors.layout[row]
            assert isinstance(layout, TokenLayout), "texts have tokens"
            for (_, word), value in zip(mentions(texts.captions[row], layout), values, strict=False):
                if word.content:
                    counts[word.stem] += 1
                    sums[word.stem] = sums.get(word.stem, 0.0) + value
    rare = [word for word, count in counts.items() if count < _RARE] or list(counts)
    prior = sum(sums[word] for word in rare) / max(sum(counts[word] for word in rare), 1)
    drawn = {word: (sums[word] + _SPREAD * prior) / (counts[word] + _SPREAD) for word in sorted(counts)}
    return {word: round(value, 4) for word, value in drawn.items()}, round(prior, 4)


def label(
    pairs: Sequence[Captioned],
    picture_of: Sequence[int],
    own: npt.NDArray[np.bool_],
    captions: Sequence[str],
    layouts: Sequence[TokenLayout],
    found: Floats,
) -> Labelled:
    """Mentions that are present or hard absent, with their evidence; a word that may be either is left out."""
    known = [stems_of(pair.captions) for pair in pairs]
    stems, values, present = [], [], []
    for row, (picture, caption, layout) in enumerate(zip(picture_of, captions, layouts, strict=True)):
        last = -1
        for token, (number, word) in enumerate(mentions(caption, layout)):
            first, last = number != last, number
            if not first or not word.content or word.denied:
                continue
            if own[row] or word.stem not in known[picture]:
                stems.append(word.stem)
                values.append(found[row, token])
                present.append(bool(own[row]))
    return Labelled(np.array(stems), np.array(values), np.array(present, dtype=bool))


def word_weights(labelled: Labelled) -> tuple[dict[str, float], float]:
    """How well each word can be judged, (2 AUC − 1)², and the same for words that are not known.

    The AUC is that of present against absent mentions of the word, drawn towards that of all rare words.
    """
    known, number, counts = np.unique(labelled.stems, return_inverse=True, return_counts=True)
    rare = counts[number] < _RARE
    prior = share_above(labelled.evidence[rare & labelled.present], labelled.evidence[rare & ~labelled.present])
    order = np.argsort(number, kind="stable")
    weights = {}
    for word, rows in zip(known.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True):
        here, values = labelled.present[rows], labelled.evidence[rows]
        size = 2.0 * min(here.sum(), (~here).sum())
        if size:
            drawn = (size * share_above(values[here], values[~here]) + _SHRINK * prior) / (size + _SHRINK)
            weights[word] = round(weight_of(drawn), 4)
    return weights, weight_of(prior)


def weight_of(area: float) -> float:
    """The weight of a word whose present and absent mentions are told apart with this AUC.

    >>> weight_of(1.0), weight_of(0.75), weight_of(0.4)
    (1.0, 0.25, 0.02)
    """
    return max(max(2 * area - 1, 0.0) ** 2, _FLOOR)


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


def _match(pipeline: Pipeline, images: Embedded, texts: Embedded, places: _Places) -> Match:
    """The map from scores of own captions against those of similar pictures and of any other picture."""
    own = np.flatnonzero(places.own).tolist()
    away = [(places.images[place] + len(images) // 2) % len(images) for place in own]
    pictures, captions = [*places.images, *away], [*places.texts, *(places.texts[place] for place in own)]
    measured = pipeline.measure(images, texts, pictures, captions)
    scores = np.array([row.msd for row in numbers(measured, pipeline.config)])
    points, odds = fit_rising(scores, np.concatenate([places.own, np.zeros(len(own), dtype=bool)]))
    return Match(points, odds, settings_of(pipeline.config))
