"""The table of scores: one row per item with what people said, the scores of every metric, and why one failed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from msdscore.benchmarks.base import Aspect, Battle, Item, Kind, Pair, Rated, Scale, picture_key, picture_names
from msdscore.metrics.base import Cases, Floats, Metric

WRONG = "@wrong"  # behind a metric's label: its scores with the wrong pictures
FACT = "#"  # between a metric's label and the name of a fact
_NUMBERS = pa.list_(pa.float64())
_LEFT_OUT = ("id", "image", "subset", "references", "positive", "negative", "caption", "caption_a", "caption_b")


def item_table(items: Sequence[Item]) -> pa.Table:
    """One row per item: id, picture name, subset, captions, and what people said as JSON."""
    names = picture_names(item.image for item in items)
    return pa.table({
        "id": pa.array([item.id for item in items], pa.string()),
        "picture": pa.array([names[picture_key(item.image)] for item in items], pa.string()),
        "subset": pa.array([item.subset for item in items], pa.string()),
        "captions": pa.array([list(item.captions) for item in items], pa.list_(pa.string())),
        "judged": pa.array([_judged(item) for item in items], pa.string()),
    })  # fmt: skip


def items_of(table: pa.Table, kind: Kind) -> tuple[Item, ...]:
    """The items of a table, without references."""
    return tuple(_MAKE[kind](row, Path(row["picture"]), json.loads(row["judged"])) for row in table.to_pylist())


def _judged(item: Item) -> str:
    values = {name: value for name, value in asdict(item).items() if name not in _LEFT_OUT}
    return json.dumps(values, ensure_ascii=False)


def _pair(row: dict[str, Any], picture: Path, judged: dict[str, Any]) -> Pair:
    positive, negative = row["captions"]
    return Pair(row["id"], picture, positive, negative, subset=row["subset"], votes=tuple(judged["votes"]))


def _rated(row: dict[str, Any], picture: Path, judged: dict[str, Any]) -> Rated:
    scales = tuple(Scale(**scale) for scale in judged["scales"])
    ratings, system = tuple(judged["ratings"]), judged["system"]
    return Rated(row["id"], picture, row["captions"][0], ratings, subset=row["subset"], system=system, scales=scales)


def _battle(row: dict[str, Any], picture: Path, judged: dict[str, Any]) -> Battle:
    aspects = tuple(Aspect(**aspect) for aspect in judged.pop("aspects"))
    captions = row["captions"]
    texts = {"caption_a": captions[0], "caption_b": captions[1], "subset": row["subset"]}
    return Battle(id=row["id"], image=picture, aspects=aspects, **texts, **judged)


_MAKE: dict[Kind, Any] = {"pairs": _pair, "rated": _rated, "battles": _battle}


def score_columns(metrics: Sequence[Metric], cases: Cases) -> dict[str, pa.Array]:
    """Two columns per metric, true and wrong; facts are summed over both, since both are paid for."""
    columns: dict[str, pa.Array] = {}
    true, wrong = np.flatnonzero(~cases.control), np.flatnonzero(cases.control)
    for metric in metrics:
        scored = metric.score(cases)
        columns[metric.label] = pa.array(scored.values[true].tolist(), _NUMBERS)
        if len(wrong):
            columns[metric.label + WRONG] = pa.array(scored.values[wrong].tolist(), _NUMBERS)
        for name, fact in scored.facts.items():
            total = fact[true] + fact[wrong] if len(wrong) else fact[true]
            columns[f"{metric.label}{FACT}{name}"] = pa.array(total, pa.float64())
    return columns


def belongs_to(column: str, label: str) -> bool:
    """Whether a column holds scores or facts of the metric with this label."""
    return column in (label, label + WRONG) or column.startswith(label + FACT)


def joined_columns(parts: Iterable[pa.Table], earlier: Mapping[str, Sequence[Any]], count: int) -> dict[str, list[Any]]:
    """Columns over all items from those of an earlier run and from parts, which know better."""
    found = {name: list(values) for name, values in earlier.items()}
    for part in parts:
        places = part.column("item").to_pylist()
        for name in part.column_names:
            if name == "item":
                continue
            column = found.setdefault(name, [None] * count)
            for place, value in zip(places, part.column(name).to_pylist(), strict=True):
                column[place] = value
    return found


def scores_table(items: Sequence[Item], columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Items with their columns; an item without a score has NaN."""
    table = item_table(items)
    width = len(items[0].captions)
    for name, values in columns.items():
        if name in ("error", "stranger", "stamp"):
            table = table.append_column(name, pa.array(values, pa.string()))
        elif FACT in name and not any(isinstance(value, list) for value in values):
            table = table.append_column(name, pa.array(values, pa.float64()))
        else:
            whole = [value or [float("nan")] * width for value in values]
            table = table.append_column(name, pa.array(whole, _NUMBERS))
    return table


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
