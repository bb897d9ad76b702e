"""The result of a benchmark run: figures, intervals, controls, signatures and versions in one JSON file."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Kind, Note
from msdscore.benchmarks.protocols.figure import Figure, Figures
from msdscore.benchmarks.protocols.lengths import LengthAlone
from msdscore.errors import InputError
from msdscore.io.atomic import write_bytes
from msdscore.stats.resample import Interval

FORMAT = 2


@dataclass(frozen=True, slots=True)
class MetricResult:
    """The figures of one metric, and those with the wrong pictures, over the same items.

    `matched` is the headline among captions of about equal length. `missing` counts the items without a score; `facts`
    are sums such as tokens used.
    """

    label: str
    signature: str
    higher_is_better: bool
    judged: bool
    figures: Figures
    control: Figures = ()
    matched: Figure | None = None
    missing: int = 0
    facts: Mapping[str, float] | None = None

    def figure(self, name: str) -> Figure | None:
        """A figure by name."""
        return next((figure for figure in self.figures if figure.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a result came about: when, by which command, on which device, in how many seconds, from which data."""

    date: str = ""
    command: str = ""
    device: str = ""
    seconds: float = 0.0
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark, protocol and encoder with any number of metrics.

    All figures rest on the `counted` items, those that every metric has a score for, with the wrong picture too.
    """

    benchmark: str
    title: str
    kind: Kind
    protocol: str
    encoder: str
    items: int
    counted: int
    pictures: int
    failed: int
    failures: tuple[str, ...]  # the first few reasons
    seed: int
    samples: int
    limit: int | None
    options: Mapping[str, Any]
    notes: tuple[Note, ...]
    metrics: tuple[MetricResult, ...]
    versions: Mapping[str, str]
    scores: str  # file name of the scores beside the result
    length: LengthAlone | None = None
    seeds: int = 1
    made: Made = field(default_factory=Made, compare=False)

    def metric(self, label: str) -> MetricResult:
        """A metric by its label."""
        for found in self.metrics:
            if found.label == label:
                return found
        known = ", ".join(found.label for found in self.metrics)
        raise InputError(f"the result of {self.benchmark} has no metric {label!r}; it has {known}")


def write_result(result: Result, path: Path) -> None:
    """Write in one step."""
    write_bytes(path, to_json(result).encode() + b"\n", folder=path.parent)


def to_json(result: Result) -> str:
    """The result as it is written; NaN becomes null."""
    content = {"format": FORMAT, **_plain(asdict(result))}
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)


def read_result(path: Path) -> Result:
    """Read what `write_result` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a result of `msdscore bench`") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise InputError(f"{path}: expected a result of `msdscore bench` in format {FORMAT}")
    try:
        metrics = tuple(_metric(found) for found in content.pop("metrics"))
        notes = tuple(Note(**note) for note in content.pop("notes"))
        length = content.pop("length")
        more: dict[str, Any] = {"made": Made(**content.pop("made")), "failures": tuple(content.pop("failures"))}
        more["length"] = length and LengthAlone(length["longer_wins"], _figures(length["figures"]))
        return Result(**content, **more, metrics=metrics, notes=notes)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: is damaged ({error}); run the same `msdscore bench` again") from error


def is_result(path: Path) -> bool:
    """Whether a file is a result, of this format or another."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"format", "benchmark", "metrics"} <= content.keys()


def _metric(content: dict[str, Any]) -> MetricResult:
    figures, control = (_figures(content.pop(name)) for name in ("figures", "control"))
    matched = content.pop("matched")
    return MetricResult(**content, figures=figures, control=control, matched=matched and _figure(matched))


def _figures(content: list[dict[str, Any]]) -> Figures:
    return tuple(map(_figure, content))


def _figure(content: dict[str, Any]) -> Figure:
    interval = content.pop("interval")
    value = _number(content.pop("value"))
    return Figure(value=value, interval=None if interval is None else _interval(interval), **content)


def _interval(content: dict[str, Any]) -> Interval:
    return Interval(**content | {name: _number(content[name]) for name in ("value", "low", "high")})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
