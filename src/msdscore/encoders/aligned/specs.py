"""Frozen spec dataclasses from plain values of TOML or JSON, with every key and type checked, and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from msdscore.errors import ConfigError, MSDScoreError, unknown_name

Spec = TypeVar("Spec")


def read_spec(kind: type[Spec], given: Any, *, where: str = "") -> Spec:
    """A spec from a mapping; lists become tuples, nested mappings nested specs.

    >>> from msdscore.encoders.aligned.heads import HeadSpec
    >>> read_spec(HeadSpec, {"kind": "mlp", "dropout": 0}).kind
    'mlp'
    >>> read_spec(HeadSpec, {"dropout": "much"}, where="heads.image")
    Traceback (most recent call last):
    msdscore.errors.ConfigError: heads.image.dropout should be float, got 'much'

    Raises:
        UnknownNameError: a key that the spec does not have.
        ConfigError: a value of the wrong type, or that cannot work.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where or kind.__name__} should be a table of settings, got {given!r}")
    hints = get_type_hints(kind)
    dot = f"{where}." if where else ""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise unknown_name("setting", f"{dot}{key}", [f"{dot}{name}" for name in known])
    values = {key: read_value(hints[key], value, where=f"{dot}{key}") for key, value in given.items()}
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise ConfigError(f"{where or kind.__name__} lacks a setting: {missing}") from error
    except MSDScoreError as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from error


def read_value(hint: Any, value: Any, *, where: str) -> Any:
    """One value of the type that a spec's field has.

    Raises:
        ConfigError: it is of another type.
    """
    if is_dataclass(hint) and isinstance(hint, type):
        return read_spec(hint, value, where=where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} should be a list, got {value!r}")
        return tuple(read_value(get_args(hint)[0], item, where=where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = get_args(hint) or (hint,)
    if type(value) not in allowed:
        names = " or ".join(choice.__name__ for choice in allowed)
        raise ConfigError(f"{where} should be {names}, got {value!r}")
    return value


def plain(spec: Any) -> dict[str, Any]:
    """The spec as plain values; tuples become lists."""
    found: dict[str, Any] = _listed(asdict(spec))
    return found


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
