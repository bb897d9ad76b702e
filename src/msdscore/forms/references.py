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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.embeddings import Embeddings, extents, real_points
from msdscore.errors import ConfigError
from msdscore.forms.base import Column
from msdscore.text.normal import clean
from msdscore.text.words import segment

COLUMNS = (
    Column("reference_count", "references", ".0f"),
    Column("reference_similarity", "ref similarity", "+.3f"),
    Column("reference_support", "ref support", "+.3f"),
    Column("reference_coverage", "ref coverage", "+.3f"),
    Column("reference_score", "ref score", "+.4f"),
    Column("ref_msd", "Ref-MSD", "+.4f"),
)
NAMES = tuple(column.name for column in COLUMNS)
TEXT_ONLY = "no image: compared with the references only"
NO_REFERENCES = "no references: ref_msd is missing"
KAPPA = 20.0  # concentration of the mixtures, that of the paper
# Weights of the parts of the reference score, chosen jointly on all development sets (docs/decisions.md).
SIMILARITY, SUPPORT, COVERAGE = 3.0, 0.05, 0.05
WEIGHTS = f"{SIMILARITY:g},{SUPPORT:g},{COVERAGE:g},kappa{KAPPA:g}"  # in signatures
MEANT = 0.98  # share of background captions under which a word is less likely than under a reference that means it
_TOGETHER = 512  # texts, or pairs of a caption and a reference, per batch
_ROOM = 1 << 22  # largest number of values of background sets in memory


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
    return tuple((files("msdscore.forms") / "background.txt").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True, slots=True)
class Background:
    """The tokens of the background captions in one row, with the index of the caption of each token."""

    points: Float[Tensor, "points dim"]
    owner: Int[Tensor, " points"]
    count: int

    @classmethod
    def of(cls, texts: Embeddings) -> "Background":
        """Build the background from embedded captions."""
        # A caption that the encoder cannot read has no tokens, and is not part of the background.
        number = texts.mask.any(dim=1).cumsum(dim=0) - 1
        owner = number.unsqueeze(1).expand(texts.mask.shape)[texts.mask]
        return cls(texts.points[texts.mask].float(), owner, int(number[-1]) + 1)

    def log_densities(self, points: Float[Tensor, "texts points dim"]) -> Float[Tensor, "texts points b"]:
        """Return the log density of every point under each background caption."""
        cosines = (points.float() @ self.points.T).double()
        sums = torch.zeros(*cosines.shape[:2], self.count, dtype=torch.float64, device=cosines.device)
        # Cosines are at most 1, so that exponentials are at most 1.
        sums.index_add_(2, self.owner, torch.exp(KAPPA * (cosines - 1)))
        sizes = torch.bincount(self.owner, minlength=self.count)
        return KAPPA + (sums / sizes).log()


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


def check_references(references: object) -> tuple[str, ...]:
    """Return references as a tuple; raise `ConfigError` unless they are a list of at least one text."""
    if isinstance(references, str) or not isinstance(references, Sequence):
        raise ConfigError(f"expected references as a list of texts, got {type(references).__name__}")
    for text in references:
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"expected every reference to be a text with words, got {text!r}")
    if not references:
        raise ConfigError("expected at least one reference, got an empty list; omit references to score without")
    return tuple(references)


def _plain(text: str) -> str:
    cleaned = clean(text)
    words = segment(text if cleaned is None else cleaned.text)
    return " ".join(word.text.casefold() for word in words if word.stem)


def measure_references(
    texts: Embeddings,
    sentences: Float[Tensor, "texts dim"],
    pairs: Sequence[tuple[int, Sequence[int]]],
    background: Background,
) -> tuple[dict[str, list[float]], list[Bool[Tensor, "references tokens"]]]:
    """Compare captions with references; a pair is the row of a caption and the rows of its references.

    Return the numbers of every pair by column, and whether each reference means each token of the caption.
    """
    texts = replace(texts, points=real_points(texts.points, texts.mask))
    device = texts.points.device
    captions = [caption for caption, _ in pairs]
    sizes = [len(rows) for _, rows in pairs]
    # One entry per reference: its pair, the row of the caption and its row.
    index = torch.arange(len(pairs)).repeat_interleave(torch.tensor(sizes)).to(device)
    first = torch.tensor(captions, device=device)[index]
    second = torch.tensor([row for _, rows in pairs for row in rows], device=device)
    count = torch.tensor(sizes, dtype=torch.float64, device=device)
    density, covered, nearest = _densities(texts, first, second)
    dense, expected = _background_densities(texts, torch.cat([first, second]).unique(), background)
    cosines = (sentences[first].double() * sentences[second].double()).sum(dim=1)
    similarity = torch.zeros(len(pairs), dtype=torch.float64, device=device).index_add(0, index, cosines) / count
    mask = texts.mask[second]
    gains = ((covered - expected[second]) * mask).sum(dim=1) / mask.sum(dim=1)
    coverage = torch.zeros_like(similarity).index_add(0, index, gains) / count
    terms, meant = torch.zeros(len(pairs), texts.mask.shape[1], dtype=torch.float64), []
    for pair, (under_references, mutual) in enumerate(zip(density.split(sizes), nearest.split(sizes), strict=True)):
        under_background = dense[captions[pair]]  # tokens by background captions
        width = len(under_background)
        real = texts.mask[captions[pair], :width]
        joint = under_references[:, :width].logsumexp(dim=0) - count[pair].log()
        gain = (joint - _expected_of_sets(under_background, sizes[pair])) * real / real.sum()
        terms[pair, :width] = gain.cpu()
        likelier = under_references[:, :width] > under_background.quantile(MEANT, dim=1)
        meant.append((likelier & mutual[:, :width] & real).cpu())
    similarity, support, coverage = similarity.cpu(), terms.sum(dim=1), coverage.cpu()
    score = SIMILARITY * similarity + SUPPORT * support + COVERAGE * coverage
    values = [sizes, *(column.tolist() for column in (similarity, support, coverage, score))]
    return dict(zip(NAMES[:5], values, strict=True)), meant


def _densities(
    texts: Embeddings, first: Int[Tensor, " pairs"], second: Int[Tensor, " pairs"]
) -> tuple[Float[Tensor, "pairs points"], Float[Tensor, "pairs points"], Bool[Tensor, "pairs points"]]:
    """Return log densities of the tokens of the first texts under the second ones, and vice versa.

    The last is True for tokens of the first texts that are the nearest token of their nearest token: vectors of
    neighbours are alike, so that "brown" of a brown dog is near "dog", but "dog" is nearer to "dog".
    """
    widths = extents(texts.mask)
    shape = (len(first), texts.mask.shape[1])
    under, over = (torch.zeros(shape, dtype=torch.float64, device=first.device) for _ in range(2))
    mutual = torch.zeros(shape, dtype=torch.bool, device=first.device)
    # Pairs of about one size together: a single long caption must not pad all others.
    for batch in (widths[first] * widths[second]).argsort().split(_TOGETHER):
        left, right = first[batch], second[batch]
        n, m = int(widths[left].max()), int(widths[right].max())
        rows, columns = texts.mask[left, :n], texts.mask[right, :m]
        logits = KAPPA * (texts.points[left, :n].float() @ texts.points[right, :m].float().mT).double()
        within = logits.masked_fill(~columns.unsqueeze(1), -torch.inf)
        across = logits.masked_fill(~rows.unsqueeze(2), -torch.inf)
        under[batch, :n] = within.logsumexp(dim=2) - columns.sum(dim=1, keepdim=True).double().log()
        over[batch, :m] = across.logsumexp(dim=1) - rows.sum(dim=1, keepdim=True).double().log()
        back = across.argmax(dim=1).gather(1, within.argmax(dim=2))
        mutual[batch, :n] = back == torch.arange(n, device=first.device)
    return under, over, mutual


def _background_densities(
    texts: Embeddings, rows: Int[Tensor, " rows"], background: Background
) -> tuple[dict[int, Float[Tensor, "points b"]], Float[Tensor, "texts points"]]:
    """Return log densities of the tokens of some texts under every background caption, and their means."""
    expected = torch.zeros(texts.mask.shape, dtype=torch.float64, device=texts.mask.device)
    widths, dense = extents(texts.mask), dict[int, Tensor]()
    for batch in rows[widths[rows].argsort()].split(_TOGETHER // 4):
        width = int(widths[batch].max())
        values = background.log_densities(texts.points[batch, :width])
        expected[batch, :width] = values.mean(dim=2)
        dense |= dict(zip(batch.tolist(), values, strict=True))
    return dense, expected


def _expected_of_sets(densities: Float[Tensor, "points b"], size: int) -> Float[Tensor, " points"]:
    """Return the mean log density of points under sets of `size` consecutive background captions, cyclically."""
    count = densities.shape[1]
    size = min(size, count)
    if size == 1:
        return densities.mean(dim=1)
    step = max(1, densities.shape[0] * count * size // _ROOM)
    ring = torch.cat([densities, densities[:, : size - 1]], dim=1).unfold(1, size, step)
    return (ring.logsumexp(dim=2) - torch.tensor(float(size)).double().log()).mean(dim=1)


def said_in(references: Sequence[str]) -> list[set[str]]:
    """Return the stems of the content words that each reference says and does not deny."""
    return [
        {word.stem for word in segment(text, compounds=False) if word.content and not word.denied}
        for text in references
    ]


# Shapes of the Beta distributions of the share of references that have a word, for true words and for words that are
# likely and not there; why these is in docs/decisions.md, `msdscore study reference-words` measures them.
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
    return float((shares * torch.sigmoid(odds + weights[having] - weights)).sum())


@cache
def _word_evidence(count: int) -> tuple[Float[Tensor, " numbers"], Float[Tensor, " numbers"]]:
    """Return, for each number of references, the share of true words, and the log ratio to that of absent words."""
    having = torch.arange(count + 1)
    true, absent = (log_shares(having, torch.tensor(count), shape) for shape in (TRUE_WORDS, ABSENT_WORDS))
    return true.exp(), true - absent


def log_shares(
    having: Int[Tensor, "*words"], count: Int[Tensor, "*words"], shape: tuple[float, float]
) -> Float[Tensor, "*words"]:
    """Return log probabilities that `having` of `count` references have a word, if their share is Beta-distributed."""

    def log_beta(first: Tensor, second: Tensor) -> Tensor:
        return torch.lgamma(first) + torch.lgamma(second) - torch.lgamma(first + second)

    k, n, (a, b) = having.double(), count.double(), torch.tensor(shape, dtype=torch.float64)
    return log_beta(k + a, n - k + b) - log_beta(a, b) - log_beta(k + 1, n - k + 1) - (n + 1).log()


def agreed_words(references: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return words that several references (or the only one) say: stem, first spelling, and number of references.

    >>> agreed_words(["a dog runs", "two dogs", "a lawn"])
    [('dog', 'dog', 2)]
    """
    spelling: dict[str, str] = {}
    for text in references:
        for word in segment(text, compounds=False):
            if word.content and not word.denied:
                spelling.setdefault(word.stem, word.text.lower())
    counts = Counter(stem for stems in said_in(references) for stem in stems)
    least = min(2, len(references))
    agreed = [(stem, word, counts[stem]) for stem, word in spelling.items() if counts[stem] >= least]
    return sorted(agreed, key=lambda entry: -entry[2])
