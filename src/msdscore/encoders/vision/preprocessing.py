"""Convert images to a model's pixels, and the model's patches back to boxes of the image.

The steps and their order are those of the checkpoint's preprocessor file, done only with Pillow, so that
the pixels do not depend on the preferred image backend of another library.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from msdscore.core.device import sent
from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.vision.canvas import Pixels, View, prepared_pixels
from msdscore.encoders.vision.canvas import Preprocessing as Preprocessing
from msdscore.encoders.vision.canvas import view_of as view_of
from msdscore.errors import WeightsError

_TINY = 32  # pixels of a side below which hardly anything is recognisable


def read_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """Parse the steps of a `preprocessor_config.json`.

    >>> read_preprocessing({"size": {"shortest_edge": 224}, "crop_size": 224, "do_normalize": False}).crop
    (224, 224)

    Raises:
        WeightsError: the file contains unsupported steps.
    """
    try:
        resize: int | tuple[int, int] | None = None
        if config.get("do_resize", True):
            size = config["size"]
            # Old files contain a bare number, or a pair; newer ones name the values.
            shortest = isinstance(size, Mapping) and "shortest_edge" in size and "longest_edge" not in size
            resize = int(size["shortest_edge"]) if shortest else size if isinstance(size, int) else _pair(size)
        crop = _pair(config["crop_size"]) if config.get("do_center_crop", "crop_size" in config) else None
        scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
        resample = int(config.get("resample", Image.Resampling.BICUBIC))
        mean: tuple[float, ...] = (0.0, 0.0, 0.0)
        std: tuple[float, ...] = (1.0, 1.0, 1.0)
        if config.get("do_normalize", True):
            mean, std = (tuple(map(float, config[f"image_{name}"])) for name in ("mean", "std"))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"preprocessor_config.json is not supported ({error!r}); download it again") from None
    return Preprocessing(resize, crop, resample, scale, mean, std)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        return int(size["width"]), int(size["height"])
    height, width = size
    return int(width), int(height)


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


def prepare_image(image: Image.Image, steps: Preprocessing) -> Prepared:
    """Apply the steps to a decoded image, without normalisation."""
    return as_prepared(*prepared_pixels(image, steps))


def as_prepared(pixels: Pixels, view: View) -> Prepared:
    """Wrap pixels (height, width, 3), or the bytes of an undecoded file, as a prepared image, without a copy."""
    values = torch.from_numpy(pixels)
    return Prepared(values if values.dim() == 1 else values.permute(2, 0, 1), view)


def preprocessing_of(encoder: object) -> Preprocessing | None:
    """The preprocessing steps of an encoder or a tower; None if it does anything else."""
    return getattr(encoder, "preprocessing", None)


def stack_pixels(
    images: Sequence[Prepared], steps: Preprocessing, device: torch.device
) -> Float[Tensor, "batch 3 height width"]:
    """Prepared images of one size as one batch of normalised pixels."""
    if not all(
        image.pixels.device.type == "cpu" and tuple(image.pixels.shape[:0:-1]) == image.view.canvas for image in images
    ):
        from msdscore.encoders.vision.device import on_canvases

        return normalise(on_canvases(images, steps, device), steps)
    # Pillow's bytes are row-major with the channels innermost: they are copied as they are, and permuted on the device.
    rows = [image.pixels.permute(1, 2, 0) for image in images]
    if device.type == "cuda":
        # One batch in pinned memory, copied by one thread: the other cores have to decode.
        batch = torch.empty((len(rows), *rows[0].shape), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        for row, image in zip(batch.numpy(), rows, strict=True):
            row[:] = image.numpy()
        moved = sent(batch, device)
    else:
        moved = torch.stack(rows).to(device)
    return normalise(moved.permute(0, 3, 1, 2).contiguous(), steps)


@lru_cache(maxsize=4096)
def patch_layout(view: View, grid: tuple[int, int], patch: tuple[float, float]) -> PatchLayout:
    """Boxes of original pixels for a grid of (rows, columns) patches of (width, height) canvas pixels.

    Resize and crop are undone; boxes are clipped to the image, so a patch of only padding has no
    area.

    >>> patch_layout(view_of(Preprocessing(resize=32, crop=(32, 32)), (128, 64)), (2, 2), (16, 16)).boxes[0]
    tensor([32.,  0., 64., 32.])
    """
    rows, columns = grid
    return cell_layout(view, columns=_edges(columns, patch[0]), rows=_edges(rows, patch[1]))


def cell_layout(view: View, *, columns: Float[Tensor, "columns 2"], rows: Float[Tensor, "rows 2"]) -> PatchLayout:
    """The layout of cells whose columns and rows (start, end) are in canvas pixels."""
    # One layout per image: arrays, since every operation on a small tensor costs as much as all of this.
    xs, ys = (
        np.clip((cells.numpy() + view.offset[axis]) * view.size[axis] / view.resized[axis], 0, view.size[axis])
        for axis, cells in enumerate((columns, rows))
    )
    boxes = np.empty((len(rows), len(columns), 4), dtype=np.float32)
    boxes[:, :, 0::2], boxes[:, :, 1::2] = xs, ys[:, np.newaxis]
    tiny = (f"tiny image: {view.size[0]} x {view.size[1]} pixels",) if min(view.size) < _TINY else ()
    grid = (len(rows), len(columns))
    return PatchLayout(view.size, grid, torch.from_numpy(boxes.reshape(-1, 4)), tiny)


@lru_cache(maxsize=256)
def _edges(cells: int, cell: float) -> Float[Tensor, "cells 2"]:
    """Start and end of adjacent cells; in float64 whole pixels remain exact."""
    edges = torch.arange(cells + 1, dtype=torch.float64) * cell
    return torch.stack([edges[:-1], edges[1:]], dim=-1)


def on_image(layout: PatchLayout) -> Tensor:
    """True for the patches that show some of the image and not only padding."""
    left, top, right, bottom = layout.boxes.unbind(dim=-1)
    return (right > left) & (bottom > top)


def mask_of(layouts: Sequence[PatchLayout]) -> Bool[Tensor, "batch points"]:
    """The mask of a batch of images with the same or different numbers of patches, padded at the end."""
    # Images of one size share their layout, so the mask is computed once for each layout.
    distinct = {id(layout): layout for layout in layouts}
    if len({len(layout.boxes) for layout in distinct.values()}) != 1:
        return pad_sequence([on_image(layout) for layout in layouts], batch_first=True)
    boxes = np.stack([layout.boxes.numpy() for layout in distinct.values()])
    real = (boxes[:, :, 2] > boxes[:, :, 0]) & (boxes[:, :, 3] > boxes[:, :, 1])
    position = {key: row for row, key in enumerate(distinct)}
    return torch.from_numpy(real[[position[id(layout)] for layout in layouts]])
