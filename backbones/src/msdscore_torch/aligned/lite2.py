"""The image network of `mini`: EfficientNet-Lite2 as plain convolutions, with batch norms folded in.

The network is small and frozen, so it is implemented here: it loads in a fraction of a second, has no batch norms
to run, and its results do not depend on the version of another library. A test compares it with
timm's implementation on the same weights.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from msdscore.core.arrays import Float
from msdscore.errors import WeightsError

BASE = "lite2.safetensors"  # convolutions of the ImageNet checkpoint, in half precision

# kernel, stride, expansion, channels, blocks
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 48, 3),
    (3, 2, 6, 88, 4),
    (5, 1, 6, 120, 4),
    (5, 2, 6, 208, 5),
    (3, 1, 6, 352, 1),
)
STEM, HEAD = 32, 1280
MIDDLE = 5  # stages up to stride 16
SIZE, GRID = 288, 12  # of the shipped encoder

Maps = tuple[
    Float[Tensor, "batch 120 rows columns"],
    Float[Tensor, "batch 352 half_rows half_columns"],
    Float[Tensor, "batch 1280 half_rows half_columns"],
]


class Convolution(nn.Module):
    """A convolution with its batch norm folded in, TensorFlow's padding, and ReLU6 unless it ends a block."""

    def __init__(self, shape: tuple[int, int, int], *, stride: int = 1, groups: int = 1, active: bool = True) -> None:
        super().__init__()
        inputs, outputs, self.kernel = shape
        self.stride, self.groups, self.active = stride, groups, active
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, self.kernel, self.kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        """Convolve; with a stride the padding is uneven, more below and to the right."""
        padding = self.kernel // 2
        if self.stride > 1:
            sizes = x.shape[3], x.shape[2]
            missing = [max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0) for size in sizes]
            x, padding = functional.pad(x, [side for all_ in missing for side in (all_ // 2, all_ - all_ // 2)]), 0
        if self.active and x.device.type == "cpu" and not torch.is_grad_enabled() and (fused := _fused()) is not None:
            shape = [padding] * 2, [self.stride] * 2, [1, 1]
            return fused(x, self.weight, self.bias, *shape, self.groups, "hardtanh", [0.0, 6.0], "")
        if x.device.type == "cuda" and not torch.is_grad_enabled():
            x = self.unplanned(x, padding)
        else:
            x = functional.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(x, inplace=not torch.is_grad_enabled()) if self.active else x

    def unplanned(self, x: Tensor, padding: int) -> Tensor:
        """Convolve without cuDNN, which plans every layer anew for every size of a batch and in every thread.

        The plans of this network take seconds, its convolutions milliseconds.
        """
        weight, bias, pair = self.weight.to(x.dtype), self.bias.to(x.dtype), (self.kernel, self.kernel)
        if self.groups > 1:
            strides, paddings = (self.stride, self.stride), (padding, padding)
            return torch.ops.aten._conv_depthwise2d(x, weight, pair, bias, strides, paddings, (1, 1))
        rows, columns = ((side + 2 * padding - self.kernel) // self.stride + 1 for side in x.shape[2:])
        inputs = x.flatten(2) if self.kernel == 1 else functional.unfold(x, pair, padding=padding, stride=self.stride)
        products = torch.bmm(weight.flatten(1).expand(len(x), -1, -1), inputs)
        return products.add_(bias[:, None]).unflatten(2, (rows, columns))


@cache
def _fused() -> Any | None:
    """Convolution and ReLU6 in one kernel, as called by torch's compiler; None if torch lacks it.

    The results equal those of separate calls up to rounding, in less time (perf/mini.py).
    """
    return getattr(torch.ops.mkldnn, "_convolution_pointwise", None) if torch.backends.mkldnn.is_available() else None


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; added to its input if the shapes match."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        expand = [Convolution((inputs, wide, 1))] if expansion > 1 else []
        depth = Convolution((wide, wide, kernel), stride=stride, groups=wide)
        self.layers = nn.Sequential(*expand, depth, Convolution((wide, outputs, 1), active=False))
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.layers(x)
        if not self.skip:
            return y
        return y + x if torch.is_grad_enabled() else y.add_(x)


class Lite2(nn.Module):
    """Images to the maps at stride 16, at stride 32, and after the last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution((3, STEM, 3), stride=2)
        stages, inputs = [], STEM
        for kernel, stride, expansion, outputs, count in STAGES:
            first = InvertedResidual(inputs, outputs, kernel, stride, expansion)
            rest = [InvertedResidual(outputs, outputs, kernel, 1, expansion) for _ in range(count - 1)]
            stages.append(nn.Sequential(first, *rest))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = Convolution((inputs, HEAD, 1))

    def forward(self, pixels: Float[Tensor, "batch 3 height width"]) -> Maps:
        """The three maps; pixels are (x − 127) / 128."""
        return self.resume(self.stem(pixels), done=0)

    def resume(self, x: Tensor, *, done: int) -> Maps:
        """Compute the three maps from the output of the first `done` stages, none of them past stride 16."""
        middle = self.stages[done:MIDDLE](x)
        last = self.stages[MIDDLE:](middle)
        return middle, last, self.head(last)


def share_stages(networks: Sequence[Lite2]) -> int:
    """Share the first stages (up to stride 16) that have the same weights in all networks; return their number."""

    def equal(own: nn.Module, other: nn.Module) -> bool:
        return all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters(), strict=True))

    first, *others = networks
    if not all(equal(first.stem, other.stem) for other in others):
        raise WeightsError("branches of EfficientNet-Lite2 must share one stem; export them without tuning it")
    for other in others:
        other.stem = first.stem
    for count in range(MIDDLE):
        if not all(equal(first.stages[count], other.stages[count]) for other in others):
            return count
        for other in others:
            other.stages[count] = first.stages[count]
    return MIDDLE


def branch_maps(networks: Sequence[Lite2], pixels: Tensor, *, shared: int) -> list[Tensor]:
    """The concatenated maps of all networks; shared stages are computed once."""
    first = networks[0]
    x = first.stages[:shared](first.stem(pixels))
    return [part for network in networks for part in network.resume(x, done=shared)]


def load_lite2(state: Mapping[str, Tensor], *, source: str = BASE) -> Lite2:
    """Build the frozen network from its convolutions.

    Raises:
        WeightsError: they do not fit; `source` is named in the message.
    """
    with torch.device("meta"):
        network = Lite2()
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"{source} does not fit EfficientNet-Lite2 ({reason}); export it again") from None
    return network.eval().requires_grad_(False)
