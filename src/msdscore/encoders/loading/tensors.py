"""Read the tensors of weight files without running anything that a file may hold."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from msdscore.errors import WeightsError

_MATRIX = 2  # dimensions of what is stored as bytes
_STEPS = 127  # of a byte to either side of zero


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of some files, by safetensors or `torch.load(weights_only=True)`.

    Raises:
        WeightsError: a file is damaged, or holds anything but tensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= _tensors(path)
        except Exception as error:  # damaged files raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(f"weights of {str(path)!r} cannot be loaded ({reason}); fetch the file again") from error
    return tensors


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as bytes with a scale per row, a quarter of float32; all else in half precision.

    Convolutions are left in half precision, too: their errors would add up over the layers of a network.

    >>> small = packed({"line.weight": torch.tensor([[1.0, -0.5], [0.0, 0.25]]), "line.bias": torch.ones(2)})
    >>> sorted(small), small["line.weight"].dtype
    (['line.bias', 'line.weight', 'line.weight.scale'], torch.int8)
    >>> widened(small)["line.weight"].round(decimals=2)
    tensor([[ 1.0000, -0.5000],
            [ 0.0000,  0.2500]])
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != _MATRIX:
            found[name] = tensor.to(torch.float16).contiguous()
            continue
        scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _STEPS
        found |= {name: (tensor.float() / scale).round().to(torch.int8).contiguous(), f"{name}.scale": scale}
    return found


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in float32, whatever they are stored in."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            found[name] = tensor.float() * tensors[f"{name}.scale"]
        elif not (name.endswith(".scale") and tensors.get(name.removesuffix(".scale"), tensor).dtype == torch.int8):
            found[name] = tensor.float()
    return found


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return loaded.get("state_dict", loaded)
