"""Metrics computed from encoder vectors: MSD and its parts, CLIPScore and variants, max-similarity.

Every metric is a function of a batch and of its options. Its loader checks the options and fills them in.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import float64, to_numpy
from msdscore.core.divergence import soften
from msdscore.encoders.base import Embeddings, TokenLayout
from msdscore.errors import ConfigError
from msdscore.intervals import Floats
from msdscore.scoring.references import WEIGHTS
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded, Vectors
from msdscore_lab.metrics.registry import choice, number

RANK_MARGIN = 0.005  # tau_r of the authors' scripts; the paper has no value


def _loaded(scores: Callable[..., Floats], choices: str = "", **options: Any) -> Loaded:
    """Return a metric whose scores are `scores(batch, **options)`."""
    return Loaded(lambda batch: CaseScores(scores(batch, **options)), choices)


def vectors_of(batch: Cases) -> Vectors:
    """Return the embeddings of a batch whose metric needs an encoder."""
    assert batch.vectors is not None, "the runner computes vectors for every metric that needs an encoder"
    return batch.vectors


def load_column(name: str) -> Loaded:
    """Load a metric that is a column of `Vectors.numbers`."""
    return _loaded(lambda batch: vectors_of(batch).column(name))


load_cosine = partial(load_column, "similarity")  # of the pooled vectors
load_coverage = partial(load_column, "coverage")  # KL(image‖text)
load_support = partial(load_column, "support")  # KL(text‖image)
load_precision = partial(load_column, "precision")  # evidence form: support of the caption's words by the image
load_information = partial(load_column, "information")  # evidence form: how much the caption says about the image
load_penalty = partial(load_column, "penalty")  # evidence form: what doubtful words subtract
load_invented = partial(load_column, "invented")  # evidence form: expected share of false words
load_divergence = partial(load_column, "divergence")  # both divergences, weighted by the gate
load_msd = partial(load_column, "msd")


def _tokens(batch: Cases) -> Floats:
    """Caption length L as in the paper's form: the number of tokens."""
    vectors = vectors_of(batch)
    return vectors.spread(to_numpy(vectors.texts.token_counts)[vectors.pair_texts])


load_tokens = partial(_loaded, _tokens)


def load_soft_msd(set: str = "item") -> Loaded:  # noqa: A002, the name of the option
    """MSD gated by uncertainty.

    A candidate set is the captions of one item, or all those of one image.
    """
    return _loaded(_soft_msd, f"set:{set}", by=choice("set", set, ("item", "image")))


def _soft_msd(batch: Cases, *, by: str) -> Floats:
    group, vectors = np.arange(len(batch)) if by == "item" else batch.group, vectors_of(batch)
    similarity, msd = vectors.column("similarity"), vectors.column("msd")
    valid = ~np.isnan(similarity)
    sets = np.broadcast_to(group[:, None], similarity.shape)[valid]
    values = np.full(similarity.shape, np.nan)
    temperature = vectors.form.temperature
    values[valid] = soften(similarity[valid], msd[valid], sets, temperature=temperature)[1]
    return values


def load_rank_agg(margin: str = f"{RANK_MARGIN}") -> Loaded:
    """Similarity decides if the gap exceeds `margin`, else the smaller divergence."""
    gap = number("margin", margin)
    return _loaded(_rank_agg, f"margin:{gap:g}", margin=gap)


def _rank_agg(batch: Cases, *, margin: float) -> Floats:
    vectors = vectors_of(batch)
    similarity = vectors.column("similarity")
    preference = rank_agg_preference(similarity, vectors.column("divergence"), margin=margin)
    preference = np.where(np.isnan(similarity).any(axis=1), np.nan, preference)
    return np.stack([preference, -preference], axis=1) / 2


def rank_agg_preference(similarity: Floats, divergence: Floats, *, margin: float) -> Floats:
    """The diagnostic baseline RankAgg for pairs: +1 prefers the first, −1 the second, 0 is a tie.

    Similarity decides if the gap exceeds `margin`, otherwise the smaller divergence.

    >>> rank_agg_preference(np.array([[0.3, 0.2], [0.3, 0.301]]), np.array([[9.0, 1.0], [2.0, 3.0]]), margin=0.005)
    array([1., 1.])
    """
    gap = similarity[:, 0] - similarity[:, 1]
    return np.where(np.abs(gap) > margin, np.sign(gap), np.sign(divergence[:, 1] - divergence[:, 0]))


def load_references(name: str, most: str = "", seed: str = "") -> Loaded:
    """Load a metric that compares captions with their references, or with `most` of them."""
    if most and not (most.isdecimal() and int(most)):
        raise ConfigError(f"most must be a whole number of references of at least 1, got {most!r}")
    if seed and not (most and seed.isdecimal()):
        raise ConfigError(f"seed must be a whole number and needs most, got {seed!r}")
    parts = {"ref": WEIGHTS, "most": most, "drawn": seed}
    choices = "|".join(f"{fact}:{value}" for fact, value in parts.items() if value)
    return _loaded(_with_references, choices, name=name, most=int(most) if most else None, seed=seed)


load_reference_similarity = partial(load_references, "reference_similarity")
load_reference_support = partial(load_references, "reference_support")  # whether references support the caption
# Share of the references' content in the caption.
load_reference_coverage = partial(load_references, "reference_coverage")
load_reference_score = partial(load_references, "reference_score")  # without the image
load_ref_msd = partial(load_references, "ref_msd")


def shuffled(references: Sequence[str], seed: str) -> Sequence[str]:
    """Return references in a random order given by the seed; unchanged without a seed.

    >>> shuffled(["a dog", "a cat"], "1"), shuffled(["a dog", "a cat"], "4")
    (['a dog', 'a cat'], ['a cat', 'a dog'])
    """
    return sorted(references, key=lambda text: blake2b(f"{seed} {text}".encode()).digest()) if seed else references


def _with_references(batch: Cases, *, name: str, most: int | None, seed: str) -> Floats:
    """Return a score of every candidate from its references; NaN without references.

    In the control, image and references are those of another item.
    """
    vectors = vectors_of(batch)
    references = [shuffled(texts, seed if most else "")[:most] for texts in batch.references]
    pairs = [(text, references[case]) for case in range(len(batch)) for text in batch.candidates(case)]
    comparisons = vectors.compare([text for text, _ in pairs], [item_references for _, item_references in pairs])
    column = "reference_score" if name == "ref_msd" else name
    values = np.array(
        [np.nan if comparison.values is None else comparison.values[column] for comparison in comparisons]
    )
    scores: Floats = values.reshape(batch.captions.shape)
    return scores + vectors.column("msd") if name == "ref_msd" else scores


LONG_CONTEXT = 246  # tokens of a caption that LongCLIP reads, without start and end
WEIGHT = 2.5  # w, CLIPScore paper
PREFIX = "A photo depicts "  # CLIPScore paper


def _clipscore(batch: Cases, *, prefix: str) -> Floats:
    """2.5·max(cos, 0) of the image and the prefixed caption."""
    vectors = vectors_of(batch)
    images, texts = float64(vectors.published().images), _pooled(vectors, vectors.readable, prefix=prefix)
    cosine = (images[vectors.pair_images] * texts[vectors.pair_texts]).sum(axis=1)
    return vectors.spread(WEIGHT * np.maximum(cosine, 0.0))


def _pooled(vectors: Vectors, texts: Sequence[str], *, prefix: str) -> Floats:
    published = vectors.published()
    if not texts:
        return np.zeros((0, published.images.shape[1]))
    return float64(published.embed([prefix + text for text in texts]).pooled)


def _longclipscore(batch: Cases, *, prefix: str) -> Floats:
    """CLIPScore, with an error if the encoder cuts captions that a LongCLIP reads."""
    vectors = vectors_of(batch)
    layouts = [layout for layout in vectors.texts.layout if isinstance(layout, TokenLayout)]
    most = max((len(layout.spans) + layout.cut for layout in layouts), default=0)
    texts = vectors.published().embed(vectors.readable) if most else None
    read = [len(layout.spans) for layout in (texts.layout if texts else ()) if isinstance(layout, TokenLayout)]
    if read and max(read) < min(most, LONG_CONTEXT):
        raise ConfigError(
            f"longclipscore needs an encoder that reads {LONG_CONTEXT} tokens at once, this one reads {max(read)} "
            f"of {most}; choose a LongCLIP encoder"
        )
    return _clipscore(batch, prefix=prefix)


def _refclipscore(batch: Cases, *, prefix: str) -> Floats:
    """Harmonic mean of CLIPScore and max(cos, 0) with the nearest reference; NaN without references."""
    vectors, clipscore = vectors_of(batch), _clipscore(batch, prefix=prefix)
    texts = _pooled(vectors, vectors.readable, prefix=prefix)
    if not len(texts):
        return clipscore
    # A candidate without a pair (−1) takes an arbitrary vector: its CLIPScore is already NaN.
    captions = texts[np.append(vectors.pair_texts, 0)[vectors.pair_of]]
    return harmonic(clipscore, nearest_reference(captions, batch.references, partial(_pooled, vectors, prefix=prefix)))


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


def _load_prefixed(scores: Callable[..., Floats], prefix: str = PREFIX) -> Loaded:
    return _loaded(scores, f"w:{WEIGHT:g}|prefix:{prefix.strip() or 'none'}", prefix=prefix)


load_clipscore = partial(_load_prefixed, _clipscore)
load_longclipscore = partial(_load_prefixed, _longclipscore)
load_refclipscore = partial(_load_prefixed, _refclipscore)


Cosines = npt.NDArray[np.float32]


def _calibrated_max_sim(batch: Cases) -> Floats:
    """Max-similarity minus its mean over background images, with component means instead of patches."""
    vectors = vectors_of(batch)
    if vectors.background is None:
        raise ConfigError("max-sim-cal needs a background; choose settings with calibration=background")
    items, components, dim = vectors.background.shape
    means = vectors.background.reshape(items * components, dim)
    similarity = np.zeros(len(vectors.texts))
    for row, points in enumerate(_real_points(vectors.texts)):
        cosines = (means @ points.T).reshape(items, components, -1)
        similarity[row] = cosines.max(axis=1).mean(dtype=np.float64)
    return _max_similarity(batch) - vectors.spread(similarity[vectors.pair_texts])


def _real_points(batch: Embeddings) -> list[Cosines]:
    """Return the real points of every item in float32."""
    masks = to_numpy(batch.mask)
    return [to_numpy(batch.points[row])[mask].astype(np.float32) for row, mask in enumerate(masks)]


def _max_similarity(batch: Cases) -> Floats:
    r"""Mean over the caption's tokens of the largest cosine with a patch, :math:`\frac{1}{T}\sum_j\max_i x_i y_j`."""
    vectors = vectors_of(batch)
    values = np.full(len(vectors.pair_images), np.nan)
    texts, images = _real_points(vectors.texts), _real_points(vectors.images)
    order = np.argsort(vectors.pair_images, kind="stable")
    starts = np.flatnonzero(np.diff(vectors.pair_images[order], prepend=-1))
    for pairs in np.split(order, starts[1:]) if len(order) else []:
        image = int(vectors.pair_images[pairs[0]])
        tokens_of_pairs = [texts[row] for row in vectors.pair_texts[pairs].tolist()]
        product = images[image] @ np.concatenate(tokens_of_pairs).T
        ends = np.cumsum([len(tokens) for tokens in tokens_of_pairs])
        largest = np.split(product.max(axis=0), ends[:-1])
        values[pairs] = [cosines.mean(dtype=np.float64) for cosines in largest]
    return vectors.spread(values)


load_max_sim = partial(_loaded, _max_similarity)
load_calibrated_max_sim = partial(_loaded, _calibrated_max_sim)
