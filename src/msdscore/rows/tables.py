"""Tables of users (pandas, pyarrow, Arrow interface): read their rows, and add columns of scores."""

from pathlib import Path
from typing import Any, NamedTuple

from msdscore.errors import ConfigError
from msdscore.io.arrow import pa
from msdscore.rows.images import ImageFinder
from msdscore.rows.rules import ColumnNames, Row, RowMaker, list_of, single_name


class TableRows(NamedTuple):
    """The rows of a table: `numbers[i]` is the table's row of row i, `counts[i]` the captions of its list, 1 if none.

    `caption` is the column of captions; `is_listed` is whether a row has a list of them.
    """

    rows: list[Row]
    numbers: list[int]
    counts: list[int]
    caption: str
    is_listed: bool


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


def read_table(table: Any, names: ColumnNames, folder: Path | None) -> TableRows:
    """Return the rows of a table; relative paths and ids of images are looked up in `folder`."""
    columns = _names(table)
    names.check(columns, "the table", folder=folder is not None, lists=True)
    maker = RowMaker(names, ImageFinder("-", folder))
    used = [name for name in maker.roles(columns) if name is not None]
    for name in used:
        if columns.count(name) > 1:
            raise ConfigError(f"the table has {columns.count(name)} columns {name!r}; rename or drop all but one")
    caption = str(names.find("caption", columns))
    read = TableRows([], [], [], caption, is_listed=False)
    listed = False
    for number, cells in enumerate(zip(*(_cells(table, name) for name in dict.fromkeys(used)), strict=True)):
        values = dict(zip(dict.fromkeys(used), cells, strict=True))
        made, captions = maker.rows(values), list_of(values[caption])
        read.rows.extend(made)
        read.numbers.extend([number] * len(made))
        read.counts.extend([1 if captions is None else len(captions)] * len(made))
        listed |= captions is not None
    return read._replace(is_listed=listed)


def with_scores(table: Any, read: TableRows, added: pa.Table, prefix: str) -> Any:
    """Return the table with the columns of scores appended; a row with a list of captions is repeated for each."""
    added = added.drop_columns(["caption"])
    signature = (added.schema.metadata or {})[b"msdscore"].decode()
    taken = [prefix + name for name in added.column_names if prefix + name in _names(table)]
    if taken:
        raise ConfigError(f"the table has columns {', '.join(taken)} already; drop them, or pass a prefix")
    table = _one_per_caption(table, read) if read.is_listed else table
    if _is_pandas(table):
        frame = table.assign(**{prefix + name: added[name].to_pandas().to_numpy() for name in added.column_names})
        frame.attrs["signature"] = signature
        return frame
    for name in added.column_names:
        table = table.append_column(prefix + name, added[name])
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **(added.schema.metadata or {})})


def _one_per_caption(table: Any, read: TableRows) -> Any:
    """Return the table with one row per caption, and the column `candidates` unless it has one."""
    name, single, has_counts = read.caption, single_name(read.caption, _names(table)), "candidates" in _names(table)
    captions = [row.caption for row in read.rows]
    if _is_pandas(table):
        table = table.iloc[read.numbers].rename(columns={name: single}).assign(**{single: captions})
        return table if has_counts else table.assign(candidates=read.counts)
    table = table.take(pa.array(read.numbers, pa.int64()))
    table = table.set_column(table.column_names.index(name), single, pa.array(captions, pa.string()))
    return table if has_counts else table.append_column("candidates", pa.array(read.counts, pa.int64()))


def _is_pandas(table: Any) -> bool:
    return type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "iloc")


def _names(table: Any) -> list[str]:
    return [str(name) for name in (table.columns if _is_pandas(table) else table.column_names)]


def _cells(table: Any, name: str) -> list[Any]:
    return list(table[name]) if _is_pandas(table) else list(table[name].to_pylist())
