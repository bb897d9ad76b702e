"""The figure of a study, panel by panel, in colours that colour-blind readers tell apart."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from msdscore.errors import require
from msdscore.explain.save import rendered
from msdscore.studies.outcome import Chart, ChartLine

# Okabe and Ito's palette without its yellow, which is too light for lines on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _HEIGHT, _ACROSS = 4.2, 3.2, 2  # inches of a panel, panels side by side
_SHADED = 2  # lines at most whose intervals are shaded; more would cover each other
_SPREAD = 0.5  # of the room of a category, over which the lines of a chart are set side by side


def draw(charts: Sequence[Chart], kind: str = "png") -> bytes:
    """All panels in one figure, as bytes of a kind of file (png, svg, pdf)."""
    across = min(_ACROSS, len(charts))
    down = -(-len(charts) // across)
    module: Any = require("matplotlib.figure", extra="figures")
    figure = module.Figure(figsize=(_WIDTH * across, _HEIGHT * down), facecolor="white", layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for panel, chart in zip(panels, charts, strict=False):
        _draw_panel(panel, chart)
    for panel in panels[len(charts) :]:
        panel.axis("off")
    return rendered(figure, kind)


def _draw_panel(panel: Any, chart: Chart) -> None:
    panel.set_title(chart.title, fontsize=9)
    panel.set_xlabel(chart.x_label, fontsize=8)
    panel.set_ylabel(chart.y_label, fontsize=8)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
    if chart.level is not None:
        panel.axhline(chart.level, color="#888888", linewidth=0.8, linestyle=":")
    names = list(dict.fromkeys(place for line in chart.lines for place in line.x if isinstance(place, str)))
    styles = zip(chart.lines, cycle(_COLOURS), cycle(_MARKS), strict=False)
    for number, (line, colour, mark) in enumerate(styles):
        if chart.kind == "points":
            panel.plot(line.x, line.y, ".", color=colour, markersize=2.5, alpha=0.5, label=line.name)
        elif names:
            _draw_categories(panel, line, names, _shift(number, len(chart.lines)), (colour, mark))
        else:
            _draw_line(panel, line, (colour, mark), shaded=len(chart.lines) <= _SHADED)
    if names:
        panel.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0, fontsize=7)
    if chart.logarithmic:
        panel.set_xscale("log")
    if len(chart.lines) > 1:
        panel.legend(fontsize=7, frameon=False)


def _shift(number: int, lines: int) -> float:
    return 0.0 if lines == 1 else _SPREAD * (number / (lines - 1) - 0.5)


def _draw_categories(panel: Any, line: ChartLine, names: Sequence[str], shift: float, style: tuple[str, str]) -> None:
    colour, mark = style
    places = [names.index(str(place)) + shift for place in line.x]
    panel.errorbar(
        places, line.y, yerr=_ends(line), fmt=mark, color=colour, markersize=4, capsize=2, linewidth=1, label=line.name
    )


def _draw_line(panel: Any, line: ChartLine, style: tuple[str, str], *, shaded: bool) -> None:
    colour, mark = style
    panel.plot(line.x, line.y, marker=mark, color=colour, markersize=3.5, linewidth=1.2, label=line.name)
    if line.low and not shaded:
        panel.errorbar(line.x, line.y, yerr=_ends(line), fmt="none", ecolor=colour, elinewidth=0.7, alpha=0.6)
    elif line.low:
        panel.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)


def _ends(line: ChartLine) -> list[list[float]] | None:
    if not line.low:
        return None
    below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
    return [below, [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]]
