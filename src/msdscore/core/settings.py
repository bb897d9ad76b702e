"""Validation of score settings, shared by all forms."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from msdscore.errors import ConfigError, unknown_name

Settings = TypeVar("Settings")
LARGEST = 1e6  # a larger number overflows a score
SMALLEST = 1e-6  # minimum of a number used as a divisor
MOST_COMPONENTS = 1024  # of a mixture; images and captions have fewer points
MOST_ITERATIONS = 10_000  # of EM, which converges in tens


def check_number(name: str, value: Any, *, positive: bool = False) -> None:
    """Raise `ConfigError` unless the value is finite, not negative, and in a range in which scores do not overflow."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    if value > LARGEST:
        raise ConfigError(f"{name} must be at most {LARGEST:g}, got {value!r}")
    if positive and not value > 0:
        raise ConfigError(f"{name} must be positive, got {value}")
    if positive and value < SMALLEST:
        raise ConfigError(f"{name} must be at least {SMALLEST:g}, got {value}")
    if value < 0:
        raise ConfigError(f"{name} must not be negative, got {value}")


def check_share(name: str, value: Any) -> None:
    """Raise `ConfigError` unless the value is between 0 and 1."""
    check_number(name, value)
    if value > 1:
        raise ConfigError(f"{name} must be between 0 and 1, got {value}")


def check_count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> None:
    """Raise `ConfigError` unless the value is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")


def replace_known(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Replace some settings; unknown names raise `UnknownNameError`."""
    known = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise unknown_name("setting", name, known)
    return replace(settings, **changes)  # type: ignore[type-var]


def exact(number: int | float) -> str:
    """Shortest decimal representation that identifies a number.

    >>> exact(20.0), exact(0.1), exact(0.10000001), exact(1 / 3)
    ('20', '0.1', '0.10000001', '0.3333333333333333')
    """
    return repr(float(number)).removesuffix(".0")
