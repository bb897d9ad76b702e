"""Images on the device: decoded once and stored as bytes; cropped, mirrored and distorted there."""

import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

from msdscore.core.arrays import Bool, Float, Int, UInt8
from msdscore.errors import ImageError
from msdscore.io.files import replacing
from msdscore.io.images import open_image
from msdscore_lab.pairs import Pairs, image_content
from train_mini.recipe import MiniSample

Pixels = Float[Tensor, "batch 3 height width"]
OnProgress = Callable[[int, int], None]
_CHUNK = 256  # images decoded between two reports of progress
_SHARE = 0.9  # largest share of the free disk space for decoded images
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
_WORST, _BEST = 40.0, 97.0  # qualities of images that are compressed again
_SMALLEST, _LEVELS = 0.45, 7  # smallest size of a shrunk image as a share, and number of sizes up to the full one
_NOISE = 5.0  # largest standard deviation, in values from 0 to 255


@dataclass(frozen=True, slots=True)
class DecodedImages:
    """Images resized to squares, and the errors of unreadable ones, which are grey."""

    pixels: npt.NDArray[np.uint8]  # [images, side, side, 3]
    bad: dict[int, str]


def decoded_images(
    pairs: Pairs, *, side: int, workers: int, cache: Path | None = None, on_progress: OnProgress | None = None
) -> DecodedImages:
    """Return all images of the pairs, decoded or from the cache; of several concurrent runs, one decodes for all.

    Nothing is cached if an image cannot be read, so that the next run tries again, or without disk space.
    """
    if cache is None:
        return decode(pairs, side=side, workers=workers, on_progress=on_progress)
    path = cache / f"pictures-{side}-{pairs.fingerprint}.npy"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.is_file():
            return DecodedImages(np.load(path), {})
        decoded = decode(pairs, side=side, workers=workers, on_progress=on_progress)
        if not decoded.bad and decoded.pixels.nbytes < _SHARE * shutil.disk_usage(cache).free:
            with replacing(path) as file:
                np.save(file, decoded.pixels)
        return decoded


def decode(pairs: Pairs, *, side: int, workers: int, on_progress: OnProgress | None = None) -> DecodedImages:
    """Decode all images of the pairs by several threads."""
    bad = dict[int, str]()
    pixels = np.full((len(pairs), side, side, 3), 127, dtype=np.uint8)

    def read(item: int) -> None:
        try:
            image = open_image(image_content(pairs.items[item].image))
        except ImageError as error:
            bad[item] = str(error)
            return
        if image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        pixels[item] = np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(pairs), _CHUNK):
            stop = min(len(pairs), start + _CHUNK)
            list(pool.map(read, range(start, stop)))
            if on_progress is not None:
                on_progress(stop, len(pairs))
    return DecodedImages(pixels, bad)


@dataclass(frozen=True, slots=True)
class ResidentImages:
    """Decoded images on the device; images with `sided[i]` must not be mirrored."""

    pixels: UInt8[Tensor, "images side side 3"]
    sided: Bool[Tensor, " images"]

    def views(
        self, items: Int[Tensor, " batch"], spec: MiniSample, *, size: int, generator: torch.Generator
    ) -> Float[Tensor, "batch 3 size size"]:
        """Draw one view of each image: values from 0 to 255, channels last in memory."""
        device, count = self.pixels.device, len(items)
        drawn = torch.rand(8, count, generator=generator, device=device)
        area = spec.crop + drawn[0] * (1 - spec.crop)
        aspect = torch.exp((2 * drawn[1] - 1) * math.log(1.25))
        width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        across, down = (2 * drawn[2] - 1) * (1 - width), (2 * drawn[3] - 1) * (1 - height)
        mirrored = (drawn[4] < 0.5) & ~self.sided[items] if spec.flip else torch.zeros_like(self.sided[items])
        whole = drawn[5] < spec.whole
        width, height = torch.where(whole, 1.0, width), torch.where(whole, 1.0, height)
        across, down = torch.where(whole, 0.0, across), torch.where(whole, 0.0, down)
        zero = torch.zeros_like(width)
        lines = [torch.where(mirrored, -width, width), zero, across, zero, height, down]
        grid = affine_grid(torch.stack(lines, dim=1).view(-1, 2, 3), [count, 3, size, size], align_corners=False)
        pixels, mode = self.pixels[items].permute(0, 3, 1, 2).float(), "bilinear"
        if spec.resaved or spec.shrunk or spec.noisy:
            pixels, mode = disturbed(pixels, spec, generator=generator)
        seen = grid_sample(pixels, grid, mode=mode, padding_mode="border", align_corners=False)
        return _lit(seen, (2 * drawn[6] - 1) * spec.contrast, (2 * drawn[7] - 1) * spec.brightness)


def _lit(
    pixels: Float[Tensor, "batch 3 size size"], contrast: Float[Tensor, " batch"], brightness: Float[Tensor, " batch"]
) -> Float[Tensor, "batch 3 size size"]:
    """Scale distances from the mean by 1 + `contrast` and the mean itself by 1 + `brightness`."""
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    gain, light = (1 + contrast).view(-1, 1, 1, 1), (1 + brightness).view(-1, 1, 1, 1)
    return ((pixels - mean) * gain + mean * light).clamp(0, 255).contiguous(memory_format=torch.channels_last)


def disturbed(pixels: Pixels, spec: MiniSample, *, generator: torch.Generator) -> tuple[Pixels, str]:
    """Shrink, compress and add noise to random images, by the shares of `spec`; also return a resampling filter.

    The number of changed images is the same at every step.
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
    """Shrink images and enlarge them again, by linear filters or by cubic ones."""
    height, width = pixels.shape[2:]
    mode = "bilinear" if smooth else "bicubic"
    side = (max(1, round(share * height)), max(1, round(share * width)))
    small = interpolate(pixels, side, mode=mode, antialias=True, align_corners=False)
    return interpolate(small, (height, width), mode=mode, align_corners=False).clamp(0, 255)


def resaved(pixels: Pixels, quality: Float[Tensor, " batch"]) -> Pixels:
    """Simulate JPEG quantisation of 8 x 8 blocks at a quality from 1 to 100, with the luma table for all channels."""
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50).view(-1, 1, 1, 1, 1, 1)
    steps = (scale * pixels.new_tensor(_STEPS) + 0.5).floor().clamp(min=1)
    height, width = pixels.shape[2:]
    filled = pad(pixels, (0, -width % _BLOCK, 0, -height % _BLOCK), mode="replicate")
    rows = filled.unflatten(3, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK)).transpose(3, 4)
    waves = _waves(pixels)
    quantised = ((waves @ (rows - 128) @ waves.mT) / steps).round() * steps
    blocks = waves.mT @ quantised @ waves + 128
    joined = blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return joined[:, :, :height, :width].clamp(0, 255)


def _waves(like: Tensor) -> Float[Tensor, "8 8"]:
    """Return the cosine transform of eight values; its rows have unit length."""
    index = torch.arange(_BLOCK, dtype=like.dtype, device=like.device)
    waves = torch.cos(math.pi * (2 * index + 1) * index.unsqueeze(1) / (2 * _BLOCK)) / 2
    waves[0] = math.sqrt(1 / _BLOCK)
    return waves
