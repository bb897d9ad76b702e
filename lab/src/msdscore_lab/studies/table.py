"""Tables of studies, rendered as Markdown, JSON and a figure.

Rows contain plain values and intervals. Columns define the printed cells, plots the columns of the figure.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

import numpy as np

from msdscore.errors import require
from msdscore.explain.figure import rendered
from msdscore.intervals import Floats, Interval
from msdscore_lab.benchmarks.results.grids import NONE, Grid, markdown, p_value
from msdscore_lab.benchmarks.results.result import metric_title, plain

Value = str | int | float | None | Interval
Row = Mapping[str, Value]
Line = tuple[str, list[Any], list[Value], float]  # label, x values, y values, scale of the y values
# Okabe and Ito's palette without its yellow, which is too light for lines on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _HEIGHT, _PANELS_PER_ROW = 4.2, 3.2, 2  # inches of a panel
_MAX_SHADED = 2  # with more lines, shaded intervals would cover each other
METRIC = {"metric", "signature"}  # keys of a row about a metric
_SPREAD = 0.5  # share of the width of a category over which the lines of a panel are spread


@dataclass(frozen=True, slots=True)
class Column:
    """A printed column: key in the rows, heading, and format of its numbers (a format spec, or `p` for p-values)."""

    name: str
    title: str = ""
    form: str = ""
    scale: float = 1
    ends: bool = True  # whether intervals are printed next to values

    @property
    def heading(self) -> str:
        """The title, by default the name."""
        return self.title or self.name


def per_cent(name: str, title: str = "", *, signed: bool = False, ends: bool = True) -> Column:
    """Return a column of shares, printed in per cent with one decimal."""
    return Column(name, title, "+.1f" if signed else ".1f", 100, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Columns of a figure: one line per `y` and value of `series`, one panel per value of `panel`.

    Without `x`, the names of the columns `y` are the x values.
    """

    y: Sequence[str]
    x: str = ""
    series: str = ""
    panel: Sequence[str] = ()
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    level: float | None = None  # horizontal line, such as the chance level
    points: bool = False
    logarithmic: bool = False
    diagonal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with a title, common facts, notes, and the signature of the scorer.

    Values without a column are only written to JSON; a table without columns is not printed.
    """

    name: str
    title: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    signature: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    plots: Sequence[Plot] = ()

    def column(self, name: str) -> Column:
        """Return a column by name, with default settings if it is not printed."""
        return next((column for column in self.columns if column.name == name), Column(name))


def to_json(study: str, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the tables of a study as plain values; NaN becomes None.

    >>> to_json("s", [Table(name="t", rows=[{"a": float("nan")}])])["tables"][0]["rows"]
    [{'a': None}]
    """
    return {
        "study": study,
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "signature": table.signature,
                **plain(table.facts),
                "columns": [asdict(column) for column in table.columns],
                "rows": plain(table.rows),
                "notes": list(table.notes),
            }
            for table in tables
        ],
    }


def to_markdown(tables: Sequence[Table]) -> str:
    """Return all tables that have columns, each followed by its notes and its signature."""
    return "\n".join(markdown(to_grid(table)) for table in to_json("", tables)["tables"] if table["columns"])


def to_grid(
    table: Mapping[str, Any],
    columns: Sequence[Column] = (),
    *,
    title: str = "",
    where: Mapping[str, Sequence[str]] = {},
    quoted: Iterable[Sequence[str]] = (),
) -> Grid:
    """Return a table of a result file as text: rows whose values are among those of `where`, with `quoted` rows below.

    Without `columns` they are those of the table.
    """
    columns = columns or [Column(**column) for column in table["columns"]]
    rows = [
        row | {"metric": metric_title(str(row["metric"]), str(row["signature"]))} if row.keys() >= METRIC else row
        for row in table["rows"]
        if all(row.get(name) in values for name, values in where.items())
    ]
    cells = [tuple(cell(row.get(column.name), column) for column in columns) for row in rows]
    size = f" ({table['benchmark']}, {table['counted']} items, {table['images']} images)" if "counted" in table else ""
    notes = (*table.get("notes", ()), *([f"`{table['signature']}`"] if table.get("signature") else []))
    heads = tuple(column.heading for column in columns)
    return Grid(f"{title}{size}" if title else table["title"], heads, (*cells, *map(tuple, quoted)), notes)


def cell(value: Value | Mapping[str, Any], column: Column) -> str:
    """Format a value for its column; an interval may be that of a result file.

    >>> cell(Interval(0.5, 0.25, 0.75, 0.95, "bootstrap", 4, 0), per_cent("share"))
    '50.0 [25.0, 75.0]'
    """
    low = high = math.nan
    single: str | float | None
    if isinstance(value, Interval):
        single, low, high = value.value, value.low, value.high
    elif isinstance(value, Mapping):
        single, low, high = (
            value["value"],
            *(math.nan if value.get(end) is None else value[end] for end in ("low", "high")),
        )
    else:
        single = value
    if single is None or single != single:
        return NONE
    if isinstance(single, str) or not column.form:
        return f"{single:g}" if isinstance(single, float) else str(single)
    if column.form == "p":
        return p_value(single)
    text = f"{single * column.scale:{column.form}}"
    if math.isnan(low + high) or not column.ends:
        return text
    return f"{text} [{low * column.scale:{column.form}}, {high * column.scale:{column.form}}]"


def to_figure(tables: Sequence[Table], kind: str = "png") -> bytes | None:
    """Draw all plots of the tables as panels of one figure and return the file content; None without plots."""
    panels = []
    for plot, table in [(plot, each) for each in tables for plot in each.plots]:
        for key in dict.fromkeys(tuple(row[name] for name in plot.panel) for row in table.rows):
            rows = [row for row in table.rows if tuple(row[name] for name in plot.panel) == key]
            title = ", ".join(filter(None, (plot.title, *map(str, key))))
            panels.append((plot, title, list(_lines(table, plot, rows))))
    if not panels:
        return None
    column_count = min(_PANELS_PER_ROW, len(panels))
    row_count = -(-len(panels) // column_count)
    module: Any = require("matplotlib.figure", extra="figures")
    figure = module.Figure(
        figsize=(_WIDTH * column_count, _HEIGHT * row_count), facecolor="white", layout="constrained"
    )
    axes = figure.subplots(row_count, column_count, squeeze=False).ravel().tolist()
    for axis, (plot, title, lines) in zip(axes, panels, strict=False):
        _draw(axis, plot, title, lines)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    return rendered(figure, kind)


def _lines(table: Table, plot: Plot, rows: Sequence[Row]) -> Iterator[Line]:
    for value in dict.fromkeys(row.get(plot.series) for row in rows):
        series_rows = [row for row in rows if row.get(plot.series) == value]
        if not plot.x:
            columns = [table.column(name) for name in plot.y]
            xs = [column.heading for column in columns]
            yield str(value or ""), xs, [series_rows[0][name] for name in plot.y], columns[0].scale
            continue
        for name in plot.y:
            column, with_value = table.column(name), [row for row in series_rows if row.get(name) is not None]
            label = ", ".join([*([str(value)] if plot.series else []), *([column.heading] if len(plot.y) > 1 else [])])
            yield label, [row[plot.x] for row in with_value], [row[name] for row in with_value], column.scale


def _draw(axis: Any, plot: Plot, title: str, lines: Sequence[Line]) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(plot.x_label or plot.x, fontsize=8)
    axis.set_ylabel(plot.y_label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if plot.level is not None:
        axis.axhline(plot.level, color="#888888", linewidth=0.8, linestyle=":")
    if plot.diagonal:
        axis.plot((0, 1), (0, 1), color="#888888", linewidth=0.8, linestyle=":")
    names = list(dict.fromkeys(x for _, xs, _, _ in lines for x in xs if isinstance(x, str)))
    styles = zip(cycle(_COLOURS), cycle(_MARKERS), strict=False)
    for index, (line, (colour, marker)) in enumerate(zip(lines, styles, strict=False)):
        label, xs, values, scale = line
        if plot.points:
            axis.plot(xs, _heights(values, scale), ".", markersize=2.5, alpha=0.5, color=colour, label=label)
        elif names:
            shift = _SPREAD * (index / (len(lines) - 1) - 0.5) if len(lines) > 1 else 0.0
            positions = [names.index(str(x)) + shift for x in xs]
            axis.errorbar(
                positions, _heights(values, scale), yerr=_error_bars(values, scale), fmt=marker, markersize=4,
                capsize=2, linewidth=1, color=colour, label=label,
            )  # fmt: skip
        else:
            _draw_line(axis, line, colour, marker, shaded=len(lines) <= _MAX_SHADED)
    if names:
        axis.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0, fontsize=7)
    if plot.logarithmic:
        axis.set_xscale("log")
    if len(lines) > 1:
        # Explicit, because with the default Matplotlib warns if the search takes a second.
        axis.legend(fontsize=7, frameon=False, loc="best")


def _draw_line(axis: Any, line: Line, colour: str, marker: str, *, shaded: bool) -> None:
    """Draw a curve with its intervals: a shaded band, or error bars if bands would cover each other."""
    label, xs, values, scale = line
    y, error_bars = _heights(values, scale), _error_bars(values, scale)
    axis.plot(xs, y, marker=marker, markersize=3.5, linewidth=1.2, color=colour, label=label)
    if error_bars is not None and shaded:
        axis.fill_between(xs, y - error_bars[0], y + error_bars[1], color=colour, alpha=0.15, linewidth=0)
    elif error_bars is not None:
        axis.errorbar(xs, y, yerr=error_bars, fmt="none", ecolor=colour, elinewidth=0.7, alpha=0.6)


def _heights(values: Sequence[Value], scale: float) -> Floats:
    return scale * np.array([value.value if isinstance(value, Interval) else float(value or 0) for value in values])


def _error_bars(values: Sequence[Value], scale: float) -> Floats | None:
    """Return the error bars of values, below and above; None if a value has no interval."""
    distances = [(value.value - value.low, value.high - value.value) for value in values if isinstance(value, Interval)]
    return scale * np.array(distances).T.clip(min=0.0) if len(distances) == len(values) else None
