"""Where a model runs, and the precision it computes in."""

from dataclasses import dataclass

import torch

from msdscore.errors import ConfigError

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
