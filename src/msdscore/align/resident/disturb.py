"""What happens to files of pictures on their way: saved again, made smaller, noise; drawn on the device."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate, pad

from msdscore.align.recipe import SampleSpec

_BLOCK = 8
# The quantisation of brightness in a JPEG of quality 50 (ITU-T T.81, table K.1), row by row.
_STEPS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_WORST, _BEST = 40.0, 97.0  # qualities of pictures that are saved again
_SMALLEST, _LEVELS = 0.45, 7  # share of the side that a small picture keeps, and sizes between it and the whole
_NOISE = 5.0  # largest standard deviation, in values from 0 to 255

Pixels = Float[Tensor, "batch 3 height width"]


def disturbed(pixels: Pixels, spec: SampleSpec, *, generator: torch.Generator) -> tuple[Pixels, str]:
    """Some pictures made smaller, saved again, with noise, as the shares of `spec` say; and a filter for what follows.

    As many pictures are changed at every step, and which ones is drawn.
    """
    count, device = len(pixels), pixels.device
    drawn = torch.rand(5, count, generator=generator, device=device)
    coins: list[float] = torch.rand(3, generator=generator, device=device).tolist()
    pixels = pixels.clone()
    if few := int(spec.shrunk * count):
        chosen = drawn[0].argsort()[:few]
        share = _SMALLEST + (1 - _SMALLEST) * int(_LEVELS * coins[0]) / _LEVELS
        pixels[chosen] = shrunk(pixels[chosen], share, smooth=coins[1] < 0.5)
    if few := int(spec.resaved * count):
        chosen = drawn[1].argsort()[:few]
        pixels[chosen] = resaved(pixels[chosen], _WORST + (_BEST - _WORST) * drawn[2][chosen])
    if few := int(spec.noisy * count):
        chosen = drawn[3].argsort()[:few]
        noise = torch.randn(pixels[chosen].shape, generator=generator, device=device)
        pixels[chosen] += noise * (_NOISE * drawn[4][chosen]).view(-1, 1, 1, 1)
    return pixels, "bilinear" if coins[2] < 0.5 else "bicubic"


def shrunk(pixels: Pixels, share: float, *, smooth: bool) -> Pixels:
    """Pictures made smaller and as large again, by linear filters or by cubic ones."""
    height, width = pixels.shape[2:]
    mode = "bilinear" if smooth else "bicubic"
    side = (max(1, round(share * height)), max(1, round(share * width)))
    small = interpolate(pixels, side, mode=mode, antialias=True, align_corners=False)
    return interpolate(small, (height, width), mode=mode, align_corners=False).clamp(0, 255)


def resaved(pixels: Pixels, quality: Float[Tensor, " batch"]) -> Pixels:
    """Blocks of 8 x 8 pixels as a JPEG of some quality from 1 to 100 keeps them, every colour as brightness is kept."""
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50).view(-1, 1, 1, 1, 1, 1)
    steps = (scale * pixels.new_tensor(_STEPS) + 0.5).floor().clamp(min=1)
    height, width = pixels.shape[2:]
    filled = pad(pixels, (0, -width % _BLOCK, 0, -height % _BLOCK), mode="replicate")
    rows = filled.unflatten(3, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK)).transpose(3, 4)
    waves = _waves(pixels)
    kept = ((waves @ (rows - 128) @ waves.mT) / steps).round() * steps
    blocks = waves.mT @ kept @ waves + 128
    whole = blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return whole[:, :, :height, :width].clamp(0, 255)


def _waves(like: Tensor) -> Float[Tensor, "8 8"]:
    """The cosine transform of eight values; its rows have unit length."""
    index = torch.arange(_BLOCK, dtype=like.dtype, device=like.device)
    waves = torch.cos(math.pi * (2 * index + 1) * index.unsqueeze(1) / (2 * _BLOCK)) / 2
    waves[0] = math.sqrt(1 / _BLOCK)
    return waves
