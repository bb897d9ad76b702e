"""What is measured of pairs of images and captions, and the numbers that follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import evidence, paper
from msdscore.core.device import fetching, sent
from msdscore.core.evidence import Bank, JudgedWords, WordCalibration
from msdscore.core.mixture import Mixture
from msdscore.core.paper import Divergence, total
from msdscore.core.schedule import diverge, fit_all, token_evidence
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.scoring.config import Form, Paper
from msdscore.text.words import Word, segment

Column = Float[Tensor, " pairs"]
DENIAL = "denied words are not judged"  # warning of captions with "no", "without", "isn't"


@dataclass(frozen=True, slots=True)
class WordMeasurement:
    """The evidence of the distinct judged words of every pair, padded; `judged` are their numbers in `spoken`."""

    evidence: Float[Tensor, "pairs words"]
    index: JudgedWords  # one row per pair
    spoken: tuple[tuple[Word, ...], ...]  # words and marks of every pair's caption
    judged: tuple[tuple[int, ...], ...]
    calibration: WordCalibration

    @property
    def margin(self) -> Float[Tensor, "pairs words"]:
        """Evidence less the zero of each word's kind."""
        return self.evidence.double() - self.index.zeros

    @property
    def precision_terms(self) -> Float[Tensor, "pairs words"]:
        """Terms that add up to precision."""
        return evidence.precision_terms(self.margin, self.index.weights)

    @property
    def information_terms(self) -> Float[Tensor, "pairs words"]:
        """Terms that add up to information."""
        return evidence.information_terms(self.margin, self.index.weights, spread=self.calibration.spread)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Similarity and local terms of pairs of an image and a caption.

    `image_of` and `text_of` are the rows of each pair's image and caption in the batches that were compared; `patches`
    holds one layout per image, `tokens` and `lengths` one entry per pair. The paper's form fills `divergence`, the
    evidence form `words`.
    """

    similarity: Column
    lengths: Int[Tensor, " pairs"]
    image_of: Int[Tensor, " pairs"]
    text_of: Int[Tensor, " pairs"]
    patches: tuple[PatchLayout, ...]
    tokens: tuple[TokenLayout, ...]
    image_mixtures: Mixture
    divergence: Divergence | None = None
    words: WordMeasurement | None = None
    match: evidence.Match | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def fetching(self) -> "Callable[[], Measurement]":
        """Begin to bring all but the mixtures to the CPU; what is returned waits once, and gives the same there."""
        sides = (self.similarity, self.lengths, self.image_of, self.text_of)
        divergence, words = self.divergence, self.words
        terms = () if divergence is None else (divergence.coverage_terms, divergence.support_terms)
        fetch = fetching(*sides, *terms, *(() if words is None else (words.evidence,)))

        def arrived() -> Measurement:
            similarity, lengths, image_of, text_of, *local = fetch.wait()
            here = replace(self, similarity=similarity, lengths=lengths, image_of=image_of, text_of=text_of)
            if divergence is not None:
                fetched = replace(divergence, coverage_terms=local[0], support_terms=local[1])
                return replace(here, divergence=fetched)
            assert words is not None, "a measurement is of one of the forms"
            return replace(here, words=replace(words, evidence=local[0]))

        return arrived


def measure_pairs(
    images: Embeddings,
    texts: Embeddings,
    pairs: tuple[Sequence[int], Sequence[int]],
    *,
    keys: tuple[Sequence[int], Sequence[int]],
    form: Form,
    bank: Bank | None = None,
    captions: Sequence[str] = (),
) -> Measurement:
    """Measure pairs: pair p is row `pairs[0][p]` of the images with row `pairs[1][p]` of the texts.

    `keys` are those of the images and of the texts; `captions` are the texts as given, whose words the evidence form
    judges.
    """
    device = images.points.device
    image_of, text_of, image_keys, text_keys = (
        sent(torch.tensor(values, dtype=torch.int64), device) for values in (*pairs, *keys)
    )
    sides = (replace(images, keys=image_keys), replace(texts, keys=text_keys))
    layouts = [layout for layout in texts.layout if isinstance(layout, TokenLayout)]
    divergence, words = None, None
    if isinstance(form, Paper):
        divergence = diverge(*sides, image_of, text_of, image_fit=form.image_fit, text_fit=form.text_fit, bank=bank)
        mixtures = divergence.image_mixtures
    else:
        assert bank is not None, "the evidence form has a bank"
        assert bank.words is not None, "the pipeline has checked its bank"
        mixtures = fit_all(sides[0], form.image_fit)
        tokens = token_evidence(sides[1], mixtures, bank.images, image_of=image_of, text_of=text_of)
        words = _words(tokens, pairs[1], captions, layouts, bank.words)
    match = None if bank is None else bank.match
    return Measurement(
        total(images.pooled[image_of] * texts.pooled[text_of]),
        texts.mask.sum(dim=1)[text_of],
        image_of,
        text_of,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(layouts[row] for row in pairs[1]),
        mixtures,
        divergence,
        words,
        match if match is not None and match.settings == match_settings(form) else None,
    )


def match_settings(form: Form) -> str:
    """The settings that decide the size of a score, in one line: a `Match` is fitted under them."""
    return "|".join(f"{name}:{value}" for name, value in form.facts().items() if name != "xi")


def _words(
    tokens: Float[Tensor, "pairs tokens"],
    text_of: Sequence[int],
    captions: Sequence[str],
    layouts: Sequence[TokenLayout],
    calibration: WordCalibration,
) -> WordMeasurement:
    """The evidence of every caption's words from that of its tokens.

    Judged are content words with tokens, the first of each stem, none that is denied.
    """
    spoken = [segment(text, layout.spans, compounds=False) for text, layout in zip(captions, layouts, strict=True)]
    judged = [
        tuple(
            number
            for number, word in enumerate(words)
            if word.content and word.new and not word.denied and word.tokens and calibration.weight_of(word.stem) > 0
        )
        for words in spoken
    ]
    own = [[words[number] for number in numbers] for words, numbers in zip(spoken, judged, strict=True)]
    most = max(map(len, own), default=0) or 1
    pieces = max((len(word.tokens) for words in own for word in words), default=1)
    numbers = torch.full((len(own), most, pieces), -1, dtype=torch.int64)
    weights, zeros = (torch.zeros(len(own), most, dtype=torch.float64) for _ in range(2))
    for text, words in enumerate(own):
        for column, word in enumerate(words):
            kind = calibration.kind_of(word.stem)
            assert kind is not None, "judged words have a kind"
            numbers[text, column, : len(word.tokens)] = torch.tensor(word.tokens)
            weights[text, column] = calibration.weight_of(word.stem)
            zeros[text, column] = calibration.kinds[kind].zero
    index = JudgedWords(numbers, weights, zeros).take(torch.tensor(text_of, dtype=torch.int64))
    return WordMeasurement(
        evidence.word_evidence(tokens, replace(index, tokens=sent(index.tokens, tokens.device))),
        index,
        tuple(spoken[row] for row in text_of),
        tuple(judged[row] for row in text_of),
        calibration,
    )


class Numbers(NamedTuple):
    """The numbers of one scored caption that depend on its own image alone.

    Those of the other form are None, and `match` where the bank cannot tell it. `warnings` say what a reader of the
    score should know of the caption and the image, `worst` are its least supported words where they were asked for.
    """

    similarity: float
    msd: float
    length: int
    windows: int
    coverage: float | None = None
    support: float | None = None
    beta: float | None = None
    divergence: float | None = None
    precision: float | None = None
    information: float | None = None
    match: float | None = None
    warnings: tuple[str, ...] = ()
    worst: tuple[str, ...] = ()


# The names of the numbers, in order.
NUMBERS = tuple(name for name in Numbers._fields if name not in ("warnings", "worst"))


def gate(lengths: Int[Tensor, " captions"], config: Paper) -> Column:
    """The weight of coverage for every caption, as the settings choose it."""
    wide = lengths.double()
    if config.gate == "length":
        return paper.length_gate(wide, center=config.gate_center, width=config.gate_width)
    beta = {"coverage": 1.0, "support": 0.0, "fixed": config.beta}[config.gate]
    return paper.constant_gate(wide, beta=beta)


def columns(measured: Measurement, form: Form) -> dict[str, Column]:
    """Similarity, the numbers of the form, MSD and match of every pair, in float64 on the CPU."""
    similarity = measured.similarity.double().cpu()
    if isinstance(form, Paper):
        assert measured.divergence is not None, "measured by the paper's form"
        sides = (measured.divergence.coverage, measured.divergence.support)
        coverage, support = (side.double().cpu() for side in sides)
        beta = gate(measured.lengths.cpu(), form)
        divergence = paper.local_divergence(coverage, support, beta)
        local = {"coverage": coverage, "support": support, "beta": beta, "divergence": divergence}
        return {"similarity": similarity} | local | {"msd": similarity - form.alpha * divergence}
    assert measured.words is not None, "measured by the evidence form"
    words = replace(measured.words, evidence=measured.words.evidence.cpu())
    # The vector of "no dog" is near that of a dog: similarity counts by the share of distinct content words that are
    # not denied.
    content = [[not word.denied for word in own if word.content and word.new] for own in words.spoken]
    affirmed = torch.tensor([sum(own) / len(own) if own else 1.0 for own in content], dtype=torch.float64)
    similarity = torch.where(similarity > 0, similarity * affirmed, similarity)
    precision, information = total(words.precision_terms), total(words.information_terms)
    first, second = form.weights
    msd = similarity + first * precision + second * information
    values = {"similarity": similarity, "precision": precision, "information": information, "msd": msd}
    if measured.match is not None:
        count = torch.tensor([float(len(own)) for own in words.judged], dtype=torch.float64)
        values["match"] = measured.match(msd, count)
    return values


def numbers(measured: Measurement, form: Form, *, captions: Sequence[str] = (), worst: int = 0) -> tuple[Numbers, ...]:
    """The numbers of every pair, with up to `worst` least supported words of its caption (in `captions`)."""
    known = {name: values.tolist() for name, values in columns(measured, form).items()}
    known["length"] = measured.lengths.tolist()
    known["windows"] = [layout.windows for layout in measured.tokens]
    known["warnings"] = []
    # What encoders say of each pair's caption and image, whether the caption was cut, and whether it denies words.
    for pair, (image, tokens) in enumerate(zip(measured.image_of.tolist(), measured.tokens, strict=True)):
        cut = (f"cut: {tokens.cut} tokens at the end were not read",) if tokens.cut else ()
        spoken = () if measured.words is None else measured.words.spoken[pair]
        denies = (DENIAL,) if any(word.denied and word.content for word in spoken) else ()
        known["warnings"].append((*tokens.warnings, *cut, *denies, *measured.patches[image].warnings))
    if worst:
        known["worst"] = worst_words(measured, captions, count=worst)
    missing = {name: [value] * len(measured) for name, value in Numbers._field_defaults.items()}
    known = missing | known
    return tuple(map(Numbers._make, zip(*(known[name] for name in Numbers._fields), strict=True)))


def p_values(words: WordMeasurement) -> list[list[float]]:
    """The p-values of the judged words of every pair."""
    kinds = [
        [words.calibration.kind_of(spoken[number].stem) or 0 for number in judged]
        for spoken, judged in zip(words.spoken, words.judged, strict=True)
    ]
    sizes = [len(own) for own in kinds]
    flat = torch.cat([row[:size] for row, size in zip(words.evidence.cpu(), sizes, strict=True)] or [torch.zeros(0)])
    numbers = torch.tensor([kind for own in kinds for kind in own], dtype=torch.int64)
    return [part.tolist() for part in words.calibration.p_values(flat, numbers).split(sizes)]


def worst_words(measured: Measurement, captions: Sequence[str], *, count: int) -> list[tuple[str, ...]]:
    """For every pair at most `count` content words, the least supported first: those that an explanation ranks first.

    `captions` are those of the pairs.
    """
    ranked: list[tuple[tuple[Word, ...], list[tuple[float, int]]]] = []
    if measured.words is not None:
        ranks = zip(measured.words.spoken, measured.words.judged, p_values(measured.words), strict=True)
        ranked += [(words, sorted(zip(values, judged, strict=True))) for words, judged, values in ranks]
    else:
        # By the mean of their support terms, the largest first.
        assert measured.divergence is not None, "measured by the paper's form"
        for pair, caption in enumerate(captions):
            terms = measured.divergence.support_terms[pair].tolist()
            words = segment(caption, measured.tokens[pair].spans)
            own = [(number, word.tokens) for number, word in enumerate(words) if word.content and word.tokens]
            means = [(-sum(terms[token] for token in tokens) / len(tokens), number) for number, tokens in own]
            ranked.append((words, sorted(means)))
    return [tuple(words[number].text for _, number in order[:count]) for words, order in ranked]


def soften(
    similarity: Sequence[float], msd: Sequence[float], group: Sequence[int], form: Form
) -> tuple[list[float], list[float]]:
    """Uncertainty and Soft-MSD of every caption; equal group numbers are one candidate set."""
    if not len(similarity):
        return [], []
    g, score = (torch.tensor(values, dtype=torch.float64) for values in (similarity, msd))
    sets = torch.tensor(group, dtype=torch.int64)
    uncertainty, soft = paper.soften(g, score, sets, temperature=form.temperature)
    return uncertainty.tolist(), soft.tolist()
