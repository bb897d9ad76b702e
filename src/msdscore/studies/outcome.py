"""What a study hands back: numbers for a file, tables for a page, and charts to draw."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msdscore.stats.resample import Interval

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line, or one cloud of points: places on the axis, values, and the ends of their intervals where known."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, values: Mapping[Any, Interval], *, scale: float = 100) -> "ChartLine":
        """A line of intervals by their place on the axis, times `scale`.

        >>> from msdscore.stats.resample import bootstrap_mean
        >>> ChartLine.of("msd", {10.0: bootstrap_mean([1.0, 1.0])}).y
        (100.0,)
        """
        ends = [(one.value, one.low, one.high) for one in values.values()]
        y, low, high = (tuple(scale * value for value in column) for column in zip(*ends, strict=True))
        return cls(name, tuple(values), y, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel of a study's figure; `level` is where chance lies."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[ChartLine, ...]
    kind: Literal["lines", "points"] = "lines"
    level: float | None = None
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished study: plain values for JSON, its tables in Markdown, and its charts."""

    study: str
    numbers: Mapping[str, Any]
    text: str
    charts: tuple[Chart, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the study's name; NaN becomes None."""
        return {"study": self.study, **plain(self.numbers)}


def plain(value: Any) -> Any:
    """Nested values as JSON has them.

    >>> plain({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def spelled(value: Interval) -> dict[str, float]:
    """An interval in as few names as a result file needs."""
    return {"value": value.value, "low": value.low, "high": value.high, "n": value.n}


def per_cent(value: Interval) -> str:
    """A share with its interval, as tables have it.

    >>> per_cent(Interval(0.5, 0.25, 0.75, 0.95, "bootstrap", 4, 0))
    '50.0 [25.0, 75.0]'
    """
    if math.isnan(value.low):
        return f"{100 * value.value:.1f}"
    return f"{100 * value.value:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"
