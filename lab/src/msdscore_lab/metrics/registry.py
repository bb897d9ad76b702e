"""Metrics by name: list them, look one up, load it."""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from hashlib import blake2b
from inspect import getsource, signature
from math import isfinite
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, RunError, UnknownNameError, shortened, unknown_name
from msdscore.registry import Registry, error_summary, import_object, packaged_rows, resolve
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded, Metric, MetricRow

_OPTION = re.compile(r",(?=[a-z_]+=)")


@cache
def built_in() -> tuple[MetricRow, ...]:
    """Return the metrics of `table.toml`."""
    return packaged_rows("msdscore_lab.metrics", "metric", MetricRow, ("loader",))


METRICS = Registry("metric", MetricRow, lambda: built_in(), lambda name, function: function_row(name, function))


def function_row(name: str, function: object) -> MetricRow | None:
    """Return the row of a function `module:function` of an image and a caption; None for other objects."""
    if not callable(function):
        return None
    parameters = signature(function).parameters
    return MetricRow(
        name=name,
        loader=f"{__name__}:load_function",
        title=(function.__doc__ or "a function of an image and a caption").strip().splitlines()[0],
        needs=("images", "references") if "references" in parameters else ("images",),
        higher_is_better=bool(getattr(function, "higher_is_better", True)),
        argument="the function",
    )


def load_function(name: str) -> Loaded:
    """Return a metric that calls `function(image, caption)`, with `references=…` if it has this parameter.

    The signature has a hash of the function's code, so that an edited function is scored again.
    """
    function = import_object(name, "metric")
    try:
        code = getsource(function)
    except (OSError, TypeError):  # a built-in function, or an object with __call__
        code = repr(type(function))
    return Loaded(
        partial(_score_by_function, name=name, function=function),
        f"code:{blake2b(code.encode(), digest_size=4).hexdigest()}",
    )


def _score_by_function(cases: Cases, *, name: str, function: Callable[..., Any]) -> CaseScores:
    uses_references = "references" in signature(function).parameters
    values = np.full(cases.captions.shape, np.nan)
    for case in range(len(cases)):
        image, extra = cases.image(case), {"references": cases.references[case]} if uses_references else {}
        for candidate, caption in enumerate(cases.candidates(case) if image is not None else ()):
            try:
                values[case, candidate] = float(function(image, caption, **extra))
            except Exception as error:
                detail = f"item {cases.ids[case]}, caption {shortened(caption)!r}"
                raise RunError(f"metric {name} failed on {detail}: {error_summary(error)}") from error
    return CaseScores(values)


def list_metrics() -> tuple[MetricRow, ...]:
    """Return all available metrics, built-in ones first, then those of installed packages.

    >>> [row.name for row in list_metrics()][:3]
    ['cosine', 'coverage', 'support']
    """
    return tuple(METRICS.rows().values())


def load_metric(requested: str) -> Metric:
    """Load a metric from `NAME` or `NAME:ARGUMENT`, optionally followed by `,option=value`.

    >>> load_metric("soft-msd,set=image").choices
    'set:image'
    """
    name, argument, options = read_metric(requested)
    rows = METRICS.rows()
    row = rows.get(name)
    if row is None and argument:
        row = METRICS.imported(f"{name}:{argument}")
        if row is None:
            error = unknown_name("metric", name, rows)
            raise UnknownNameError(f"no module {name!r} in this folder or among the installed packages, and {error}")
        argument = row.name if row.argument else ""
    row = row or METRICS.find(name)
    if row.argument and not argument:
        raise ConfigError(f"metric {row.name!r} needs an argument: use {row.name}:ARGUMENT, with {row.argument}")
    if argument and not row.argument:
        raise ConfigError(f"metric {row.name!r} takes no argument, got {argument!r}")
    for option in options:
        if option not in row.options:
            raise unknown_name(f"option of metric {row.name}", option, row.options)
    loader: Callable[..., Loaded] = resolve(row.loader, f"metric {row.name!r}")
    loaded = loader(argument, **options) if row.argument else loader(**options)
    lower_is_better = not row.higher_is_better if loaded.lower_is_better is None else loaded.lower_is_better
    return Metric(requested, row, loaded.score, loaded.choices, not lower_is_better, row.judged or loaded.judged)


def load_metrics(requested: Iterable[str]) -> tuple[Metric, ...]:
    """Load several metrics, without duplicates."""
    wanted = list(dict.fromkeys(requested))
    if not wanted:
        raise ConfigError("expected at least one metric, got none; see `msdscore metrics`")
    return tuple(map(load_metric, wanted))


def read_metric(requested: str) -> tuple[str, str, dict[str, str]]:
    """Parse name, argument and options of a requested metric.

    >>> read_metric("judge:gpt-4o,url=http://localhost:8000/v1")
    ('judge', 'gpt-4o', {'url': 'http://localhost:8000/v1'})
    """
    head, *rest = _OPTION.split(requested)
    name, _, argument = head.partition(":")
    options = dict(part.split("=", 1) for part in rest)
    return name.strip(), argument.strip(), options


def number(name: str, text: str | float, *, least: float = float("-inf")) -> float:
    """Parse a numeric option; raise `ConfigError` if it is not finite or below `least`."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, got {text!r}") from None
    if not isfinite(value):
        raise ConfigError(f"{name} must be finite, got {text}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least:g}, got {text}")
    return value


def choice(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value of an option; raise `ConfigError` if it is not among the known values."""
    if value not in known:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
    return value
