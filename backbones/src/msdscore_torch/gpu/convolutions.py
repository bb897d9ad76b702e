"""Convolutions of maps in rows of channels (batch, rows, columns, channels) on a GPU, if Triton can compile for it.

They need no plans, as cuDNN does for every size of a batch, and apply ReLU6 to what they read, which saves a pass over
the widest maps. Padding is TensorFlow's: with a stride, more below and to the right.
"""

from functools import cache, lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from msdscore.core.arrays import Float
from msdscore_torch.gpu import fused

# Positions and channels of one program, and its warps: four channels per thread are one load of 16 bytes.
TILE, CHANNELS, WARPS = 64, 32, 4
FIRST_TILE = 64  # positions of one program of the first convolution
STRIP = 18  # most columns of a strip (see `depthwise._places`)
_AGREEMENT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}  # relative difference from plain torch


class DepthwiseConvolution:
    """ReLU6, a convolution of each channel with its bias, and ReLU6."""

    def __init__(
        self, weight: Float[Tensor, "channels 1 kernel kernel"], bias: Float[Tensor, " channels"], *, stride: int
    ) -> None:
        from msdscore_torch.gpu.depthwise import depthwise_kernel

        self._launch, self._kernel, self._stride = depthwise_kernel, weight.shape[2], stride
        self._weight, self._bias = weight.float().flatten(1).t().contiguous(), bias.float()

    def __call__(self, x: Float[Tensor, "batch height width channels"]) -> Float[Tensor, "batch _ _ channels"]:
        """Convolve a contiguous map."""
        batch, height, width, channels = x.shape
        rows, columns, above, left, strip = _geometry(height, width, self._kernel, self._stride)
        out, positions = x.new_empty((batch, rows, columns, channels)), batch * rows * columns
        self._launch[(-(-positions // TILE) * -(-channels // CHANNELS),)](
            x, self._weight, self._bias, out, positions, height, width, rows, columns, channels, strip, above, left,
            KERNEL=self._kernel, STRIDE=self._stride, TILE=TILE, CHANNELS=CHANNELS, num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        return out


class FirstConvolution:
    """A convolution of `scale * pixels - shift` with its bias, and ReLU6; its output has the dtype of the weight.

    The number of output channels is a power of two.
    """

    def __init__(
        self, weight: Float[Tensor, "channels 3 kernel kernel"], bias: Float[Tensor, " channels"], *, stride: int
    ) -> None:
        from msdscore_torch.gpu.depthwise import first_kernel

        self._launch, self._kernel, self._stride, self._dtype = first_kernel, weight.shape[2], stride, weight.dtype
        # Row-major taps, then planes, then output channels.
        self._weight, self._bias = weight.float().permute(2, 3, 1, 0).contiguous(), bias.float()

    def __call__(
        self, pixels: Float[Tensor, "batch 3 height width"], *, scale: float = 1.0, shift: float = 0.0
    ) -> Float[Tensor, "batch _ _ channels"]:
        """Convolve pixels of any dtype and with any strides."""
        (batch, _, height, width), channels = pixels.shape, len(self._bias)
        rows, columns, above, left, strip = _geometry(height, width, self._kernel, self._stride)
        out = torch.empty((batch, rows, columns, channels), dtype=self._dtype, device=pixels.device)
        self._launch[(-(-batch * rows * columns // FIRST_TILE),)](
            pixels, self._weight, self._bias, out,
            batch * rows * columns, height, width, rows, columns, strip, above, left, *pixels.stride(), scale, shift,
            KERNEL=self._kernel, STRIDE=self._stride, TILE=FIRST_TILE, CHANNELS=channels, num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        return out


@lru_cache(maxsize=256)
def _geometry(height: int, width: int, kernel: int, stride: int) -> tuple[int, int, int, int, int]:
    """Rows and columns of the output, padding above and to the left, and columns per strip."""
    rows, columns = -(-height // stride), -(-width // stride)
    above, left = (
        max((outputs - 1) * stride + kernel - size, 0) // 2 for outputs, size in ((rows, height), (columns, width))
    )
    strip = next(count for count in range(min(STRIP, columns), 0, -1) if columns % count == 0)
    return rows, columns, above, left, strip if 2 * strip > min(STRIP, columns) else columns


@cache
def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the convolutions work on a device; if they should but do not, warn once."""
    return dtype in _AGREEMENT and fused.works(device, partial(agrees, dtype=dtype), shared=0)


@torch.no_grad()
def agrees(device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    """Whether small convolutions match plain torch on the CPU."""
    generator = torch.Generator().manual_seed(0)
    gaps = []

    def compare(found: Tensor, expected: Tensor) -> None:
        gaps.append((found.cpu().float().permute(0, 3, 1, 2) - expected).abs().max() / 6)

    for kernel, stride in ((3, 1), (3, 2), (5, 1), (5, 2)):
        x = (3 * torch.randn(2, 11, 14, 48, generator=generator)).to(dtype)
        weight, bias = torch.randn(48, 1, kernel, kernel, generator=generator), torch.randn(48, generator=generator)
        convolution = DepthwiseConvolution(weight.to(device), bias.to(device), stride=stride)
        compare(convolution(x.to(device)), plain(functional.relu6(x.permute(0, 3, 1, 2)), weight, bias, stride=stride))
    pixels = torch.randint(0, 256, (2, 13, 10, 3), generator=generator, dtype=torch.uint8)
    weight, bias = torch.randn(32, 3, 3, 3, generator=generator), torch.randn(32, generator=generator)
    first = FirstConvolution(weight.to(device, dtype), bias.to(device), stride=2)
    normal = (pixels.float() / 128 - 127 / 128).permute(0, 3, 1, 2)
    compare(
        first(pixels.to(device).permute(0, 3, 1, 2), scale=1 / 128, shift=127 / 128),
        plain(normal, weight.to(dtype), bias, stride=2),
    )
    return all(bool(gap < _AGREEMENT[dtype]) for gap in gaps)


def plain(
    x: Float[Tensor, "batch channels height width"], weight: Tensor, bias: Tensor, *, stride: int
) -> Float[Tensor, "batch _ _ _"]:
    """The same with torch in float64, for maps with the channels first; depth-wise if the weight has one input."""
    kernel = weight.shape[2]
    rows, columns, above, left, _ = _geometry(x.shape[2], x.shape[3], kernel, stride)
    below, right = (
        max((outputs - 1) * stride + kernel - size - before, 0)
        for outputs, size, before in ((rows, x.shape[2], above), (columns, x.shape[3], left))
    )
    padded, groups = functional.pad(x.double(), (left, right, above, below)), x.shape[1] // weight.shape[1]
    return functional.relu6(functional.conv2d(padded, weight.double(), bias.double(), stride, groups=groups)).float()
