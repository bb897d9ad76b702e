r"""References: captions of the same image by people, as further evidence for a caption.

The tokens of all references are one mixture of the kind that images have, with one component per token and every
reference of the same weight. With :math:`y_j` the tokens of the caption, :math:`t_i` those of a reference and
:math:`P_b` the mixture of as many background captions,

.. math::
    \text{support} &= \tfrac1M \textstyle\sum_j \bigl(\log P_{ref}(y_j) - \tfrac1B \sum_b \log P_b(y_j)\bigr) \\
    \text{coverage} &= \tfrac1R \textstyle\sum_r \tfrac1{N_r} \sum_i
        \bigl(\log P_{cap}(t_i) - \tfrac1B \sum_b \log P_b(t_i)\bigr) \\
    \text{similarity} &= \tfrac1R \textstyle\sum_r \cos(s_{cap}, s_r)

Support measures whether people say the same, coverage whether the caption says what people say; :math:`s` are sentence
vectors, or pooled vectors for an encoder without them. The reference score is a weighted sum of the three, and
`ref_msd` is MSD plus the reference score. Long captions and many references have no advantage: densities
are means over tokens, and the background has as many captions as there are references.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from msdscore.core.arrays import (
    Array,
    Bool,
    Float,
    Int,
    astype,
    float64,
    gather,
    integers,
    logsumexp,
    masked,
    namespace,
    segment_means,
    sigmoid,
    take_rows,
    to_numpy,
)
from msdscore.core.embeddings import Embeddings, Rows, extents, in_order, real_points, to_width
from msdscore.encoders.base import TokenLayout
from msdscore.errors import RowError
from msdscore.forms.base import Numbers
from msdscore.forms.registry import REFERENCE_COLUMNS
from msdscore.scoring.embedder import Embedded, Embedder, Recent
from msdscore.text.normal import clean
from msdscore.text.words import Word, segment

NAMES = tuple(column.name for column in REFERENCE_COLUMNS)
TEXT_ONLY = "no image: compared with the references only"
NO_REFERENCES = "no references: ref_msd is missing"
KAPPA = 20.0  # concentration of the mixtures, that of the paper
# Weights of the parts of the reference score, chosen jointly on all development sets (docs/lab/decisions.md).
SIMILARITY, SUPPORT, COVERAGE = 3.0, 0.05, 0.05
WEIGHTS = f"{SIMILARITY:g},{SUPPORT:g},{COVERAGE:g},kappa{KAPPA:g}"  # in signatures
MEANT = 0.98  # share of background captions under which a word is less likely than under a reference that means it
_TOGETHER = 512  # texts, or pairs of a caption and a reference, per batch
_ROOM = 1 << 22  # largest number of values of background sets in memory
_TEXTS = 64  # sentences per batch


def signed(signature: str, counts: Iterable[float]) -> str:
    """Return a signature with the weights of the reference score and the number of references.

    >>> signed("msd|enc:toy@1|v:1.0", [5, 5]), signed("msd|enc:toy@1|v:1.0", [2, 5])
    ('msd|enc:toy@1|ref:3,0.05,0.05,kappa20|nrefs:5|v:1.0', 'msd|enc:toy@1|ref:3,0.05,0.05,kappa20|nrefs:2-5|v:1.0')
    """
    head, _, version = unsigned(signature).rpartition("|v:")
    return f"{head}|ref:{WEIGHTS}|{count_fact(counts)}|v:{version}"


def unsigned(signature: str) -> str:
    """Return a signature without what `signed` adds."""
    return "|".join(fact for fact in signature.split("|") if not fact.startswith(("ref:", "nrefs:")))


def count_fact(counts: Iterable[float]) -> str:
    """Return the smallest and the largest number of references, for a signature."""
    known = sorted({int(count) for count in counts if count > 0})
    return f"nrefs:{known[0]}" if len(known) == 1 else f"nrefs:{known[0]}-{known[-1]}" if known else "nrefs:0"


@cache
def background_captions() -> tuple[str, ...]:
    """Return the captions that references are calibrated with, written for this purpose.

    >>> len(background_captions())
    128
    """
    return tuple((files("msdscore.scoring") / "background.txt").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True, slots=True)
class Background:
    """The tokens of the background captions in one row, with the index of the caption of each token."""

    points: Float[Array, "points dim"]
    owner: Int[np.ndarray, " points"]

    @classmethod
    def of(cls, texts: Embeddings) -> "Background":
        """Build the background from embedded captions."""
        # A caption that the encoder cannot read has no tokens, and is not part of the background.
        text, token = np.nonzero(to_numpy(texts.mask))
        xp, width = namespace(texts.points), texts.points.shape[1]
        points = xp.reshape(texts.points, (len(texts) * width, -1))
        chosen = take_rows(points, integers(text * width + token, like=points))
        return cls(astype(chosen, xp.float32), np.unique(text, return_inverse=True)[1])

    def log_densities(self, points: Float[Array, "texts points dim"]) -> Float[Array, "texts points b"]:
        """Return the log density of every point under each background caption."""
        xp = namespace(points)
        cosines = astype(astype(points, xp.float32) @ self.points.T, xp.float64)
        # Cosines are at most 1, so that exponentials are at most 1.
        return KAPPA + xp.log(segment_means(xp.exp(KAPPA * (cosines - 1)), self.owner))


def split_references(caption: str, references: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the references that a caption is compared with, and warnings about the others.

    Empty references are ignored, and so is the caption itself.

    >>> split_references("A dog.", ["a dog", "a cat", ""])[0]
    ('a cat',)
    """
    texts = [text for text in references if isinstance(text, str) and text.strip()]
    others = tuple(text for text in texts if _plain(text) != _plain(caption))
    warnings = []
    if empty := len(references) - len(texts):
        warnings.append(f"{empty} of {len(references)} references ignored: empty or not text")
    if same := len(texts) - len(others):
        warnings.append(f"{same} of {len(references)} references ignored: the caption itself")
    if not others:
        warnings.append(NO_REFERENCES)
    return others, tuple(warnings)


def _plain(text: str) -> str:
    cleaned = clean(text)
    words = segment(text if cleaned is None else cleaned.text)
    return " ".join(word.text.casefold() for word in words if word.stem)


def measure_references(
    texts: Embeddings,
    sentences: Float[Array, "texts dim"],
    pairs: Sequence[tuple[int, Sequence[int]]],
    background: Background,
) -> tuple[dict[str, list[float]], list[Bool[np.ndarray, "references tokens"]]]:
    """Compare captions with references; a pair is the row of a caption and the rows of its references.

    Return the numbers of every pair by column, and whether each reference means each token of the caption.
    """
    texts = replace(texts, points=real_points(texts.points, texts.mask))
    captions, sizes = ([caption for caption, _ in pairs], [len(rows) for _, rows in pairs])
    # One entry per reference: its pair, the row of the caption and its row.
    index = np.repeat(np.arange(len(pairs)), sizes)
    first, second = np.array(captions)[index], np.array([row for _, rows in pairs for row in rows])
    density, covered, nearest = map(to_numpy, _densities(texts, first, second))
    dense, expected = _background_densities(texts, np.unique(np.concatenate([first, second])), background)
    vectors, all_masks = float64(sentences), to_numpy(texts.mask)
    similarity = np.bincount(index, (vectors[first] * vectors[second]).sum(axis=1)) / sizes
    mask = all_masks[second]
    gains = ((covered - expected[second]) * mask).sum(axis=1) / mask.sum(axis=1)
    coverage = np.bincount(index, gains) / sizes
    support, meant = np.zeros(len(pairs)), []
    ends = np.cumsum(sizes).tolist()
    for pair, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        under_background = dense[captions[pair]]  # tokens by background captions
        width = len(under_background)
        under_references, mutual = density[end - size : end, :width], nearest[end - size : end, :width]
        real = all_masks[captions[pair], :width]
        joint = logsumexp(under_references, axis=0) - math.log(size)
        support[pair] = ((joint - _expected_of_sets(under_background, size)) * real).sum() / real.sum()
        meant.append((under_references > np.quantile(under_background, MEANT, axis=1)) & mutual & real)
    score = SIMILARITY * similarity + SUPPORT * support + COVERAGE * coverage
    values = [sizes, *(column.tolist() for column in (similarity, support, coverage, score))]
    return dict(zip(NAMES[:5], values, strict=True)), meant


def _densities(
    texts: Embeddings, first: Int[np.ndarray, " pairs"], second: Int[np.ndarray, " pairs"]
) -> tuple[Float[Array, "pairs points"], Float[Array, "pairs points"], Bool[Array, "pairs points"]]:
    """Return log densities of the tokens of the first texts under the second ones, and vice versa.

    The last is True for tokens of the first texts that are the nearest token of their nearest token: vectors of
    neighbours are alike, so that "brown" of a brown dog is near "dog", but "dog" is nearer to "dog".
    """
    xp, widths, width = namespace(texts.points), to_numpy(extents(texts.mask)), texts.mask.shape[1]
    results: list[Rows] = []
    # Pairs of about one size together: a single long caption must not pad all others.
    order = np.argsort(widths[first] * widths[second], kind="stable")
    for batch in np.split(order, range(_TOGETHER, len(order), _TOGETHER)):
        (left, rows), (right, columns) = (_cut(texts, side[batch], widths) for side in (first, second))
        logits = KAPPA * astype(left @ right.mT, xp.float64)
        within = masked(logits, columns[:, None, :], -math.inf)
        across = masked(logits, rows[:, :, None], -math.inf)
        under, over = (
            logsumexp(values, axis=axis) - xp.log(xp.sum(astype(real, xp.float64), axis=1, keepdims=True))
            for values, axis, real in ((within, 2, columns), (across, 1, rows))
        )
        back = gather(xp.argmax(across, axis=1), xp.argmax(within, axis=2))
        mutual = back == integers(range(left.shape[1]), like=back)
        results.append((batch, tuple(to_width(values, width) for values in (under, over, mutual))))
    under, over, mutual = in_order(results)
    return under, over, mutual


def _cut(
    texts: Embeddings, rows: Int[np.ndarray, " rows"], widths: Int[np.ndarray, " texts"]
) -> tuple[Float[Array, "rows points dim"], Bool[Array, "rows points"]]:
    """Return points in float32 and mask of some texts, as wide as the longest of them."""
    index, width = integers(rows, like=texts.mask), int(widths[rows].max())
    points = to_width(take_rows(texts.points, index), width)
    return astype(points, namespace(points).float32), to_width(take_rows(texts.mask, index), width)


def _background_densities(
    texts: Embeddings, rows: Int[np.ndarray, " rows"], background: Background
) -> tuple[dict[int, Float[np.ndarray, "points b"]], Float[np.ndarray, "texts points"]]:
    """Return log densities of the tokens of some texts under every background caption, and their means."""
    expected = np.zeros(texts.mask.shape)
    widths, dense = to_numpy(extents(texts.mask)), dict[int, Float[np.ndarray, "points b"]]()
    ordered = rows[np.argsort(widths[rows], kind="stable")]
    for batch in np.split(ordered, range(_TOGETHER // 4, len(ordered), _TOGETHER // 4)):
        values = to_numpy(background.log_densities(_cut(texts, batch, widths)[0]))
        expected[batch, : values.shape[1]] = values.mean(axis=2)
        dense |= dict(zip(batch.tolist(), values, strict=True))
    return dense, expected


def _expected_of_sets(densities: Float[np.ndarray, "points b"], size: int) -> Float[np.ndarray, " points"]:
    """Return the mean log density of points under sets of `size` consecutive background captions, cyclically."""
    count = densities.shape[1]
    size = min(size, count)
    if size == 1:
        return densities.mean(axis=1)
    step = max(1, densities.shape[0] * count * size // _ROOM)
    ring = np.concatenate([densities, densities[:, : size - 1]], axis=1)
    sets = np.lib.stride_tricks.sliding_window_view(ring, size, axis=1)[:, ::step]
    return logsumexp(sets, axis=2).mean(axis=1) - math.log(size)


def said_in(references: Sequence[str]) -> list[set[str]]:
    """Return the stems of the content words that each reference says and does not deny."""
    return [
        {word.stem for word in segment(text, compounds=False) if word.content and not word.negated}
        for text in references
    ]


# Shapes of the Beta distributions of the share of references that have a word, for true words and for words that are
# likely and not there; docs/lab/references.md has their calibration, docs/lab/decisions.md why these.
TRUE_WORDS, ABSENT_WORDS = (0.45, 0.85), (0.1, 2.0)
_LEAST_P = 1e-4  # of a p-value: the bank has no finer ones


def p_value_with_references(p_value: float, having: int, count: int) -> float:
    r"""Return the p-value of a word based on the image and on the references.

    The number of `count` references that have a word is Beta-binomial, with probabilities :math:`\pi_k` for true
    words and :math:`\bar\pi_k` for absent ones. The evidence of the references, :math:`w_k = \log \pi_k/\bar\pi_k`,
    is added to the log-odds of the image's p-value, and the sum becomes the share of true words that have less:

    .. math:: p' = \sum_j \pi_j\, \sigma(\operatorname{logit} p + w_k - w_j)

    P-values of true words are uniform if image and references are independent given the word.

    >>> [round(p_value_with_references(0.1, having, 5), 2) for having in (0, 5)]
    [0.04, 0.56]
    """
    shares, weights = _word_evidence(count)
    p = min(max(p_value, _LEAST_P), 1 - _LEAST_P)
    odds = math.log(p / (1 - p))
    return float((shares * sigmoid(odds + weights[having] - weights)).sum())


@cache
def _word_evidence(count: int) -> tuple[Float[np.ndarray, " numbers"], Float[np.ndarray, " numbers"]]:
    """Return, for each number of references, the share of true words, and the log ratio to that of absent words."""
    having = np.arange(count + 1)
    true, absent = (log_shares(having, np.array(count), shape) for shape in (TRUE_WORDS, ABSENT_WORDS))
    return np.exp(true), true - absent


def log_shares(
    having: Int[np.ndarray, "*words"], count: Int[np.ndarray, "*words"], shape: tuple[float, float]
) -> Float[np.ndarray, "*words"]:
    """Return log probabilities that `having` of `count` references have a word, if their share is Beta-distributed."""
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])

    def log_beta(first: Any, second: Any) -> Any:
        return log_gamma(first) + log_gamma(second) - log_gamma(first + second)

    k, n, (a, b) = having.astype(np.float64), count.astype(np.float64), shape
    return log_beta(k + a, n - k + b) - log_beta(a, b) - log_beta(k + 1, n - k + 1) - np.log(n + 1)


def agreed_words(references: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return words that several references (or the only one) say: stem, first spelling, and number of references.

    >>> agreed_words(["a dog runs", "two dogs", "a lawn"])
    [('dog', 'dog', 2)]
    """
    spelling: dict[str, str] = {}
    for text in references:
        for word in segment(text, compounds=False):
            if word.content and not word.negated:
                spelling.setdefault(word.stem, word.text.lower())
    counts = Counter(stem for stems in said_in(references) for stem in stems)
    least = min(2, len(references))
    agreed = [(stem, word, counts[stem]) for stem, word in spelling.items() if counts[stem] >= least]
    return sorted(agreed, key=lambda entry: -entry[2])


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A caption compared with its references; `values` is None if there was no reference to compare it with.

    `meant` is True for the tokens of the caption that a reference means.
    """

    references: tuple[str, ...] = ()
    values: Mapping[str, float] | None = None
    warnings: tuple[str, ...] = ()
    meant: Bool[np.ndarray, "references tokens"] | None = None

    def added_to(self, numbers: Numbers) -> Numbers:
        """Return the numbers of the caption with those of its references, and their sum with MSD."""
        if self.values is None:  # missing, not absent: references were passed
            added: Mapping[str, float | None] = {**dict.fromkeys(NAMES), "reference_count": 0}
        else:
            added = {**self.values, "ref_msd": numbers.values["msd"] + self.values["reference_score"]}
        warnings = (*numbers.warnings, *self.warnings)
        # References judge words too, which only an explanation does: those of the image alone would contradict it.
        return replace(numbers, values={**numbers.values, **added}, warnings=warnings, doubtful=None)

    def alone(self, length: int, windows: int, warnings: Sequence[str]) -> Numbers | RowError:
        """Return the numbers of a caption without an image."""
        if self.values is None:
            return RowError("no image, and no reference to compare the caption with")
        return Numbers({"length": length, "windows": windows, **self.values}, (*warnings, *self.warnings, TEXT_ONLY))

    def count_words(self, words: Sequence[Word]) -> list[int | None]:
        """Return the number of references that say or mean each word of the caption.

        None for punctuation, for negated words, and without references.
        """
        said, meant = said_in(self.references), self.meant
        return [
            sum(
                word.stem in stems
                or (meant is not None and bool(word.tokens) and bool(meant[number, list(word.tokens)].all()))
                for number, stems in enumerate(said)
            )
            if said and word.content and not word.negated
            else None
            for word in words
        ]


def compare_texts(
    embedder: Embedder, captions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[ReferenceComparison]:
    """Compare every caption with its references; a caption is never compared with itself."""
    split = [split_references(str(caption), listed) for caption, listed in zip(captions, references, strict=True)]
    compared = [index for index, (others, _) in enumerate(split) if others]
    if not compared:
        return [ReferenceComparison(warnings=warnings) for _, warnings in split]
    texts = list(dict.fromkeys(text for index in compared for text in (captions[index], *split[index][0])))
    embedded = embedder.texts(texts)
    row_of = {text: row for text, row in zip(texts, embedded.rows, strict=True) if row is not None}
    comparisons, pairs = list[ReferenceComparison](), dict[int, tuple[int, list[int]]]()
    for index, (others, warnings) in enumerate(split):
        readable = tuple(text for text in others if text in row_of)
        rows = [row_of[text] for text in readable]
        layouts = [layout for row in rows if isinstance(layout := embedded.vectors.layout[row], TokenLayout)]
        notes = [*warnings, *dict.fromkeys(f"references: {note}" for layout in layouts for note in layout.warnings)]
        if ignored := len(others) - len(readable):
            notes.append(f"{ignored} of {len(others)} references ignored: the encoder cannot read them")
        if others and not readable:
            notes.append(NO_REFERENCES)
        usable = bool(readable) and captions[index] in row_of
        comparisons.append(ReferenceComparison(readable if usable else (), None, tuple(notes)))
        if usable:
            pairs[index] = row_of[captions[index]], rows
    if pairs:
        sentences = _sentences(embedder, embedded)
        columns, meant = measure_references(embedded.vectors, sentences, list(pairs.values()), _background(embedder))
        for pair, index in enumerate(pairs):
            values = {name: column[pair] for name, column in columns.items()}
            comparisons[index] = replace(comparisons[index], values=values, meant=meant[pair])
    return comparisons


def _sentences(embedder: Embedder, texts: Embedded) -> Float[Array, "texts dim"]:
    """Return sentence vectors of embedded texts: the encoder's, else its pooled vectors."""
    encode = embedder.can.encode_sentences
    if encode is None:
        return texts.vectors.pooled
    # As for all texts of an encoder: without invisible characters, and texts of similar length together.
    plain = [text if (cleaned := clean(text)) is None else cleaned.text for text in texts.captions]
    distinct, vectors = sorted(set(plain), key=len), dict[str, Array]()
    for start in range(0, len(distinct), _TEXTS):
        batch = distinct[start : start + _TEXTS]
        vectors |= dict(zip(batch, encode(batch), strict=True))
    return namespace(texts.vectors.pooled).stack([vectors[text] for text in plain])


_backgrounds = Recent[tuple[str, str], Background](limit=4)  # by the signature and device of their encoder


def _background(embedder: Embedder) -> Background:
    """Return the background captions of an encoder, encoded once."""
    key = embedder.signature, str(embedder.encoder.device)
    return _backgrounds.get(key, lambda: Background.of(embedder.vectors(background_captions())))
