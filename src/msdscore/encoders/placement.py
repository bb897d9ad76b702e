"""Where an encoder runs and in which precision, and how its options are checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from msdscore.errors import ConfigError, unknown_name

Options = TypeVar("Options")

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the dtype that a model computes in there; its vectors always come out in float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as the signature spells it."""
        return str(self.dtype).removeprefix("torch.")


def place(device: str, dtype: str, *, half: torch.dtype = torch.float16) -> Placement:
    """Resolve `auto`: CUDA when there is one; float32 on CPU, `half` on CUDA.

    >>> place("cpu", "auto")
    Placement(device=device(type='cpu'), dtype=torch.float32)

    Raises:
        ConfigError: no such device or dtype.
    """
    where = _device(device)
    if dtype == "auto":
        return Placement(where, half if where.type == "cuda" else torch.float32)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype must be auto or one of {', '.join(_DTYPES)}, got {dtype!r}")
    return Placement(where, _DTYPES[dtype])


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"there is no device {device!r} here; use device='auto' or 'cpu'")
    return where


def read_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Build a family's options dataclass from keywords; an unknown keyword answers with the known ones."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise unknown_name("encoder option", name, known)
    return kind(**given)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ConfigError: the value is none of them.
    """
    if value not in choices:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def require_no_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse options for an encoder that has none.

    Raises:
        ConfigError: there are some.
    """
    if given:
        raise ConfigError(f"encoder {name!r} has no options, got {', '.join(sorted(given))}")
