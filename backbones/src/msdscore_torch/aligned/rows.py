"""EfficientNet-Lite2 on a GPU, with maps in rows of channels: products with cuBLAS, the other convolutions with Triton.

An expansion is one product with its bias; the depth-wise convolution after it applies ReLU6 to what it reads and to
what it writes, so that each wide map is written once and read once.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from msdscore.core.arrays import Float
from msdscore_torch.aligned.lite2 import MIDDLE, Convolution, InvertedResidual, Lite2
from msdscore_torch.gpu.convolutions import DepthwiseConvolution, FirstConvolution
from msdscore_torch.gpu.fused import on_device

Rows = Float[Tensor, "batch height width channels"]


class RowNetworks:
    """Copies of networks that share their first stages, for inference in one dtype."""

    def __init__(self, networks: Sequence[Lite2], dtype: torch.dtype, *, shared: int) -> None:
        stem, self._shared = networks[0].stem, shared
        self._first = FirstConvolution(stem.weight.to(dtype), stem.bias, stride=stem.stride)
        built: dict[int, list[_Block]] = {}  # by the identity of a stage
        self._branches = [
            (
                [
                    built.setdefault(
                        id(stage), [_Block(block, dtype) for block in cast("Iterable[InvertedResidual]", stage)]
                    )
                    for stage in network.stages
                ],
                _Product(network.head, dtype),
            )
            for network in networks
        ]

    def __call__(
        self, pixels: Float[Tensor, "batch 3 height width"], *, scale: float = 1.0, shift: float = 0.0
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """The maps of all networks, as `branch_maps` of `scale * pixels - shift`, with the channels last in memory."""
        with on_device(pixels.device):
            x = _through(self._branches[0][0][: self._shared], self._first(pixels, scale=scale, shift=shift))
            maps = []
            for stages, head in self._branches:
                middle = _through(stages[self._shared : MIDDLE], x)
                last = _through(stages[MIDDLE:], middle)
                maps += [middle, last, head(last).clamp_(0, 6)]
        return [part.permute(0, 3, 1, 2) for part in maps]


def _through(stages: Sequence[Sequence["_Block"]], x: Rows) -> Rows:
    for stage in stages:
        for block in stage:
            x = block(x)
    return x


class _Product:
    """A convolution of single pixels, without its ReLU6."""

    def __init__(self, layer: Convolution, dtype: torch.dtype) -> None:
        self._weight, self._bias = layer.weight.flatten(1).t().to(dtype).contiguous(), layer.bias.to(dtype)

    def __call__(self, x: Rows) -> Rows:
        return torch.addmm(self._bias, x.view(-1, x.shape[3]), self._weight).view(*x.shape[:3], -1)


class _Block:
    """An inverted residual; an input without expansion is clamped already, and clamping it again changes nothing."""

    def __init__(self, block: InvertedResidual, dtype: torch.dtype) -> None:
        *expand, depth, project = cast("Iterable[Convolution]", block.layers)
        self._expand = [_Product(layer, dtype) for layer in expand]
        self._depth = DepthwiseConvolution(depth.weight.to(dtype), depth.bias, stride=depth.stride)
        self._project, self._skip = _Product(project, dtype), block.skip

    def __call__(self, x: Rows) -> Rows:
        wide = x
        for product in self._expand:
            wide = product(x)
        y = self._project(self._depth(wide))
        return y.add_(x) if self._skip else y
