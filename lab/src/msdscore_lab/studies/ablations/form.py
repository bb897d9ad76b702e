"""Ablations of the evidence form: the form with one part changed, on every set, with paired differences.

Every pair is measured once; forms are functions of its similarity and of the values of its words. `balance` and `delta`
are also selected by leaving one set out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from msdscore.forms.evidence import Evidence, WordMeasurement, affirmed
from msdscore.intervals import Floats, Interval, Resampling
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import Item
from msdscore_lab.benchmarks.results.compare import Difference, Side, compare_sides
from msdscore_lab.benchmarks.run.cases import ItemBatch, item_batches
from msdscore_lab.studies.ablations.sweep import VariantResult, run_once
from msdscore_lab.studies.context import Study, measure_readable, require_bank
from msdscore_lab.studies.table import Column, Plot, Row, Table, Value

SETS = ("sugarcrepe", "flickr8k-expert", "thumb", "composite", "pascal50s", "long-captions", "rsicd")
# Values of the settings in the curves.
CURVES: Mapping[str, tuple[float, ...]] = {
    "balance": (0.0, 0.25, 0.5, 0.75, 1.0),
    "delta": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3),
}
FORM, BASELINE = "evidence", "cosine"
EXTRA_FIGURES = {"pairs/matched length": "equal length"}  # besides the headline; each is shown as a separate set
_IMAGES = 32  # per batch


@dataclass(frozen=True, slots=True)
class Words:
    """Inputs of a form: the similarity of a pair, the share of affirmed words, and values of the judged words.

    `settled` are the log-odds above which a word adds no penalty.
    """

    similarity: float
    affirmed: float
    margins: Floats
    weights: Floats
    odds: Floats
    settled: Floats


ScoreFunction = Callable[[Words], float]


def form(study: Study, *, benchmark: Sequence[str] = SETS) -> list[Table]:
    """Compare the form in use with variants that change one part, on every set; curves of `balance` and `delta`."""
    present = study.present(benchmark)
    pipeline = study.pipeline()
    settings, spread = pipeline.form, require_bank(pipeline, "words").spread
    assert isinstance(settings, Evidence), "only the evidence form has words"
    forms = ablations(settings, spread)
    curve_forms = {
        _label(name, value): score_function(settings.changed(**{name: value}), spread)
        for name, values in CURVES.items()
        for value in values
    }
    against = dict.fromkeys(forms, FORM) | dict.fromkeys(curve_forms, BASELINE)
    differences: dict[str, dict[str, Difference]] = {}
    for name in present:
        run = run_once(study, study.plan(name, [BASELINE], control=False), pipeline)
        differences |= _compare(
            name, run, _scores(study, pipeline, name, run, forms | curve_forms), study.resampling, against
        )
    tables = [_ablation_table(differences, forms), *(_curve_table(differences, name) for name in CURVES)]
    tables.append(_left_out_table(differences, {name: getattr(settings, name) for name in CURVES}))
    return [replace(table, signature=pipeline.signature) for table in tables]


def ablations(settings: Evidence, spread: float) -> dict[str, ScoreFunction]:
    """Return the form in use, the cosine, and the form with one part changed."""
    full = score_function(settings, spread)
    return {
        FORM: full,
        BASELINE: lambda words: words.similarity,
        "without penalty": score_function(settings.changed(delta=0.0), spread),
        "penalty without its factor": lambda words: (
            full(words) + settings.delta * (penalty(words) - penalty(words, factor=False))
        ),
        "without negation": lambda words: full(replace(words, affirmed=1.0)),
        "precision alone": score_function(settings.changed(balance=0.0), spread),
        "information alone": score_function(settings.changed(balance=1.0), spread),
        "words of equal weight": lambda words: full(replace(words, weights=(words.weights > 0).astype(np.float64))),
        "without similarity": lambda words: full(words) - words.similarity + negation(words),
    }


def score_function(settings: Evidence, spread: float) -> ScoreFunction:
    """Return the score with these settings as a function of `Words`."""
    first, second = settings.weights
    return lambda words: (
        words.similarity
        - negation(words)
        + first * precision(words)
        + second * information(words, spread)
        - settings.delta * penalty(words)
    )


def negation(words: Words) -> float:
    """Return the reduction of a positive similarity by negated words."""
    return (1 - words.affirmed) * max(words.similarity, 0.0)


def precision(words: Words) -> float:
    """Return the weighted mean of margins."""
    total = float(words.weights.sum())
    return float(words.weights @ words.margins) / total if total else 0.0


def information(words: Words, spread: float) -> float:
    """Return the weighted sum of margins in units of its standard deviation."""
    length = float(np.sqrt((words.weights**2).sum()))
    return float(words.weights @ words.margins) / (spread * length) if length else 0.0


def penalty(words: Words, *, factor: bool = True) -> float:
    """Return the summed deficits of words below the settled log-odds, times the probability of the caption."""
    total = float(words.weights.sum())
    if total == 0:
        return 0.0
    probability = 1 / (1 + np.exp(-float(words.weights @ words.odds) / total)) if factor else 1.0
    return float(probability * (words.weights @ (words.settled - words.odds).clip(min=0)))


def _scores(
    study: Study, pipeline: Pipeline, name: str, run: VariantResult, forms: Mapping[str, ScoreFunction]
) -> dict[str, list[list[float]]]:
    """Return the scores of every form: one list per item of a benchmark run, with one score per caption."""
    items = {item.id: item for item in study.items(name)}
    run_items = [items[key] for key in run.table["id"].to_pylist()]
    batches = list(item_batches(run_items, seed=study.seed, control=False, size=_IMAGES))
    scores = {label: [[np.nan] * len(item.captions) for item in run_items] for label in forms}
    answers = study.run(
        f"forms-{name}", batches, lambda _, batch: _measure(pipeline, run_items, batch), pipeline, benchmark=name
    )
    for item, caption, similarity, share, *word_values in chain.from_iterable(answers):
        words = Words(similarity, share, *map(np.array, word_values))
        for label, score in forms.items():
            scores[label][item][caption] = score(words)
    return scores


def _measure(
    pipeline: Pipeline, items: Sequence[Item], batch: ItemBatch
) -> list[tuple[int, int, float, float, *tuple[list[float], ...]]]:
    """Return item and index of every caption that can be measured, and the fields of its `Words`."""
    row_of: dict[str, int] = {}
    cells = [
        (item, caption, owner, row_of.setdefault(text, len(row_of)))
        for item, owner in zip(batch.items, batch.owner, strict=True)
        for caption, text in enumerate(items[item].captions)
    ]
    readable, measured = measure_readable(pipeline, batch.images, list(row_of), [cell[2:] for cell in cells])
    if measured is None:
        return []
    words: WordMeasurement = measured.terms
    affirmed_shares, (margins, odds, settled) = affirmed(words.spoken).tolist(), words.sides
    answers = []
    for pair, (item, caption, *_) in enumerate(cells[cell] for cell in readable):
        count = len(words.judged[pair])
        word_values = [side[pair, :count].tolist() for side in (margins, words.weights, odds, settled)]
        answers.append((item, caption, float(measured.similarity[pair]), affirmed_shares[pair], *word_values))
    return answers


def _compare(
    name: str, run: VariantResult, scores: Mapping[str, list[list[float]]], how: Resampling, against: Mapping[str, str]
) -> dict[str, dict[str, Difference]]:
    """Compare the headline and `EXTRA_FIGURES` of every form with those of another form, by set."""
    table, metric = run.table, run.result.metric(BASELINE)
    sides = {}
    for label, values in scores.items():
        column = pa.array(values, pa.list_(pa.float64()))
        without_label = table.drop_columns([label]) if label in table.column_names else table
        sides[label] = Side(run.result, replace(metric, label=label), without_label.append_column(label, column))
    differences: dict[str, dict[str, Difference]] = {}
    for label, other in against.items():
        first, *others = compare_sides(sides[label], sides[other], how=how).differences
        differences.setdefault(name, {})[label] = first
        for difference in others:
            if difference.name in EXTRA_FIGURES:
                differences.setdefault(f"{name}, {EXTRA_FIGURES[difference.name]}", {})[label] = difference
    return differences


def _label(name: str, value: float) -> str:
    return f"{name} {value:g}"


def _ablation_table(by_set: Mapping[str, Mapping[str, Difference]], forms: Mapping[str, ScoreFunction]) -> Table:
    rows, others = list[Row](), [label for label in forms if label != FORM]
    for name, differences in by_set.items():
        baseline = differences[FORM]
        row: dict[str, Value] = {
            "set": name,
            "figure": baseline.name,
            "n": baseline.n,
            FORM: baseline.scale * baseline.first,
        }
        for label in others:
            row |= {label: _scaled(differences[label]), f"{label}, p": differences[label].tests[0].p_value}
        rows.append(row)
    return Table(
        name="ablation",
        title="The evidence form, and what changes with one part of it (points, 95 % interval over images)",
        columns=[Column("set"), Column("figure"), Column("n"), Column(FORM, "", ".1f"),
                 *(Column(label, "", "+.1f") for label in others)],
        rows=rows,
        notes=["other columns are paired differences from the form in use; below 0, the change is worse"],
    )  # fmt: skip


def _curve_table(by_set: Mapping[str, Mapping[str, Difference]], setting: str) -> Table:
    """Return the gain over the cosine by value of a setting, on every set and on average."""
    rows: list[Row] = []
    for value in CURVES[setting]:
        at_value = {name: differences[_label(setting, value)] for name, differences in by_set.items()}
        rows += [
            {"set": name, setting: value, "score": difference.scale * difference.first, "gain": _scaled(difference)}
            for name, difference in at_value.items()
        ]
        rows.append(
            {
                "set": "mean",
                setting: value,
                "gain": float(np.mean([_scaled(difference).value for difference in at_value.values()])),
            }
        )
    axis_labels = {"balance": "balance (0: precision, 1: information)", "delta": "delta, the weight of the penalty"}
    plot = Plot(x=setting, y=["gain"], series="set", title=f"evidence form along {setting}", level=0.0,
                x_label=axis_labels[setting], y_label="points above cosine")  # fmt: skip
    columns = [Column("set"), Column(setting), Column("score", "", ".1f"), Column("gain", "minus cosine", "+.1f")]
    return Table(name=setting, title=f"The evidence form along {setting}", columns=columns, rows=rows, plots=[plot])


def _left_out_table(by_set: Mapping[str, Mapping[str, Difference]], used: Mapping[str, float]) -> Table:
    """Return the value of each setting with the best mean gain on the other sets, and its gain on this set."""
    rows: list[Row] = []
    for setting, values in CURVES.items():
        gains = {
            name: [_scaled(differences[_label(setting, value)]).value for value in values]
            for name, differences in by_set.items()
        }
        for name, set_gains in gains.items():
            # Figures of one benchmark are excluded together.
            others = [other for other in gains if other.partition(",")[0] != name.partition(",")[0]] or [name]
            best = int(np.argmax([np.mean([gains[other][index] for other in others]) for index in range(len(values))]))
            rows.append(
                {
                    "setting": setting,
                    "set": name,
                    "chosen": values[best],
                    "gain": set_gains[best],
                    "best": max(set_gains),
                }
            )
    columns = [Column("setting"), Column("set", "set left out"), Column("chosen", "chosen by the others"),
               Column("gain", "minus cosine", "+.1f"), Column("best", "at its own best", "+.1f")]  # fmt: skip
    in_use = ", ".join(f"{name} {value:g}" for name, value in used.items())
    return Table(name="left_out", title="Settings chosen with one set left out", columns=columns, rows=rows,
                 notes=[f"in use: {in_use}"])  # fmt: skip


def _scaled(difference: Difference) -> Interval:
    """Return the difference with its interval, in the unit of the figure."""
    scale, interval = difference.scale, difference.interval
    value = scale * (difference.first - difference.second)
    return replace(interval, value=value, low=scale * interval.low, high=scale * interval.high)
