"""Fitted mixtures of captions: stability over random starts, and entropy of the responsibilities."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float
from msdscore.core.embeddings import real_points
from msdscore.errors import InputError
from msdscore.intervals import Floats, bootstrap_mean
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import Item, clusters
from msdscore_lab.stats.resample import bootstrap_share
from msdscore_lab.studies.ablations.mixtures import Kind, PaperMixture, fit_lifted, lifted, with_mixture
from msdscore_lab.studies.ablations.pairs import quantile_bins
from msdscore_lab.studies.ablations.sweep import MIXTURES
from msdscore_lab.studies.context import PAPER_FORM, Study, paper_form
from msdscore_lab.studies.table import Column, Plot, Row, Table, Value, per_cent

Responsibilities = Float[Tensor, "batch components points"]
Caption = tuple[str, str]  # text, key of the image it belongs to
KINDS: dict[str, Kind] = {"fixed kappa": "vmf", "adaptive kappa": "vmf-adaptive"}
HARD = 0.01  # nats; assignments with a lower entropy count as hard
_CAPTIONS = 128  # per batch


def stability(study: Study, *, benchmark: Sequence[str] = ("sugarcrepe",), seeds: int = 5) -> list[Table]:
    """Clusterings of each caption's tokens over random starts: vMF against Gaussians."""
    name, pipeline = benchmark[-1], study.pipeline(PAPER_FORM)
    captions = distinct_captions(study.pairs(name), study.limit)
    work: dict[str, Any] = {"benchmark": name, "seeds": seeds}
    indices = study.rows(
        "rand-indices", captions, lambda batch: _rand_indices(pipeline, batch, seeds), pipeline, size=_CAPTIONS, **work
    )
    by_mixture = dict(zip(MIXTURES, zip(*indices, strict=True), strict=True))
    return _clustering_tables(by_mixture, [image for _, image in captions], signature=pipeline.signature, facts=work)


def entropy(study: Study, *, benchmark: Sequence[str] = ("sugarcrepe",), bins: int = 5) -> list[Table]:
    """Mean entropy of the responsibilities of each caption's tokens, with fixed and with adaptive concentration."""
    name, pipeline = benchmark[-1], study.pipeline(PAPER_FORM)
    captions = distinct_captions(study.items(name), study.limit)
    answers = study.rows(
        "entropy", captions, lambda batch: _entropies(pipeline, batch), pipeline, size=2 * _CAPTIONS, benchmark=name
    )
    table = np.array(answers)
    lengths, *columns = table.T
    entropies_by_kind, images = dict(zip(KINDS, columns, strict=True)), np.array([image for _, image in captions])
    rows = [
        entropy_row(lengths, entropies_by_kind, images, rows_in_bin) for rows_in_bin in quantile_bins(lengths, bins)
    ]
    largest = float(np.log(paper_form(pipeline).components[1]))
    heads = [Column(f"entropy, {kind}", "", ".4f") for kind in KINDS]
    hard = [per_cent(f"hard, {kind}", f"hard, {kind} (%)") for kind in KINDS]
    plot_options: dict[str, Any] = {"x_label": "tokens", "y_label": "entropy, nats", "level": largest}
    shared: dict[str, Any] = {
        "signature": pipeline.signature,
        "facts": {"benchmark": name, "largest_possible": largest, "hard_below": HARD},
    }
    points = [dict(zip(("tokens", *KINDS), values, strict=True)) for values in table.tolist()]
    cloud = Plot(
        x="tokens", y=list(KINDS), title="responsibility entropy, caption by caption", points=True, **plot_options
    )
    return [Table(
        name="bins",
        title="Entropy of responsibilities by caption length in tokens",
        columns=[Column("tokens"), Column("captions"), *heads, *hard],
        rows=rows,
        notes=[f"entropy in nats, at most {largest:.3f}; hard: mean entropy of a caption's tokens below {HARD} nats"],
        plots=[Plot(x="middle", y=[head.name for head in heads], title="mean by length", **plot_options)],
        **shared,
    ), Table(name="captions", rows=points, plots=[cloud], **shared)]  # fmt: skip


def distinct_captions(items: Sequence[Item], limit: int | None) -> list[Caption]:
    """Return the distinct captions of a benchmark, at most `limit` of them, equally spaced."""
    images: dict[str, str] = {}
    for item, name in zip(items, clusters(items).tolist(), strict=True):
        for text in item.captions:
            images.setdefault(text, name)
    if not images:
        raise InputError("expected a benchmark with captions, got none")
    captions = list(images.items())
    return (
        captions
        if limit is None
        else [captions[index * len(captions) // limit] for index in range(min(limit, len(captions)))]
    )


def text_responsibilities(texts: Embedded, form: PaperMixture) -> tuple[Responsibilities, Bool[Tensor, "batch points"]]:
    """Return the responsibilities of each caption's components for its tokens, and the token mask."""
    points, mask = (torch.as_tensor(values) for values in (texts.vectors.points, texts.vectors.mask))
    keys = torch.tensor(texts.keys, dtype=torch.int64, device=points.device)
    vectors = replace(texts.vectors, points=real_points(points, mask), mask=mask, keys=keys)
    side = lifted(vectors, form.mixture)
    mixture = fit_lifted(side, form.text_fit, form.mixture)
    logits = mixture.kappa * (mixture.means @ side.points.to(mixture.means.dtype).mT)
    return (logits + mixture.log_weights.unsqueeze(-1)).softmax(dim=1), mask


def entropies(responsibilities: Responsibilities, mask: Bool[Tensor, "batch points"]) -> Float[Tensor, " batch"]:
    r"""Return the mean entropy :math:`-\sum_k r_{nk}\log r_{nk}` of each caption's tokens, in nats.

    >>> halves = torch.full((1, 2, 3), 0.5)
    >>> entropies(halves, torch.ones(1, 3, dtype=torch.bool)).exp()
    tensor([2.])
    """
    token_entropies = -torch.special.xlogy(responsibilities, responsibilities).sum(dim=1).masked_fill(~mask, 0.0)
    return token_entropies.sum(dim=1) / mask.sum(dim=1).clamp_min(1)


def adjusted_rand(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    r"""Return the adjusted Rand index: 1 for equal clusterings up to labels, 0 on average for random ones.

    .. math:: \frac{\sum_{ij}\binom{n_{ij}}{2} - e}{\tfrac12(a + b) - e}, \quad e = ab / \binom{n}{2}

    with a and b the sums of :math:`\binom{\cdot}{2}` over the clusters of either side (Hubert and Arabie, Journal of
    Classification 2, 1985). For the few tokens of a caption it is 18 times as fast as scikit-learn.

    >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0]), round(adjusted_rand([0, 0, 1, 1], [0, 1, 0, 1]), 2)
    (1.0, -0.5)
    """
    first_labels, second_labels = (np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (first, second))
    table = np.zeros((int(first_labels.max()) + 1, int(second_labels.max()) + 1))
    np.add.at(table, (first_labels, second_labels), 1)
    sides = (table, table.sum(1), table.sum(0), table.sum(keepdims=True))
    both, rows, columns, all_pairs = (float((counts * (counts - 1) / 2).sum()) for counts in sides)
    expected, maximum = rows * columns / all_pairs if all_pairs else 0.0, (rows + columns) / 2
    # Two clusterings with a single cluster, or with only singletons, are equal.
    return 1.0 if maximum == expected else (both - expected) / (maximum - expected)


def entropy_row(
    lengths: Floats, entropies_by_kind: dict[str, Floats], images: npt.NDArray[np.str_], rows_in_bin: Any
) -> Row:
    """Return mean entropy and share of hard assignments by kind of mixture, for the chosen captions."""
    shortest, longest = int(lengths[rows_in_bin].min()), int(lengths[rows_in_bin].max())
    row: dict[str, Value] = {"tokens": f"{shortest} to {longest}", "shortest": shortest, "longest": longest,
                             "middle": (shortest + longest) / 2, "captions": len(rows_in_bin)}  # fmt: skip
    for kind, values in entropies_by_kind.items():
        hard = (values[rows_in_bin] < HARD).astype(float)
        row[f"entropy, {kind}"] = bootstrap_mean(values[rows_in_bin], clusters=images[rows_in_bin])
        row[f"hard, {kind}"] = bootstrap_share(hard, clusters=images[rows_in_bin])
    return row


def _clustering_tables(indices: Mapping[str, Sequence[float]], images: Sequence[str], **shared: Any) -> list[Table]:
    """Return the mean index of every distribution, and the sorted index of every caption."""
    rows: list[Row] = [
        {"mixture": name, "ari": bootstrap_mean(values, clusters=images), "deviation": float(np.std(values, ddof=1)),
         "captions": len(values)}
        for name, values in indices.items()
    ]  # fmt: skip
    points: list[Row] = [
        {"mixture": name, "share": share, "index": index}
        for name, values in indices.items()
        for share, index in zip(np.linspace(0, 1, len(values)).tolist(), sorted(values), strict=True)
    ]
    cloud = Plot(x="share", y=["index"], series="mixture", title="caption by caption", x_label="share of captions",
                 y_label="index", points=True)  # fmt: skip
    table = Table(
        name="clusterings",
        title="Adjusted Rand index of token clusterings between seeds, mean over captions",
        columns=[Column("mixture", "distribution"), Column("ari", "mean with 95 % interval", ".4f"),
                 Column("deviation", "standard deviation over captions", ".3f"), Column("captions")],
        rows=rows,
        plots=[Plot(x="mixture", y=["ari"], title="adjusted Rand index between seeds", y_label="index")],
        **shared,
    )  # fmt: skip
    return [table, Table(name="captions", rows=points, plots=[cloud], **shared)]


def _rand_indices(pipeline: Pipeline, captions: Sequence[Caption], seeds: int) -> list[list[float]]:
    """Return the mean index of each distribution over all pairs of seeds, for every caption."""
    texts = pipeline.embedder.texts([text for text, _ in captions]).require()
    columns = []
    for kind in MIXTURES.values():
        labels = []  # component of each real token, by seed and caption
        for seed in range(seeds):
            responsibilities, mask = text_responsibilities(
                texts, with_mixture(paper_form(pipeline), kind, init="sample", seed=seed)
            )
            assignments = responsibilities.argmax(dim=1)
            labels.append([row[real].tolist() for row, real in zip(assignments, mask, strict=True)])
        seed_pairs = [zip(first, second, strict=True) for first, second in combinations(labels, 2)]
        columns.append(
            [
                float(np.mean([adjusted_rand(*clusterings) for clusterings in row]))
                for row in zip(*seed_pairs, strict=True)
            ]
        )
    return [[column[texts.row(item)] for column in columns] for item in range(len(captions))]


def _entropies(pipeline: Pipeline, captions: Sequence[Caption]) -> list[list[float]]:
    """Return length and entropies of every caption."""
    texts = pipeline.embedder.texts([text for text, _ in captions]).require()
    columns = []
    for kind in KINDS.values():
        responsibilities, mask = text_responsibilities(texts, with_mixture(paper_form(pipeline), kind))
        columns.append(entropies(responsibilities.double(), mask).tolist())
    rows = list(zip(texts.vectors.lengths.tolist(), *columns, strict=True))
    return [list(rows[texts.row(item)]) for item in range(len(captions))]
