"""The paper's tuning protocol: scalar settings are selected once on held-out SugarCrepe pairs, then fixed.

Similarity, both divergences and the length of every caption are measured once per concentration; the score for each
choice of alpha, xi, L0 and tau_L is computed from them. Components are fixed a priori, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Floats, Ints, bootstrap_mean
from msdscore_lab.benchmarks.base import Pair, clusters
from msdscore_lab.benchmarks.results.result import items_of
from msdscore_lab.stats.differences import compare_means, draws_for, mean_values
from msdscore_lab.studies.ablations.pairs import LENGTH, uncertainties
from msdscore_lab.studies.ablations.sweep import PAIRS, named_variants, run_sweep
from msdscore_lab.studies.context import PAPER_FORM, Study, paper_form
from msdscore_lab.studies.table import Column, Table, Value, per_cent

Choice = tuple[float, ...]  # in the order of `GRID`
HELD_OUT = 1000  # pairs, paper
# The paper reports the selected values (20, 0.1, 0.2, 20, 3), but not its grid.
GRID: Mapping[str, tuple[float, ...]] = {
    "kappa": (10.0, 20.0, 40.0),
    "alpha": (0.02, 0.05, 0.1, 0.2, 0.5),
    "temperature": (0.05, 0.1, 0.2, 0.4, 0.8),
    "gate_center": (5.0, 10.0, 20.0, 40.0, 80.0),
    "gate_width": (1.0, 3.0, 6.0, 12.0),
}


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """Components of Soft-MSD, each of shape (pairs, 2) with the correct caption first."""

    similarity: Floats
    coverage: Floats
    support: Floats
    length: Floats

    def soft(self, choice: Choice) -> Floats:
        """Return Soft-MSD of both captions with these settings."""
        alpha, temperature, center, width = choice[1:]  # the parts are those of the first, kappa
        beta = 1 / (1 + np.exp(np.clip((self.length - center) / width, -500, 500)))
        divergence = beta * self.coverage + (1 - beta) * self.support
        soft: Floats = self.similarity - alpha * uncertainties(self.similarity, temperature)[:, None] * divergence
        return soft

    def correct(self, choice: Choice) -> Floats:
        """Return 1 if the correct caption has the higher Soft-MSD with these settings, else 0."""
        soft = self.soft(choice)
        is_correct: Floats = (soft[:, 0] > soft[:, 1]).astype(np.float64)
        return is_correct


def tune(study: Study, *, benchmark: Sequence[str] = PAIRS, held_out: int = HELD_OUT) -> list[Table]:
    """Select kappa, alpha, xi, L0 and tau_L on `held_out` random pairs, and evaluate the choice on the others."""
    name, pipeline = benchmark[-1], study.pipeline(PAPER_FORM)
    form = paper_form(pipeline)
    paper: Choice = (float(form.kappa), form.alpha, form.temperature, form.gate_center, form.gate_width)
    plan = study.plan(name, ("cosine", "coverage", "support", LENGTH), control=False)
    kappas = sorted({*GRID["kappa"], paper[0]})
    settings = {f"kappa={kappa:g}": {"kappa": kappa} for kappa in kappas}
    results = run_sweep(study, plan, named_variants(settings, pipeline.encoder, form))
    by_kappa = {
        kappa: ScoreParts(*(row.scores(label) for label in plan.metrics))
        for kappa, row in zip(kappas, results, strict=True)
    }
    row = results[kappas.index(paper[0])]
    items = items_of(row.table, row.result.kind)
    if not all(isinstance(item, Pair) for item in items):
        raise ConfigError(f"tuning needs pairs of a right and a wrong caption; {name} has other items")
    tuned_on, rest = split_pairs(by_kappa[paper[0]], name, held_out, study.seed)
    grid = (sorted({*values, current}) for values, current in zip(GRID.values(), paper, strict=True))
    accuracy = {choice: float(by_kappa[choice[0]].correct(choice)[tuned_on].mean()) for choice in product(*grid)}
    # Ties are broken in favour of the settings in use, then of the first in the grid.
    best = max(accuracy, key=lambda choice: (accuracy[choice], choice == paper))
    names, how = clusters(items), study.resampling
    correct = {choice: by_kappa[choice[0]].correct(choice) for choice in (best, paper)}
    rows: list[dict[str, Value]] = []
    for label, choice in (("chosen", best), ("in use", paper)):
        tuned, other = (
            bootstrap_mean(correct[choice][index], clusters=names[index], how=how) for index in (tuned_on, rest)
        )
        rows.append({"settings": label, **dict(zip(GRID, choice, strict=True)), "tuned": tuned, "rest": other})
    gain = correct[best][rest] - correct[paper][rest]
    (tested,) = compare_means([mean_values([gain], names[rest])], how=draws_for(names[rest], study.seed))
    rows[0] |= {"difference": tested.intervals[0], "p": float(tested.p_values[0])}
    shared = row.about("coverage", held_out=len(tuned_on), rest=len(rest), tried=len(accuracy))
    return [Table(
        name="choice",
        title=f"Soft-MSD on {name}: settings chosen on {len(tuned_on)} held-out pairs, evaluated on {len(rest)} others",
        columns=[Column("settings"), *(Column(setting) for setting in GRID), per_cent("tuned", "held-out pairs"),
                 per_cent("rest", "other pairs"), per_cent("difference", "difference on others", signed=True),
                 Column("p", "p", "p")],
        rows=rows, **shared,
    )]  # fmt: skip


def split_pairs(parts: ScoreParts, name: str, held_out: int, seed: int) -> tuple[Ints, Ints]:
    """Return the indices of `held_out` random pairs to tune on, and of the other pairs that could be scored."""
    scored = np.flatnonzero(~np.isnan(np.hstack([parts.similarity, parts.coverage, parts.support])).any(axis=1))
    if len(scored) <= held_out:
        raise InputError(
            f"{len(scored)} pairs of {name} could be scored and {held_out} are held out: none remains for evaluation; "
            "lower --held-out"
        )
    shuffled = np.random.default_rng(seed).permutation(scored)
    return np.sort(shuffled[:held_out]), np.sort(shuffled[held_out:])
