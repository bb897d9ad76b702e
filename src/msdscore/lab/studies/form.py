"""What each part of the evidence form is worth: the form with one thing changed, on every set, item by item.

Every pair is measured once; forms are functions of its similarity and of the margins and weights of its words, so that
any number of them costs one run. `balance` is chosen with one set left out in turns, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msdscore.errors import ConfigError
from msdscore.forms.evidence import Evidence, WordMeasurement
from msdscore.intervals import Resampling
from msdscore.lab.benchmarks.base import Item
from msdscore.lab.benchmarks.results.compare import Difference, Side, compare_sides
from msdscore.lab.benchmarks.run.cases import ItemBatch, item_batches
from msdscore.lab.studies.context import Study, measure_readable
from msdscore.lab.studies.sweep import Variant, VariantResult, run_sweep
from msdscore.lab.studies.table import Column, Plot, Row, Table, Value
from msdscore.scoring.pipeline import Pipeline

Floats = npt.NDArray[np.float64]
SETS = ("sugarcrepe", "flickr8k-expert", "thumb", "composite", "pascal50s", "long-captions", "rsicd")
BALANCES = tuple(step / 8 for step in range(9))
FORM, BASELINE = "evidence", "cosine"
_IMAGES = 32  # of a batch


@dataclass(frozen=True, slots=True)
class Words:
    """What a form is made from: the similarity of a pair, and the margins and weights of its judged words."""

    similarity: float
    margins: Floats
    weights: Floats


FormOf = Callable[[Words], float]


def form(study: Study, *, benchmark: Sequence[str] = SETS, samples: int = 1000) -> list[Table]:
    """The form in use against the form with one part changed, on every set; and `balance` from 0 to 1."""
    present = study.present(benchmark)
    pipeline = study.pipeline()
    settings, bank = pipeline.config, pipeline.bank
    if not isinstance(settings, Evidence) or bank is None or bank.bank.words is None:
        raise ConfigError("this study is about the evidence form; choose its preset, and a bank: --preset evidence")
    forms = ablations(settings, bank.bank.words.spread)
    along = {f"balance {value:g}": balanced(settings, bank.bank.words.spread, value) for value in BALANCES}
    how = Resampling(samples=samples, seed=study.seed)
    heads: dict[str, dict[str, Difference]] = {}
    for name in present:
        plan = study.plan(name, [BASELINE], control=False, samples=samples)
        (run,) = run_sweep(study, plan, [Variant("settings", lambda: pipeline)])
        scores = _scores(study, pipeline, name, run, forms | along)
        heads[name] = _compare(run, scores, how, dict.fromkeys(forms, FORM) | dict.fromkeys(along, BASELINE))
    tables = [_ablation_table(heads, forms), _balance_table(heads), _left_out_table(heads, settings.balance)]
    return [replace(table, signature=pipeline.signature) for table in tables]


def ablations(settings: Evidence, spread: float) -> dict[str, FormOf]:
    """The form in use first, then the cosine, and the form with one part changed."""
    whole, (first, second) = balanced(settings, spread, settings.balance), settings.weights
    return {
        FORM: whole,
        BASELINE: lambda words: words.similarity,
        "precision alone": balanced(settings, spread, 0.0),
        "information alone": balanced(settings, spread, 1.0),
        "doubts as in a sentence": lambda words: (
            words.similarity + first * precision(words, sentence=3.0) + second * information(words, spread)
        ),
        "words of equal weight": lambda words: whole(replace(words, weights=(words.weights > 0).astype(np.float64))),
        "without similarity": lambda words: whole(words) - words.similarity,
    }


def balanced(settings: Evidence, spread: float, balance: float) -> FormOf:
    """The form in use with another balance."""
    first, second = settings.changed(balance=balance).weights
    return lambda words: words.similarity + first * precision(words) + second * information(words, spread)


def precision(words: Words, *, sentence: float = np.inf) -> float:
    """The weighted mean of margins; an ablation divides doubts by at most `sentence`, so that long captions hide none.

    >>> precision(Words(0.0, np.array([2.0, -1.0]), np.array([1.0, 3.0])), sentence=2.0)
    -1.0
    """
    total = float(words.weights.sum())
    if total == 0:
        return 0.0
    up, down = (float(words.weights @ side) for side in (words.margins.clip(min=0), words.margins.clip(max=0)))
    return up / total + down / min(total, sentence)


def information(words: Words, spread: float) -> float:
    """The sum of margins in units of its own spread.

    >>> information(Words(0.0, np.array([3.0, -1.0]), np.array([0.0, 1.0])), 0.5)
    -2.0
    """
    length = float(np.sqrt((words.weights**2).sum()))
    return float(words.weights @ words.margins) / (spread * length) if length else 0.0


def _scores(
    study: Study, pipeline: Pipeline, name: str, run: VariantResult, forms: Mapping[str, FormOf]
) -> dict[str, list[list[float]]]:
    """The scores of every form, one list per item of a benchmark run with one score per caption."""
    items = {item.id: item for item in study.items(name)}
    chosen = [items[key] for key in run.table["id"].to_pylist()]
    batches = list(item_batches(chosen, seed=study.seed, control=False, size=_IMAGES))
    scores = {label: [[np.nan] * len(item.captions) for item in chosen] for label in forms}
    answers = study.run(
        f"forms-{name}", batches, lambda _, batch: _measure(pipeline, chosen, batch), pipeline, benchmark=name
    )
    for item, number, similarity, *local in chain.from_iterable(answers):
        words = Words(similarity, *map(np.array, local))
        for label, of in forms.items():
            scores[label][item][number] = of(words)
    return scores


def _measure(
    pipeline: Pipeline, items: Sequence[Item], batch: ItemBatch
) -> list[tuple[int, int, float, list[float], list[float]]]:
    """Item, number of the caption, similarity, margins and weights of every caption that can be measured."""
    row_of: dict[str, int] = {}
    cells = [
        (item, number, owner, row_of.setdefault(text, len(row_of)))
        for item, owner in zip(batch.items, batch.owner, strict=True)
        for number, text in enumerate(items[item].captions)
    ]
    readable, measured = measure_readable(pipeline, batch.images, list(row_of), [cell[2:] for cell in cells])
    if measured is None:
        return []
    words: WordMeasurement = measured.terms
    margins, weights = words.margin, words.index.weights
    answers = []
    for pair, (item, number, *_) in enumerate(cells[cell] for cell in readable):
        count = len(words.judged[pair])
        local = margins[pair, :count].tolist(), weights[pair, :count].tolist()
        answers.append((item, number, float(measured.similarity[pair]), *local))
    return answers


def _compare(
    run: VariantResult, scores: Mapping[str, list[list[float]]], how: Resampling, against: Mapping[str, str]
) -> dict[str, Difference]:
    """The headline of every form against that of another one."""
    table, metric = run.table, run.result.metric(BASELINE)
    sides = {}
    for label, values in scores.items():
        column = pa.array(values, pa.list_(pa.float64()))
        own = table.drop_columns([label]) if label in table.column_names else table
        sides[label] = Side(run.result, replace(metric, label=label), own.append_column(label, column))
    return {
        label: compare_sides(sides[label], sides[other], how=how).differences[0] for label, other in against.items()
    }


def _ablation_table(heads: Mapping[str, Mapping[str, Difference]], forms: Mapping[str, FormOf]) -> Table:
    rows, others = list[Row](), [label for label in forms if label != FORM]
    for name, differences in heads.items():
        own = differences[FORM]
        row: dict[str, Value] = {"set": name, "figure": own.name, "n": own.n, FORM: own.scale * own.first}
        for label in others:
            row |= {label: _scaled(differences[label]), f"{label}, p": differences[label].tests[0].p_value}
        rows.append(row)
    return Table(
        name="ablation",
        title="The evidence form, and what changes with one part of it (points, 95 % interval over images)",
        columns=[Column("set"), Column("figure"), Column("n"), Column(FORM, "", ".1f"),
                 *(Column(label, "", "+.1f") for label in others)],
        rows=rows,
        notes=["columns after the first are paired differences from the form in use: below 0, the change costs"],
    )  # fmt: skip


def _balance_table(heads: Mapping[str, Mapping[str, Difference]]) -> Table:
    rows: list[Row] = [
        {"set": name, "balance": value, "score": own.scale * own.first, "gain": _scaled(own)}
        for name, differences in heads.items()
        for value in BALANCES
        for own in [differences[f"balance {value:g}"]]
    ]
    plot = Plot(x="balance", y=["gain"], series="set", title="evidence form along balance", level=0.0,
                x_label="balance (0: precision, 1: information)", y_label="points above cosine")  # fmt: skip
    columns = [Column("set"), Column("balance"), Column("score", "", ".1f"), Column("gain", "less cosine", "+.1f")]
    return Table(name="balance", title="The evidence form along balance", columns=columns, rows=rows, plots=[plot])


def _left_out_table(heads: Mapping[str, Mapping[str, Difference]], used: float) -> Table:
    """The balance that the other sets would choose, by their mean gain over the cosine, and what it gives."""
    gains = {
        name: [own.scale * (own.first - own.second) for own in (differences[f"balance {v:g}"] for v in BALANCES)]
        for name, differences in heads.items()
    }
    rows: list[Row] = []
    for name, own in gains.items():
        others = [other for other in gains if other != name] or [name]
        best = int(np.argmax([np.mean([gains[other][at] for other in others]) for at in range(len(BALANCES))]))
        rows.append({"set": name, "balance": BALANCES[best], "gain": own[best], "best": max(own)})
    columns = [Column("set", "set left out"), Column("balance", "chosen by the others"),
               Column("gain", "less cosine", "+.1f"), Column("best", "at its own best", "+.1f")]  # fmt: skip
    return Table(name="left_out", title="Balance with one set left out in turns", columns=columns, rows=rows,
                 notes=[f"in use: {used:g}"])  # fmt: skip


def _scaled(difference: Difference) -> Value:
    interval = difference.interval
    value, low, high = (
        difference.scale * x for x in (difference.first - difference.second, interval.low, interval.high)
    )
    return replace(interval, value=value, low=low, high=high)
