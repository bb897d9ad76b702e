"""The figure of a table of benchmarks: every metric's headline with its interval, and what wrong images reach."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from msdscore.errors import require
from msdscore.explain.save import rendered
from msdscore.lab.benchmarks.results.result import MetricResult, Result

_WIDTH, _ROW, _MARGIN = 4.2, 0.28, 1.1  # inches: a panel, a metric, title and axis
_OURS, _WRONG = "#1f5fa8", "#b0b0b0"


def draw(results: Sequence[Result], kind: str) -> bytes:
    """Return one panel per result as bytes of a file format (png, svg or pdf)."""
    rows = max(len(result.metrics) for result in results)
    module: Any = require("matplotlib.figure", extra="figures")
    size = (_WIDTH * len(results), _MARGIN + _ROW * rows)
    figure = module.Figure(figsize=size, facecolor="white", layout="constrained")
    for axis, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        _draw_panel(axis, result)
    return rendered(figure, kind)


def _draw_panel(axis: Any, result: Result) -> None:
    metrics = [metric for metric in result.metrics if metric.figures]
    for place, metric in enumerate(metrics):
        head = metric.figures[0]
        value, scale = head.value * head.scale, head.scale
        ends = [] if head.interval is None else [head.interval.low * scale, head.interval.high * scale]
        if ends and np.isfinite(ends).all():
            axis.plot(ends, (place, place), color=_OURS, linewidth=1.5)
        axis.plot(value, place, "o", color=_OURS, markersize=5)
        if (wrong := _headline(metric)) is not None:
            axis.plot(wrong * scale, place, "x", color=_WRONG, markersize=5)
    axis.set_yticks(range(len(metrics)), [metric.label for metric in metrics], fontsize=8)
    axis.invert_yaxis()
    axis.set_title(f"{result.title}, {result.protocol}", fontsize=9)
    name = metrics[0].figures[0].name if metrics else "figure"
    axis.set_xlabel(f"{name}, 95 % interval; ×: wrong image", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def _headline(metric: MetricResult) -> float | None:
    """Return the metric's headline with wrong images, if they were scored."""
    name = metric.figures[0].name
    return next((figure.value for figure in metric.control if figure.name == name), None)
