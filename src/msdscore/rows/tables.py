"""Tables of users (pandas, pyarrow, Arrow interface): read their rows, and add columns of scores."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import ConfigError
from msdscore.io.arrow import pa
from msdscore.io.files import source_key
from msdscore.io.images import ImageSource, from_cell
from msdscore.rows.rules import ColumnNames, first_of, read_references, single_name


@dataclass(frozen=True, slots=True)
class TablePair:
    """An image with one of its captions; pairs of one `candidate_set` are compared with each other."""

    row: int
    image: ImageSource | None  # None for a row that has only references
    image_key: Hashable
    caption: str
    candidate_set: Hashable
    candidates: int | None  # number of captions in the row's list; None if it is not a list
    references: Sequence[str] | None = None


def as_table(table: Any) -> Any:
    """Return a pandas or pyarrow table as it is, and one of another library (polars, datasets) as a pyarrow table."""
    if isinstance(table, pa.Table) or _is_pandas(table):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        arrow = pa.table(table)
        return arrow.cast(pa.schema([field.with_type(_without_views(field.type)) for field in arrow.schema]))
    if hasattr(table, "with_format") and hasattr(table, "__getitem__"):  # datasets.Dataset, its images as cells
        return table.with_format("arrow")[:]
    raise ConfigError(
        "expected a pandas DataFrame, a pyarrow Table or another table with the Arrow interface, "
        f"got {type(table).__name__}; for a file use msdscore score, for a list of rows Scorer.stream"
    )


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type with plain strings and bytes: polars exports views, whose rows pyarrow cannot select."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_large_list(kind):
        return pa.large_list(_without_views(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def read_pairs(table: Any, names: ColumnNames, folder: Path | None) -> Iterator[TablePair]:
    """Yield the pairs of a table; a list of captions, a `group`, or the rows of one image are a candidate set.

    Relative paths are relative to `folder`.
    """
    columns = _names(table)
    names.check(columns, "the table", folder=False, lists=True)
    image_name, caption_name, reference_name = (
        names.find(role, columns) for role in ("image", "caption", "references")
    )
    group_name = first_of(columns, ("group",))
    for name in (image_name, caption_name, group_name):
        if columns.count(str(name)) > 1:
            raise ConfigError(f"the table has {columns.count(str(name))} columns {name!r}; rename or drop all but one")
    images, texts, groups, lists = (
        [None] * len(table) if name is None else _cells(table, name)
        for name in (image_name, caption_name, group_name, reference_name)
    )
    for row, (cell, caption, group, reference_cell) in enumerate(zip(images, texts, groups, lists, strict=True)):
        references = read_references(reference_cell)
        source = None if cell is None and references else from_cell(cell)
        source = folder / source if folder is not None and isinstance(source, str | Path) else source
        key: Hashable = source_key(source) if isinstance(source, str | Path | bytes) else id(cell)
        key = ("row", row) if source is None else key
        several = isinstance(caption, list | tuple | np.ndarray)
        captions = (list(caption) or [""]) if several else [caption]
        if group is None or group != group:  # missing, or NaN
            candidate_set: Hashable = ("row", row) if several else ("image", key)
        else:
            candidate_set = ("group", group)
        for text in captions:
            yield TablePair(row, source, key, text, candidate_set, len(caption) if several else None, references)


def with_scores(table: Any, pairs: Sequence[TablePair], added: pa.Table, names: ColumnNames, prefix: str) -> Any:
    """Return the table with the columns of the scores appended; a row with a list of captions is repeated for each."""
    added = added.drop_columns(["caption"])
    signature = (added.schema.metadata or {})[b"msdscore"].decode()
    taken = [prefix + name for name in added.column_names if prefix + name in _names(table)]
    if taken:
        raise ConfigError(f"the table has columns {', '.join(taken)} already; drop them, or pass a prefix")
    if any(pair.candidates is not None for pair in pairs):
        name, has_counts = str(names.find("caption", _names(table))), "candidates" in _names(table)
        rows, single = [pair.row for pair in pairs], single_name(name, _names(table))
        captions = [pair.caption if isinstance(pair.caption, str) else None for pair in pairs]
        counts = [1 if pair.candidates is None else pair.candidates for pair in pairs]
        if _is_pandas(table):
            table = table.iloc[rows].rename(columns={name: single}).assign(**{single: captions})
            table = table if has_counts else table.assign(candidates=counts)
        else:
            table = table.take(pa.array(rows, pa.int64()))
            table = table.set_column(table.column_names.index(name), single, pa.array(captions, pa.string()))
            table = table if has_counts else table.append_column("candidates", pa.array(counts, pa.int64()))
    if _is_pandas(table):
        frame = table.assign(**{prefix + name: added[name].to_pandas().to_numpy() for name in added.column_names})
        frame.attrs["signature"] = signature
        return frame
    for name in added.column_names:
        table = table.append_column(prefix + name, added[name])
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **(added.schema.metadata or {})})


def _is_pandas(table: Any) -> bool:
    return type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "iloc")


def _names(table: Any) -> list[str]:
    return [str(name) for name in (table.columns if _is_pandas(table) else table.column_names)]


def _cells(table: Any, name: str) -> list[Any]:
    return list(table[name]) if _is_pandas(table) else list(table[name].to_pylist())
