"""The result of a benchmark run as JSON, and the table of its scores, one row per item."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import InputError, one_line
from msdscore.forms.registry import facts_of, heading
from msdscore.intervals import Floats, Interval
from msdscore_lab.benchmarks.base import Battle, Item, Kind, Pair, Rated, image_key, image_names
from msdscore_lab.benchmarks.protocols.counting import Figure, Figures
from msdscore_lab.metrics.base import Cases, Metric

FORMAT = 3
_PUBLISHED = {"clipscore": "CLIPScore", "longclipscore": "LongCLIPScore", "refclipscore": "RefCLIPScore"}
_FORM_METRICS = ("msd", "soft-msd", "ref-msd")  # metrics whose title depends on the form


def metric_title(label: str, signature: str) -> str:
    """Return the title of a metric in tables; scores of a form are named after it, those of others after the encoder.

    >>> metric_title("soft-msd,set=image", "soft-msd-e|form:evidence"), metric_title("msd", "msd|k:3,2")
    ('Soft-MSD-E,set=image', 'MSD')
    >>> metric_title("clipscore", "clipscore|w:2.5|enc:clip-b32@1a2b,pool:model|v:1")
    'CLIPScore (clip-b32)'
    """
    name, comma, options = label.partition(",")
    if name in _FORM_METRICS:
        form = signature.removeprefix("soft-").removeprefix("ref-")  # a signature of a metric begins with its name
        title = heading(name.replace("-", "_"), form)
    elif name in _PUBLISHED:
        encoder = encoder_of(signature).partition("@")[0]
        title = f"{_PUBLISHED[name]} ({encoder})" if encoder else _PUBLISHED[name]
    else:
        title = name
    return title + comma + options


def encoder_of(signature: str) -> str:
    """Return the encoder and its weights in a signature; empty for a metric that uses none."""
    return facts_of(signature).get("enc", "").partition(",")[0]


@dataclass(frozen=True, slots=True)
class ScorerRecord:
    """The scorer of a result: its signature, those of its encoder, and the device."""

    signature: str
    encoder: str
    device: str
    published: str = ""  # signature of the encoder as its publication defines it; empty: it has no such form


@dataclass(frozen=True, slots=True)
class MetricResult:
    """Figures of one metric, and the figures of the wrong-image control on the same items.

    `matched` is the headline among captions of about equal length. `missing` is the number of items without a score.
    """

    label: str
    signature: str
    higher_is_better: bool
    judged: bool
    figures: Figures
    control: Figures = ()
    matched: Figure | None = None
    missing: int = 0

    @property
    def title(self) -> str:
        """The label in tables."""
        return metric_title(self.label, self.signature)

    @property
    def encoder(self) -> str:
        """The encoder and its weights in the signature; empty for a metric that uses none."""
        return encoder_of(self.signature)

    def figure(self, name: str) -> Figure | None:
        """Return a figure by name."""
        return next((figure for figure in self.figures if figure.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Date, command, device, run time and data of a result."""

    date: str = ""
    command: str = ""
    device: str = ""
    seconds: float = 0.0
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark, protocol and encoder with any number of metrics.

    All figures are computed on the `counted` items, which every metric scored, also with the wrong image.
    """

    benchmark: str
    title: str
    kind: Kind
    protocol: str
    encoder: str
    items: int
    counted: int
    images: int
    failed: int
    failures: tuple[str, ...]  # the first few error messages
    seed: int
    samples: int
    limit: int | None
    options: Mapping[str, Any]
    notes: Mapping[str, int]  # numbers of items by description
    metrics: tuple[MetricResult, ...]
    versions: Mapping[str, str]
    scores: str  # name of the file of scores next to the result
    length: MetricResult | None = None  # the number of words as a score, in the better direction
    seeds: int = 1
    made: Provenance = field(default_factory=Provenance, compare=False)

    def metric(self, label: str) -> MetricResult:
        """Return a metric by its label, or by its title in tables."""
        for metric in self.metrics:
            if label in (metric.label, metric.title):
                return metric
        labels = ", ".join(metric.label for metric in self.metrics)
        raise InputError(f"the result of {self.benchmark} has no metric {label!r}; it has {labels}")


def to_json(result: Result) -> str:
    """Return the result as JSON; NaN becomes null."""
    content = {"format": FORMAT, **plain(asdict(result))}
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)


def read_result(path: Path) -> Result:
    """Read a result written by `to_json`."""
    if path.suffix.lower() in (".parquet", ".jsonl", ".csv"):  # scores of `bench`, or a file of `score`
        beside = path.with_suffix(".json")
        hint = f"use {beside}" if is_result(beside) else "compare scored files with `msdscore rank-captioners`"
        raise InputError(f"{path}: expected a result of `msdscore bench` (.json), got scores; {hint}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a result of `msdscore bench`") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise InputError(f"{path}: expected a result of `msdscore bench` in format {FORMAT}")
    try:
        result: Result = from_plain(Result, content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: is damaged ({error}); run the same `msdscore bench` again") from error
    if not result.metrics:
        raise InputError(f"{path}: has no metrics; run the same `msdscore bench` again")
    return result


def is_result(path: Path) -> bool:
    """Return whether a file is a result, in this or another version of the format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"format", "benchmark", "metrics"} <= content.keys()


def plain(value: Any) -> Any:
    """Convert nested values for JSON; intervals become objects, and NaN becomes None.

    >>> plain({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Interval):
        value = {"value": value.value, "low": value.low, "high": value.high, "n": value.n}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_plain(kind: Any, value: Any) -> Any:
    """Inverse of `plain` by type hints: objects become dataclasses, lists tuples, null NaN.

    >>> from_plain(tuple[float, ...], [1.0, None])
    (1.0, nan)
    """
    if get_origin(kind) is UnionType:  # a type or None
        return None if value is None else from_plain(get_args(kind)[0], value)
    if get_origin(kind) is tuple:
        return tuple(from_plain(get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        hints = get_type_hints(kind).items()  # fields that an earlier version did not write have their defaults
        return kind(**{name: from_plain(hint, value[name]) for name, hint in hints if name in value})  # type: ignore[operator]
    if kind in (str, int) and type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return math.nan if value is None and kind is float else value


WRONG = "@wrong"  # suffix of a metric's label: its scores with the wrong images
_NUMBERS = pa.list_(pa.float64())
_NOT_JUDGEMENTS = ("id", "image", "subset", "references", "positive", "negative", "caption", "caption_a", "caption_b")
_KINDS: dict[Kind, tuple[Any, tuple[str, ...]]] = {  # item class, and the names of its captions
    "pairs": (Pair, ("positive", "negative")),
    "rated": (Rated, ("caption",)),
    "battles": (Battle, ("caption_a", "caption_b")),
}


def item_table(items: Sequence[Item]) -> pa.Table:
    """Return one row per item: id, image name, subset, captions, and human judgements as JSON."""
    names = image_names(item.image for item in items)
    judgements = (
        {name: value for name, value in asdict(item).items() if name not in _NOT_JUDGEMENTS} for item in items
    )
    return pa.table({
        "id": pa.array([item.id for item in items], pa.string()),
        "image": pa.array([names[image_key(item.image)] for item in items], pa.string()),
        "subset": pa.array([item.subset for item in items], pa.string()),
        "captions": pa.array([list(item.captions) for item in items], pa.list_(pa.string())),
        "judged": pa.array([json.dumps(values, ensure_ascii=False) for values in judgements], pa.string()),
    })  # fmt: skip


def items_of(table: pa.Table, kind: Kind) -> tuple[Item, ...]:
    """Return the items of a table, without references; damaged ones raise `InputError`."""
    item_type, caption_names = _KINDS[kind]
    items = []
    for row in table.to_pylist():
        try:
            judgements = json.loads(row["judged"])
            judgements |= {name: tuple(value) for name, value in judgements.items() if isinstance(value, list)}
            captions = dict(zip(caption_names, row["captions"], strict=True))
            about = {"id": row["id"], "image": Path(row["image"]), "subset": row["subset"]}
            items.append(item_type(**about, **captions, **judgements))
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"item {row['id']!r} of the scores is damaged ({one_line(error)}); score it again"
            ) from error
    return tuple(items)


def read_scores(path: Path, labels: Iterable[str]) -> pa.Table:
    """Read the scores of a result, with those of the metrics with these labels.

    Raises:
        InputError: the file is missing or damaged.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the scores next to their result")
    try:
        table = pq.read_table(path)
        missing = [name for name in (*item_table(()).column_names, *labels) if name not in table.column_names]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
        for label in labels:
            if table.schema.field(label).type != _NUMBERS:
                raise ValueError(f"column {label} has no lists of numbers")
            score_matrix(table, label)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is damaged ({one_line(error)}); run the same `msdscore bench` again") from error
    return table


def score_columns(metrics: Sequence[Metric], cases: Cases) -> dict[str, pa.Array]:
    """Return two columns per metric, with true and wrong images."""
    columns: dict[str, pa.Array] = {}
    true, wrong = np.flatnonzero(~cases.control), np.flatnonzero(cases.control)
    for metric in metrics:
        scored = metric.score(cases)
        columns[metric.label] = pa.array(scored.values[true].tolist(), _NUMBERS)
        if len(wrong):
            columns[metric.label + WRONG] = pa.array(scored.values[wrong].tolist(), _NUMBERS)
    return columns


def belongs_to(column: str, label: str) -> bool:
    """Return whether a column has scores of the metric with this label."""
    return column in (label, label + WRONG)


def merge_columns(parts: Iterable[pa.Table], earlier: Mapping[str, Sequence[Any]], count: int) -> dict[str, list[Any]]:
    """Merge columns of an earlier run with those of parts, which take precedence."""
    columns = {name: list(values) for name, values in earlier.items()}
    for part in parts:
        values = part.to_pydict()
        indices = values.pop("item")
        for name, column in values.items():
            merged = columns.setdefault(name, [None] * count)
            for index, value in zip(indices, column, strict=True):
                merged[index] = value
    return columns


def scores_table(items: Sequence[Item], columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return the items with their score columns; a missing score is NaN."""
    table = item_table(items)
    width = len(items[0].captions)
    for name, values in columns.items():
        if name == "error":
            table = table.append_column(name, pa.array(values, pa.string()))
        else:
            filled = [value or [float("nan")] * width for value in values]
            table = table.append_column(name, pa.array(filled, _NUMBERS))
    return table


def score_matrix(table: pa.Table, label: str, *, wrong: bool = False) -> Floats | None:
    """Return the scores (items, candidates) of a metric, or None if the table has none."""
    name = label + WRONG if wrong else label
    if name not in table.column_names:
        return None
    column = table.column(name).combine_chunks()
    values: Floats = column.values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return values
