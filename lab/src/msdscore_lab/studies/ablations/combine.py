"""MSD and a judge: accuracy when they disagree, and a calibrated combination of both.

The combination is a logistic fit on one half of the images; all figures are on the other half.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Floats, Ints, Resampling
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.stats.resample import bootstrap_share, paired_difference
from msdscore_lab.studies.ablations.pairs import LENGTH, decided_pairs
from msdscore_lab.studies.ablations.sweep import PAIRS, VariantResult, run_once
from msdscore_lab.studies.context import PAPER, Study
from msdscore_lab.studies.table import Column, Row, Table, per_cent

SCORE = "soft-msd"
_RIDGE = 1e-3  # weights stay finite if one metric separates the pairs
_STEPS = 50  # maximum number of Newton steps; fewer than ten are needed


def judge_msd(study: Study, *, benchmark: Sequence[str] = PAIRS, metric: Sequence[str] = ()) -> list[Table]:
    """Compare Soft-MSD with a judge (`-m judge:MODEL`, `-m file:VERDICTS.jsonl`), and combine both."""
    if len(metric) != 1:
        raise ConfigError(
            f"expected one metric to combine with Soft-MSD, as in -m judge:MODEL or -m file:VERDICTS.jsonl, "
            f"got {len(metric)}"
        )
    pipeline, other, tables = study.pipeline(PAPER), metric[0], []
    for name in benchmark:
        plan = study.plan(name, (SCORE, other, LENGTH), control=False)
        row = run_once(study, plan, Pipeline(pipeline.encoder, study.form(pipeline, name)))
        tables += _tables(row, other, study.resampling)
    return tables


def _tables(row: VariantResult, other: str, how: Resampling) -> list[Table]:
    title, pairs = row.result.title, decided_pairs(row, (SCORE, other))
    fitted, rest = halves(pairs.cluster, how.seed)
    gaps = np.stack([pairs.scores[label][:, 0] - pairs.scores[label][:, 1] for label in (SCORE, other)], axis=1)
    spread = gaps[fitted].std(axis=0)
    gaps = gaps / np.where(spread > 0, spread, 1.0)
    weights = logistic_weights(gaps[fitted])
    differences = {SCORE: gaps[:, 0], other: gaps[:, 1], "combined": gaps @ weights}
    credit = {label: 0.5 + 0.5 * np.sign(values) for label, values in differences.items()}  # a tie is one half
    names = pairs.cluster[rest]
    rows: list[Row] = [
        {"metric": label, "accuracy": bootstrap_share(correct[rest], clusters=names, how=how),
         "gain": None if label != "combined" else paired_difference(correct[rest], credit[other][rest], clusters=names,
                                                                   how=how)}
        for label, correct in credit.items()
    ]  # fmt: skip
    agree = np.sign(gaps[rest, 0]) == np.sign(gaps[rest, 1])
    cases: list[Row] = [
        {
            "pairs": name,
            "count": len(selected),
            **{label: float(correct[selected].mean()) for label, correct in credit.items()},
        }
        for name, selected in (("both choose alike", rest[agree]), ("they disagree", rest[~agree]))
        if len(selected)
    ]
    fit = dict(zip((SCORE, other), weights.tolist(), strict=True))
    about = row.about(SCORE, weights=fit, fitted=len(fitted), rest=len(rest))
    return [Table(
        name="combined", title=f"{title}: Soft-MSD, {other} and both, {len(rest)} pairs of images not fitted on",
        columns=[Column("metric"), per_cent("accuracy"), per_cent("gain", f"combined − {other}", signed=True)],
        rows=rows, notes=[f"logistic weights of the standardised differences: {weights[0]:.2f} and {weights[1]:.2f}"],
        **about,
    ), Table(
        name="disagreement", title=f"{title}: accuracy when they agree, and when they disagree",
        columns=[Column("pairs"), Column("count"), *(per_cent(label) for label in credit)], rows=cases, **about,
    )]  # fmt: skip


def halves(cluster: npt.NDArray[np.str_], seed: int) -> tuple[Ints, Ints]:
    """Return the indices of the pairs of one half of the images, drawn by `seed`, and of the other half."""
    names = np.unique(cluster)
    if len(names) < 4:
        raise InputError(
            f"expected pairs of at least 4 images, one half for the fit and one for the evaluation, got {len(names)}"
        )
    selected = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    is_selected = np.isin(cluster, selected)
    return np.flatnonzero(is_selected), np.flatnonzero(~is_selected)


def logistic_weights(gaps: Floats) -> Floats:
    r"""Weights w that maximise :math:`\sum_i \log\sigma(w \cdot g_i)` for differences (better − worse) g, L2-penalised.

    There is no intercept: swapping two captions must swap the choice.

    >>> bool((logistic_weights(np.array([[1.0, 0.0], [0.5, 0.0], [-0.2, 0.0]]))[0] > 0))
    True
    """
    weights = np.zeros(gaps.shape[1])
    for _ in range(_STEPS):
        wrong = 1 / (1 + np.exp(np.clip(gaps @ weights, -50, 50)))
        gradient = gaps.T @ wrong - _RIDGE * weights
        curvature = (gaps * (wrong * (1 - wrong))[:, None]).T @ gaps + _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            break
    return weights
