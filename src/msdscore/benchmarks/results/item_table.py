"""Items as a table and back, so that a result can be counted again without the benchmark's files."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.benchmarks.base import Aspect, Battle, Item, Kind, Pair, Rated, Scale, picture_key, picture_names

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
