"""Metrics computed from encoder vectors: MSD and its parts, CLIPScore and variants, max-similarity, transport."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from msdscore.encoders.base import TokenLayout
from msdscore.errors import ConfigError, require, unknown_name
from msdscore.forms.references import WEIGHTS
from msdscore.intervals import Floats
from msdscore.lab.metrics.base import Cases, CaseScores, Loaded, Vectors
from msdscore.lab.metrics.registry import choice, number
from msdscore.scoring.results import soften

RANK_MARGIN = 0.005  # tau_r, paper


def _loaded(score: Callable[[Vectors], Floats], choices: str = "") -> Loaded:
    """Return a metric whose scores are computed from the vectors of a batch."""
    return Loaded(lambda batch: CaseScores(score(vectors_of(batch))), choices)


def vectors_of(batch: Cases) -> Vectors:
    """Return the embeddings of a batch whose metric needs an encoder."""
    assert batch.vectors is not None, "the runner computes vectors for every metric that needs an encoder"
    return batch.vectors


def _column(name: str) -> Callable[[], Loaded]:
    """Return the loader of a metric that is a column of `Vectors.numbers`."""
    return lambda: _loaded(lambda vectors: vectors.column(name))


load_cosine = _column("similarity")  # of the pooled vectors
load_coverage = _column("coverage")  # KL(image‖text)
load_support = _column("support")  # KL(text‖image)
load_precision = _column("precision")  # evidence form: support of the caption's words by the image
load_information = _column("information")  # evidence form: how much the caption says about the image
load_doubt = _column("doubt")  # evidence form: probable hallucinations
load_divergence = _column("divergence")  # both divergences, weighted by the gate
load_msd = _column("msd")


def load_tokens() -> Loaded:
    """Caption length L as in the score: the number of tokens with a vector."""
    return _loaded(lambda vectors: vectors.spread(vectors.texts.mask.sum(dim=1).cpu().numpy()[vectors.pair_texts]))


def load_soft_msd(set: str = "item") -> Loaded:  # noqa: A002, the name of the option
    """MSD gated by uncertainty.

    A candidate set is the captions of one item (in `bench images`, the images of one prompt), or all those of one
    image.
    """
    choice("set", set, ("item", "image"))

    def score(batch: Cases) -> CaseScores:
        by_item = np.arange(len(batch)) if batch.sets is None else batch.sets
        group, vectors = by_item if set == "item" else batch.group, vectors_of(batch)
        similarity, msd = vectors.column("similarity"), vectors.column("msd")
        valid = ~np.isnan(similarity)
        sets = np.broadcast_to(group[:, None], similarity.shape)[valid]
        values = np.full(similarity.shape, np.nan)
        values[valid] = soften(similarity[valid].tolist(), msd[valid].tolist(), sets.tolist(), vectors.config)[1]
        return CaseScores(values)

    return Loaded(score, f"set:{set}")


def load_rank_agg(margin: str = f"{RANK_MARGIN}") -> Loaded:
    """Similarity decides if the gap exceeds `margin`, else the smaller divergence."""
    gap = number("margin", margin)

    def score(vectors: Vectors) -> Floats:
        preference = rank_agg_preference(vectors.column("similarity"), vectors.column("divergence"), margin=gap)
        is_missing = np.isnan(vectors.column("similarity")).any(axis=1)
        preference = np.where(is_missing, np.nan, preference)
        return np.stack([preference, -preference], axis=1) / 2

    return _loaded(score, f"margin:{gap:g}")


_WRONG = ("both", "image", "references")


def _reference_loader(name: str) -> Callable[..., Loaded]:
    """Return the loader of a metric that compares captions with references."""

    def load(most: str = "", wrong: str = "both", seed: str = "") -> Loaded:
        if wrong not in _WRONG:
            raise unknown_name("side that the control swaps", wrong, _WRONG)
        if most and not (most.isdecimal() and int(most)):
            raise ConfigError(f"most must be a whole number of references of at least 1, got {most!r}")
        if seed and not (most and seed.isdecimal()):
            raise ConfigError(f"seed must be a whole number and needs most, got {seed!r}")
        parts = {"ref": WEIGHTS, "most": most, "drawn": seed, "wrong": "" if wrong == "both" else wrong}
        choices = "|".join(f"{fact}:{value}" for fact, value in parts.items() if value)

        def choose(references: Sequence[str]) -> Sequence[str]:
            return shuffled(references, seed)[: int(most)] if most else references

        return Loaded(lambda batch: CaseScores(_with_references(batch, name, choose, wrong)), choices)

    return load


load_reference_similarity = _reference_loader("reference_similarity")
load_reference_support = _reference_loader("reference_support")  # whether references support the caption
load_reference_coverage = _reference_loader("reference_coverage")  # share of the references' content in the caption
load_reference_score = _reference_loader("reference_score")  # without the image
load_ref_msd = _reference_loader("ref_msd")


def shuffled(references: Sequence[str], seed: str) -> Sequence[str]:
    """Return references in a random order given by the seed; unchanged without a seed.

    >>> shuffled(["a dog", "a cat"], "1"), shuffled(["a dog", "a cat"], "4")
    (['a dog', 'a cat'], ['a cat', 'a dog'])
    """
    return sorted(references, key=lambda text: blake2b(f"{seed} {text}".encode()).digest()) if seed else references


def _with_references(batch: Cases, name: str, choose: Callable[[Sequence[str]], Sequence[str]], wrong: str) -> Floats:
    """Return a score of every candidate from its references; NaN without references.

    In the control, the image, the references or both are those of another item.
    """
    vectors, true_case = vectors_of(batch), np.arange(len(batch))
    true_case[batch.control] -= int((~batch.control).sum())  # index of the true case of every case
    references = [choose(batch.references[true_case[case] if wrong == "image" else case]) for case in range(len(batch))]
    pairs = [(text, references[case]) for case in range(len(batch)) for text in batch.candidates(case)]
    comparisons = vectors.compare([text for text, _ in pairs], [item_references for _, item_references in pairs])
    column = "reference_score" if name == "ref_msd" else name
    values = np.array(
        [np.nan if comparison.values is None else comparison.values[column] for comparison in comparisons]
    )
    scores: Floats = values.reshape(batch.captions.shape)
    if name != "ref_msd":
        return scores
    msd = vectors.column("msd")
    return scores + (msd[true_case] if wrong == "references" else msd)


WEIGHT = 2.5  # w, CLIPScore paper
PREFIX = "A photo depicts "  # CLIPScore paper


def load_clipscore(prefix: str = PREFIX) -> Loaded:
    """2.5·max(cos, 0) of the image and the prefixed caption."""
    return _loaded(lambda vectors: _clipscore(vectors, prefix), _choices(prefix))


def load_longclipscore(prefix: str = PREFIX) -> Loaded:
    """CLIPScore, with an error if the encoder cannot read a caption in one window."""

    def score(vectors: Vectors) -> Floats:
        most = max((layout.windows for layout in vectors.texts.layout if isinstance(layout, TokenLayout)), default=1)
        if most > 1:
            raise ConfigError(
                f"longclipscore needs an encoder that reads a caption in one window, this one used {most}; "
                "choose a LongCLIP encoder"
            )
        return _clipscore(vectors, prefix)

    return _loaded(score, _choices(prefix))


def load_refclipscore(prefix: str = PREFIX) -> Loaded:
    """Harmonic mean of CLIPScore and max(cos, 0) with the nearest reference; NaN without references."""

    def score(batch: Cases) -> CaseScores:
        vectors = vectors_of(batch)
        clipscore = _clipscore(vectors, prefix)
        texts = _pooled(vectors, vectors.readable, prefix)
        # A candidate without a pair (−1) takes an arbitrary vector: its CLIPScore is already NaN.
        captions = texts[np.append(vectors.pair_texts, 0)[vectors.pair_of]] if len(texts) else np.zeros((0, 0, 0))
        nearest = nearest_reference(captions, batch.references, lambda texts: _pooled(vectors, texts, prefix))
        return CaseScores(harmonic(clipscore, nearest) if len(texts) else clipscore)

    return Loaded(score, _choices(prefix))


def harmonic(first: Floats, second: Floats) -> Floats:
    """Return the harmonic mean, 0 if both are 0.

    >>> harmonic(np.array([1.0, 0.0]), np.array([3.0, 0.0])).tolist()
    [1.5, 0.0]
    """
    total = first + second
    mean: Floats = np.where(total == 0, 0.0, 2 * first * second / np.where(total == 0, 1.0, total))
    return mean


def nearest_reference(
    captions: Floats, references: Sequence[Sequence[str]], embed: Callable[[Sequence[str]], Floats]
) -> Floats:
    """Return max(cos, 0) of each candidate (cases, candidates, dim) with its case's references; NaN without any.

    `embed` returns the unit vectors of texts.
    """
    texts = sorted({text for case in references for text in case})
    rows = dict(zip(texts, embed(texts), strict=True))
    nearest = np.full(captions.shape[:2], np.nan)
    for case, case_references in enumerate(references if len(captions) else ()):
        if case_references:
            vectors = np.stack([rows[text] for text in case_references])
            nearest[case] = np.maximum((captions[case] @ vectors.T).max(axis=-1), 0.0)
    return nearest


def _clipscore(vectors: Vectors, prefix: str) -> Floats:
    images = vectors.images.pooled.double().cpu().numpy()
    texts = _pooled(vectors, vectors.readable, prefix)
    cosine = (images[vectors.pair_images] * texts[vectors.pair_texts]).sum(axis=1)
    return vectors.spread(WEIGHT * np.maximum(cosine, 0.0))


def _pooled(vectors: Vectors, texts: Sequence[str], prefix: str) -> Floats:
    if not texts:
        return np.zeros((0, vectors.images.pooled.shape[1]))
    pooled: Floats = vectors.embed([prefix + text for text in texts]).pooled.double().cpu().numpy()
    return pooled


def _choices(prefix: str) -> str:
    return f"w:{WEIGHT:g}|prefix:{prefix.strip() or 'none'}"


SINKHORN_REG = 0.05  # for cosine distances between 0 and 2
_STEPS, _PRECISION = 1000, 1e-6


def load_max_sim() -> Loaded:
    r"""Mean over the caption's tokens of the largest cosine with a patch, :math:`\frac{1}{M}\sum_j\max_i x_i y_j`."""
    return _loaded(lambda vectors: _over_pairs(vectors, _max_sim))


def load_calibrated_max_sim() -> Loaded:
    """Max-similarity minus its mean over background images, with component means instead of patches."""

    def score(vectors: Vectors) -> Floats:
        if vectors.background is None:
            raise ConfigError("max-sim-cal needs a background; choose settings with calibration=background")
        items, components, dim = vectors.background.shape
        means = vectors.background.reshape(items * components, dim)
        similarity = np.zeros(len(vectors.texts))
        for row, (points, mask) in enumerate(zip(vectors.texts.points, vectors.texts.mask, strict=True)):
            cosines = (means @ points[mask].to(means).mT).unflatten(0, (items, components))
            similarity[row] = float(cosines.amax(dim=1).double().mean())
        return _over_pairs(vectors, _max_sim) - vectors.spread(similarity[vectors.pair_texts])

    return _loaded(score)


def load_sinkhorn(reg: str = f"{SINKHORN_REG}") -> Loaded:
    """Transport cost of 1 − cosine between uniform tokens and patches, with entropic regularisation `reg`."""
    strength = number("reg", reg)
    if not strength > 0:
        raise ConfigError(f"reg must be positive, got {reg}")
    ot: Any = require("ot", extra="ot")

    def cost(cosines: Tensor) -> float:
        distance = (1 - cosines).double().cpu().numpy()
        sides = (np.full(size, 1 / size) for size in distance.shape)
        plan = ot.sinkhorn(
            *sides, distance, strength, method="sinkhorn_log", numItermax=_STEPS, stopThr=_PRECISION, warn=False
        )
        return float((plan * distance).sum())

    return _loaded(lambda vectors: _over_pairs(vectors, cost), f"reg:{strength:g}|it:{_STEPS}")


def _max_sim(cosines: Tensor) -> float:
    return float(cosines.max(dim=0).values.double().mean())


def _over_pairs(vectors: Vectors, measure: Callable[[Tensor], float]) -> Floats:
    """Return a measure of the cosines of real patches and real tokens of every pair, with one product per image."""
    values = np.full(len(vectors.pair_images), np.nan)
    texts = [points[mask] for points, mask in zip(vectors.texts.points, vectors.texts.mask, strict=True)]
    order = np.argsort(vectors.pair_images, kind="stable")
    starts = np.flatnonzero(np.diff(vectors.pair_images[order], prepend=-1))
    for pairs in np.split(order, starts[1:]) if len(order) else []:
        image = int(vectors.pair_images[pairs[0]])
        patches = vectors.images.points[image][vectors.images.mask[image]]
        tokens_of_pairs = [texts[row] for row in vectors.pair_texts[pairs].tolist()]
        product = patches.float() @ torch.cat(tokens_of_pairs).float().mT
        values[pairs] = [measure(part) for part in product.split([len(tokens) for tokens in tokens_of_pairs], dim=1)]
    return vectors.spread(values)


def rank_agg_preference(similarity: Floats, divergence: Floats, *, margin: float) -> Floats:
    """The diagnostic baseline RankAgg for pairs: +1 prefers the first, −1 the second, 0 is a tie.

    Similarity decides if the gap exceeds `margin`, otherwise the smaller divergence.

    >>> rank_agg_preference(np.array([[0.3, 0.2], [0.3, 0.301]]), np.array([[9.0, 1.0], [2.0, 3.0]]), margin=0.005)
    array([1., 1.])
    """
    gap = similarity[:, 0] - similarity[:, 1]
    return np.where(np.abs(gap) > margin, np.sign(gap), np.sign(divergence[:, 1] - divergence[:, 0]))
