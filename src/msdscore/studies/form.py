"""What each part of the evidence form is worth: the form with one thing changed, on every set, item by item.

Every pair is measured once; forms are functions of its similarity and of the margins and weights of its words, so that
any number of them costs one run. `balance` is chosen with one set left out in turns, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msdscore.benchmarks.base import Item
from msdscore.benchmarks.results.compare import Difference, Side, compare_sides
from msdscore.benchmarks.run.cases import ItemBatch, item_batches
from msdscore.core.evidence import Evidence
from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Resampling
from msdscore.studies.context import Study, measure_readable
from msdscore.studies.sweep import Variant, VariantResult, run_sweep
from msdscore.studies.table import Column, Plot, Row, Table, Value

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

    def measure(_: int, batch: ItemBatch) -> list[tuple[int, list[tuple[float, list[float], list[float]] | None]]]:
        return _measure(pipeline, chosen, batch)

    batches = list(item_batches(chosen, seed=study.seed, control=False, size=_IMAGES))
    scores = {label: [[np.nan] * len(item.captions) for item in chosen] for label in forms}
    for answer in study.run(f"form-{name}", batches, measure, pipeline, benchmark=name):
        for item, captions in answer:
            for number, values in enumerate(captions):
                if values is not None:
                    words = Words(values[0], np.array(values[1]), np.array(values[2]))
                    for label, of in forms.items():
                        scores[label][item][number] = of(words)
    return scores


def _measure(
    pipeline: Pipeline, items: Sequence[Item], batch: ItemBatch
) -> list[tuple[int, list[tuple[float, list[float], list[float]] | None]]]:
    """For every item the similarity, margins and weights of each caption; None where it could not be measured."""
    row_of: dict[str, int] = {}
    cells = [
        (at, number, owner, row_of.setdefault(text, len(row_of)))
        for at, (item, owner) in enumerate(zip(batch.items, batch.owner, strict=True))
        for number, text in enumerate(items[item].captions)
    ]
    answers: list[tuple[int, list[tuple[float, list[float], list[float]] | None]]] = [
        (item, [None] * len(items[item].captions)) for item in batch.items
    ]
    readable, measured = measure_readable(pipeline, batch.images, list(row_of), [cell[2:] for cell in cells])
    if measured is None:
        return answers
    assert measured.words is not None, "measured by the evidence form"
    margins, weights = measured.words.margin.cpu(), measured.words.index.weights
    for pair, (at, number, _, _) in enumerate(cells[cell] for cell in readable):
        count = len(measured.words.judged[pair])
        local = margins[pair, :count].tolist(), weights[pair, :count].tolist()
        answers[at][1][number] = (float(measured.similarity[pair]), *local)
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
    rows: list[Row] = []
    for name, differences in heads.items():
        scale = differences[FORM].scale
        row: dict[str, Value] = {"set": name, "figure": differences[FORM].name, "n": differences[FORM].n}
        row[FORM] = scale * differences[FORM].first
        for label in forms:
            if label != FORM:
                row[label] = _scaled(differences[label])
                row[f"{label}, p"] = differences[label].tests[0].p_value
        rows.append(row)
    others = [Column(label, "", "+.1f") for label in forms if label != FORM]
    return Table(
        name="ablation",
        title="The evidence form, and what changes with one part of it (points, 95 % interval over images)",
        columns=[Column("set"), Column("figure"), Column("n"), Column(FORM, "", ".1f"), *others],
        rows=rows,
        notes=["columns after the first are paired differences from the form in use: below 0, the change costs"],
    )


def _balance_table(heads: Mapping[str, Mapping[str, Difference]]) -> Table:
    rows: list[Row] = [
        {"set": name, "balance": value, "score": differences[f"balance {value:g}"].scale
         * differences[f"balance {value:g}"].first, "gain": _scaled(differences[f"balance {value:g}"])}
        for name, differences in heads.items()
        for value in BALANCES
    ]  # fmt: skip
    plot = Plot(x="balance", y=["gain"], series="set", title="evidence form along balance", level=0.0,
                x_label="balance (0: precision, 1: information)", y_label="points above cosine")  # fmt: skip
    columns = [Column("set"), Column("balance"), Column("score", "", ".1f"), Column("gain", "less cosine", "+.1f")]
    return Table(name="balance", title="The evidence form along balance", columns=columns, rows=rows, plots=[plot])


def _left_out_table(heads: Mapping[str, Mapping[str, Difference]], used: float) -> Table:
    """The balance that the other sets would choose, by their mean gain over the cosine, and what it gives."""

    def gain(name: str, value: float) -> float:
        difference = heads[name][f"balance {value:g}"]
        return difference.scale * (difference.first - difference.second)

    rows: list[Row] = []
    for name in heads:
        others = [other for other in heads if other != name] or [name]
        chosen = max(BALANCES, key=lambda value, others=others: float(np.mean([gain(o, value) for o in others])))  # type: ignore[misc]
        rows.append(
            {"set": name, "balance": chosen, "gain": gain(name, chosen), "best": max(gain(name, v) for v in BALANCES)}
        )
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
