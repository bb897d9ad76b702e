"""Tensors of networks: files of weights, whose loading never runs code, and the features that networks return."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from msdscore.core.arrays import Array, Bool, Float
from msdscore.core.embeddings import PatchLayout, TokenLayout
from msdscore.encoders.tokens import Windows
from msdscore.errors import WeightsError

_MATRIX = 2  # dimensions of tensors stored as bytes
_STEPS = 127  # of a byte on either side of zero


@dataclass(frozen=True, slots=True)
class Features:
    """Local vectors of any length, before they become `Embeddings`: network states, or raw features for heads.

    `pooled` are the pooled vectors of the network, or None for the mean of the points. `whole` contains the points of a
    second, global path if one was requested. If `windows` is set, the rows of `whole` and `pooled` are windows of
    captions, which it combines. `filled` is True for every item that has a real point, if the host knows it.
    """

    points: Float[Array, "batch points dim"]
    mask: Bool[Array, "batch points"]
    pooled: Float[Array, "rows pooled_dim"] | None = None
    layout: tuple[PatchLayout | TokenLayout, ...] = ()
    whole: "Features | None" = None
    windows: Windows | None = None
    filled: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return self.points.shape[0]


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """Read all tensors of files, by safetensors or `torch.load(weights_only=True)`.

    Raises:
        WeightsError: a file is damaged, or contains anything but tensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            if path.suffix == ".safetensors":
                tensors |= load_file(path)
            else:
                loaded = torch.load(path, map_location="cpu", weights_only=True)
                tensors |= loaded.get("state_dict", loaded)
        except Exception as error:  # damaged files raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(f"weights of {str(path)!r} cannot be loaded ({reason}); download it again") from error
    return tensors


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as bytes with a scale per row, a quarter of float32; everything else in half precision.

    Convolutions remain in half precision, too: their errors would add up over the layers of a network.

    >>> small = packed({"line.weight": torch.tensor([[1.0, -0.5], [0.0, 0.25]]), "line.bias": torch.ones(2)})
    >>> sorted(small), small["line.weight"].dtype
    (['line.bias', 'line.weight', 'line.weight.scale'], torch.int8)
    >>> widened(small)["line.weight"].round(decimals=2)
    tensor([[ 1.0000, -0.5000],
            [ 0.0000,  0.2500]])
    """
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != _MATRIX:
            small[name] = tensor.to(torch.float16).contiguous()
            continue
        scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _STEPS
        small |= {name: (tensor.float() / scale).round().to(torch.int8).contiguous(), f"{name}.scale": scale}
    return small


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in float32, whatever they are stored in."""
    wide = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            wide[name] = tensor.float() * tensors[f"{name}.scale"]
        elif not (name.endswith(".scale") and tensors.get(name.removesuffix(".scale"), tensor).dtype == torch.int8):
            wide[name] = tensor.float()
    return wide
