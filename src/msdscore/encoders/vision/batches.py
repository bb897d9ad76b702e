"""Batches of prepared images as normalised tensors on the device of a network."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float, UInt8
from msdscore.core.gpu.device import sent
from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.vision.canvas import Preprocessing
from msdscore.encoders.vision.preprocessing import mask_of


def normalise(
    pixels: UInt8[Tensor, "batch 3 height width"], steps: Preprocessing
) -> Float[Tensor, "batch 3 height width"]:
    """Scaled and normalised float32 pixels, on the device of the bytes."""
    mean, std = _levels(steps.mean, pixels.device), _levels(steps.std, pixels.device)
    return (pixels.float() * steps.scale - mean) / std


@lru_cache(maxsize=64)
def _levels(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "3 1 1"]:
    """One number per channel; cached on the device, since sending it would wait for pending work there."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def stack_pixels(
    images: Sequence[Prepared], steps: Preprocessing, device: torch.device
) -> Float[Tensor, "batch 3 height width"]:
    """Prepared images of one size as one batch of normalised pixels."""
    if not all(
        isinstance(image.pixels, np.ndarray) and image.pixels.shape[:0:-1] == image.view.canvas for image in images
    ):
        from msdscore.encoders.vision.device import on_canvases

        return normalise(on_canvases(images, steps, device), steps)
    # Pillow's bytes are row-major with the channels innermost: they are copied as they are, and permuted on the device.
    rows = [image.pixels.transpose(1, 2, 0) for image in images]
    if device.type == "cuda":
        # One batch in pinned memory, copied by one thread: the other cores have to decode.
        batch = torch.empty((len(rows), *rows[0].shape), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        for row, image in zip(batch.numpy(), rows, strict=True):
            row[:] = image
        moved = sent(batch, device)
    else:
        moved = torch.from_numpy(np.stack(rows)).to(device)
    return normalise(moved.permute(0, 3, 1, 2).contiguous(), steps)


def patch_mask(layouts: Sequence[PatchLayout]) -> Bool[Tensor, "batch points"]:
    """`mask_of` as a tensor."""
    return torch.from_numpy(mask_of(layouts))
