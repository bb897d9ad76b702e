"""Scores of metrics as table columns: by portion while a run goes on, by item when it is done."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.run.cases import FilledCases
from msdscore.benchmarks.run.portions import Portion
from msdscore.errors import RunError
from msdscore.metrics.base import Cases, Floats, Metric

WRONG = "@wrong"  # behind a metric's label: its scores with the wrong pictures
FACT = "#"  # between a metric's label and the name of a fact
_NUMBERS = pa.list_(pa.float64())


def part_table(portion: Portion, metrics: Sequence[Metric], filled: FilledCases) -> pa.Table:
    """The scores of one portion, with each item's number in the benchmark."""
    columns: dict[str, Any] = {
        "item": pa.array(portion.items, pa.int64()),
        "error": pa.array([filled.errors.get(place) for place in range(len(portion.items))], pa.string()),
    }
    return pa.table(columns | _scores(metrics, filled.batch))


def corpus_columns(portion: Portion, metrics: Sequence[Metric], batch: Cases) -> dict[str, pa.Array]:
    """The columns of metrics that look at all items together, in the order of the items."""
    order = np.argsort(np.array(portion.items, dtype=np.int64), kind="stable")
    return {name: column.take(pa.array(order)) for name, column in _scores(metrics, batch).items()}


def item_columns(parts: Iterable[pa.Table], count: int) -> dict[str, pa.Array]:
    """The columns of all parts joined, in the order of the items."""
    table = pa.concat_tables(list(parts))
    order = np.argsort(table.column("item").to_numpy(), kind="stable")
    if len(order) != count:
        raise RunError(f"the parts hold {len(order)} items, expected {count}; run again with --overwrite")
    table = table.drop_columns(["item"]).take(pa.array(order))
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def score_matrix(table: pa.Table, label: str, *, wrong: bool = False) -> Floats | None:
    """The scores (items, candidates) of a metric, or None where the table has none."""
    name = label + WRONG if wrong else label
    if name not in table.column_names:
        return None
    column = table.column(name).combine_chunks()
    values: Floats = column.values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return values


def fact_sums(table: pa.Table, label: str) -> dict[str, float]:
    """The sums of a metric's facts."""
    head = label + FACT
    names = [name for name in table.column_names if name.startswith(head)]
    return {name.removeprefix(head): float(np.nansum(table.column(name).to_numpy())) for name in names}


def _scores(metrics: Sequence[Metric], batch: Cases) -> dict[str, pa.Array]:
    """Two columns a metric, true and wrong; facts are summed over both, since both are paid for."""
    columns: dict[str, pa.Array] = {}
    true, wrong = np.flatnonzero(~batch.control), np.flatnonzero(batch.control)
    for metric in metrics:
        scored = metric.score(batch)
        columns[metric.label] = pa.array(scored.values[true].tolist(), _NUMBERS)
        if len(wrong):
            columns[metric.label + WRONG] = pa.array(scored.values[wrong].tolist(), _NUMBERS)
        for name, fact in scored.facts.items():
            total = fact[true] + fact[wrong] if len(wrong) else fact[true]
            columns[f"{metric.label}{FACT}{name}"] = pa.array(total, pa.float64())
    return columns
