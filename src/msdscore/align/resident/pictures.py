"""Pictures on the device: decoded once, kept as bytes, cropped, mirrored and lit there."""

import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from msdscore.align.data.pairs import Pairs, picture_content
from msdscore.align.recipe import SampleSpec
from msdscore.align.resident.disturb import disturbed
from msdscore.errors import ImageError
from msdscore.io.atomic import in_turn, replacing
from msdscore.io.images import open_image

Tell = Callable[[int, int], None]
_CHUNK = 256  # pictures decoded before they are told
_SHARE = 0.9  # of a free disk that kept pictures may take


@dataclass(frozen=True, slots=True)
class SquarePictures:
    """Pictures squashed to one square, and why some could not be read (they are grey)."""

    pixels: npt.NDArray[np.uint8]  # [pictures, side, side, 3]
    bad: dict[int, str]


def squares(
    pairs: Pairs, *, side: int, workers: int, cache: Path | None = None, tell: Tell | None = None
) -> SquarePictures:
    """All pictures of some pairs, decoded or taken from the cache; of several runs at once one decodes for all.

    Nothing is kept while a picture cannot be read, so that the next run tries again, or where the disk has no room.
    """
    if cache is None:
        return decode(pairs, side=side, workers=workers, tell=tell)
    path = cache / f"pictures-{side}-{pairs.fingerprint}.npy"
    with in_turn(path.with_suffix(".lock")):
        if path.is_file():
            return SquarePictures(np.load(path), {})
        found = decode(pairs, side=side, workers=workers, tell=tell)
        if not found.bad and found.pixels.nbytes < _SHARE * shutil.disk_usage(cache).free:
            with replacing(path) as file:
                np.save(file, found.pixels)
        return found


def decode(pairs: Pairs, *, side: int, workers: int, tell: Tell | None = None) -> SquarePictures:
    """All pictures of some pairs, read by several threads."""
    bad = dict[int, str]()
    pixels = np.full((len(pairs), side, side, 3), 127, dtype=np.uint8)

    def read(item: int) -> None:
        try:
            picture = open_image(picture_content(pairs.items[item].picture))
        except ImageError as error:
            bad[item] = str(error)
            return
        if picture.size != (side, side):
            picture = picture.resize((side, side), Image.Resampling.BICUBIC)
        pixels[item] = np.asarray(picture.convert("RGB"))

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(pairs), _CHUNK):
            stop = min(len(pairs), start + _CHUNK)
            list(pool.map(read, range(start, stop)))
            if tell is not None:
                tell(stop, len(pairs))
    return SquarePictures(pixels, bad)


@dataclass(frozen=True, slots=True)
class ResidentPictures:
    """Decoded pictures on the device; `sided[i]` says that picture i must not be mirrored."""

    pixels: UInt8[Tensor, "pictures side side 3"]
    sided: Bool[Tensor, " pictures"]

    def views(
        self, items: Int[Tensor, " batch"], spec: SampleSpec, *, size: int, generator: torch.Generator
    ) -> Float[Tensor, "batch 3 size size"]:
        """One view of each picture, drawn anew: values from 0 to 255, channels last in memory."""
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
    """Distances from the mean grow by the share `contrast`, the mean itself by `brightness`."""
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    gain, light = (1 + contrast).view(-1, 1, 1, 1), (1 + brightness).view(-1, 1, 1, 1)
    return ((pixels - mean) * gain + mean * light).clamp(0, 255).contiguous(memory_format=torch.channels_last)
