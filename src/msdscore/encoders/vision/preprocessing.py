"""Pictures to the pixels of a model, and patches of the model back to boxes of the picture.

The steps and their order are those of the checkpoint's own preprocessor file, done with Pillow alone, so that
the pixels do not depend on which image backend another library happens to prefer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, pad
from torch.nn.utils.rnn import pad_sequence

from msdscore.encoders.base import PatchLayout, Prepared, View
from msdscore.errors import WeightsError

Edges: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]  # (cells, 2): start and end along one axis
# Above this many pixels only the cropped part is resized: a 1 x 20000 picture would grow to gigabytes.
_RESIZE_LIMIT = 2**24
DEVICE_PIXELS = 2**20  # of a picture that is resized on the device; 256 of them fill 0.8 GB
DEVICE_FILTERS: dict[int, str] = {Image.Resampling.BICUBIC: "bicubic", Image.Resampling.BILINEAR: "bilinear"}
_TINY = 32  # pixels of a side under which hardly anything can be seen


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The steps of preprocessing: resize, then centre crop, then scale and normalise.

    `resize` is a shortest edge, or a (width, height) that squashes the picture, or None; `crop` is a (width,
    height), black where it reaches beyond the picture. Half a pixel beside the centre goes up and left, or with
    `even_centre` to the even side, as torchvision rounds. With `reduced` a JPEG file is decoded at a half, a quarter
    or an eighth of its size where that is still so many times as large as what it is resized to. With `on_device`
    torch resizes pictures where the network runs, and not Pillow where they are decoded.
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int = Image.Resampling.BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    even_centre: bool = False
    reduced: int = 0
    on_device: bool = False


def read_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """The steps that a `preprocessor_config.json` describes.

    >>> read_preprocessing({"size": {"shortest_edge": 224}, "crop_size": 224, "do_normalize": False}).crop
    (224, 224)

    Raises:
        WeightsError: the file describes steps that are not understood.
    """
    try:
        resize = _edge(config["size"]) if config.get("do_resize", True) else None
        crop = _pair(config["crop_size"]) if config.get("do_center_crop", "crop_size" in config) else None
        scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
        resample = int(config.get("resample", Image.Resampling.BICUBIC))
        mean, std = _statistics(config)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"preprocessor_config.json is not understood ({error!r}); fetch it again") from None
    return Preprocessing(resize, crop, resample, scale, mean, std)


def _statistics(config: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not config.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean = tuple(float(value) for value in config["image_mean"])
    std = tuple(float(value) for value in config["image_std"])
    return mean, std


def _edge(size: Any) -> int | tuple[int, int]:
    """Old files give a bare number, or a pair; newer ones name what they mean."""
    if isinstance(size, int):
        return size
    if isinstance(size, Mapping) and "shortest_edge" in size and "longest_edge" not in size:
        return int(size["shortest_edge"])
    return _pair(size)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        return int(size["width"]), int(size["height"])
    height, width = size
    return int(width), int(height)


def view(steps: Preprocessing, size: tuple[int, int]) -> View:
    """Where a picture of `size` (width, height) lies on the canvas.

    >>> view(Preprocessing(resize=32, crop=(32, 32)), (128, 64))
    View(size=(128, 64), resized=(64, 32), offset=(16, 0), canvas=(32, 32))
    """
    resized = _resized(steps.resize, size)
    canvas = steps.crop or resized
    spare = (resized[0] - canvas[0], resized[1] - canvas[1])
    offset = tuple(round(side / 2) if steps.even_centre else side // 2 for side in spare)
    return View(size, resized, (offset[0], offset[1]), canvas)


def _resized(resize: int | tuple[int, int] | None, size: tuple[int, int]) -> tuple[int, int]:
    if resize is None:
        return size
    if isinstance(resize, tuple):
        return resize
    width, height = size
    if width <= height:
        return resize, int(resize * height / width)
    return int(resize * width / height), resize


def draw(picture: Image.Image, where: View, resample: int) -> UInt8[Tensor, "3 height width"]:
    """The picture on the model's canvas; black where the canvas reaches beyond it."""
    rgb = picture if picture.mode == "RGB" else picture.convert("RGB")
    left, top = where.offset
    right, bottom = left + where.canvas[0], top + where.canvas[1]
    if where.resized[0] * where.resized[1] > _RESIZE_LIMIT and min(left, top) >= 0:
        across, down = rgb.size[0] / where.resized[0], rgb.size[1] / where.resized[1]
        part = (left * across, top * down, right * across, bottom * down)
        drawn = rgb.resize(where.canvas, resample, box=part)
    else:
        drawn = rgb.resize(where.resized, resample).crop((left, top, right, bottom))
    return torch.from_numpy(np.array(drawn)).permute(2, 0, 1)


def normalise(
    pixels: UInt8[Tensor, "batch 3 height width"], steps: Preprocessing
) -> Float[Tensor, "batch 3 height width"]:
    """Scaled and normalised float32 pixels, on the device where the bytes are."""
    mean = torch.tensor(steps.mean, device=pixels.device).view(-1, 1, 1)
    std = torch.tensor(steps.std, device=pixels.device).view(-1, 1, 1)
    return (pixels.float() * steps.scale - mean) / std


def prepare_picture(picture: Image.Image, steps: Preprocessing, *, size: tuple[int, int] | None = None) -> Prepared:
    """A decoded picture as the steps leave it, before its numbers are scaled.

    `size` is that of the original, where the picture was decoded at a reduced one.
    """
    where = view(steps, size or picture.size)
    if steps.on_device and _waits(picture.size, where):
        return Prepared(_bytes(picture), where)
    return Prepared(draw(picture, where, steps.resample), where)


def preprocessing_of(encoder: object) -> Preprocessing | None:
    """The steps by which an encoder or a tower makes pictures ready; None where it does anything else."""
    return getattr(encoder, "preprocessing", None)


def whole_picture(picture: Image.Image) -> Prepared:
    """A picture as it is, for networks that take any size."""
    return Prepared(_bytes(picture), View(picture.size, picture.size, (0, 0), picture.size))


def _bytes(picture: Image.Image) -> UInt8[Tensor, "3 height width"]:
    rgb = picture if picture.mode == "RGB" else picture.convert("RGB")
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)


def _waits(size: tuple[int, int], where: View) -> bool:
    """Whether a picture is resized on the device: not a large one, whose pixels would fill the memory of a batch.

    One of the canvas's own size is drawn at once too: by their size `stack_pixels` knows which ones are.
    """
    return (
        size[0] * size[1] <= DEVICE_PIXELS
        and where.resized[0] * where.resized[1] <= DEVICE_PIXELS
        and (size != where.canvas)
    )


def stack_pixels(
    pictures: Sequence[Prepared], steps: Preprocessing, device: torch.device
) -> Float[Tensor, "batch 3 height width"]:
    """Prepared pictures of one size as one batch of normalised pixels."""
    if steps.on_device:
        return normalise(torch.stack([_on_canvas(picture, steps, device) for picture in pictures]), steps)
    # Pillow's bytes lie row by row with the colours innermost: they are copied as they lie, and turned on the device.
    rows = torch.stack([picture.pixels.permute(1, 2, 0) for picture in pictures])
    there = rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows.to(device)
    return normalise(there.permute(0, 3, 1, 2).contiguous(), steps)


def _on_canvas(picture: Prepared, steps: Preprocessing, device: torch.device) -> UInt8[Tensor, "3 height width"]:
    """One picture on the canvas, resized on the device where it was not before."""
    rows = picture.pixels.permute(1, 2, 0)
    there = rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows.to(device)
    pixels, where = there.permute(2, 0, 1), picture.view
    if pixels.shape[1:] == where.canvas[::-1]:
        return pixels
    drawn, (across, down) = pixels.unsqueeze(0).float(), where.resized
    for size in ((drawn.shape[2], across), (down, across)):
        # One direction after the other, rounded between them, as Pillow does (from version 13 on in either order).
        drawn = interpolate(drawn, size, mode=DEVICE_FILTERS[steps.resample], antialias=True).round().clamp(0, 255)
    (left, top), (width, height) = where.offset, where.canvas
    beyond = (-left, left + width - across, -top, top + height - down)
    return pad(drawn[0], beyond).to(torch.uint8)


@lru_cache(maxsize=4096)
def patch_layout(where: View, grid: tuple[int, int], patch: tuple[float, float]) -> PatchLayout:
    """Boxes of original pixels for a grid of (rows, columns) patches of (width, height) canvas pixels.

    Resize and crop are undone; what lies beyond the picture is cut off, so a patch of padding alone has no
    area.

    >>> patch_layout(view(Preprocessing(resize=32, crop=(32, 32)), (128, 64)), (2, 2), (16, 16)).boxes[0]
    tensor([32.,  0., 64., 32.])
    """
    rows, columns = grid
    return cell_layout(where, columns=_edges(columns, patch[0]), rows=_edges(rows, patch[1]))


def cell_layout(where: View, *, columns: Float[Tensor, "columns 2"], rows: Float[Tensor, "rows 2"]) -> PatchLayout:
    """The layout of cells whose columns and rows (start, end) are given in pixels of the canvas."""
    xs = _original(columns, where.offset[0], where.size[0], where.resized[0])
    ys = _original(rows, where.offset[1], where.size[1], where.resized[1])
    # One layout per picture: arrays, since every operation on a small tensor costs as much as all of this.
    boxes = np.empty((len(rows), len(columns), 4), dtype=np.float32)
    boxes[:, :, 0::2], boxes[:, :, 1::2] = xs, ys[:, np.newaxis]
    tiny = (f"tiny picture: {where.size[0]} x {where.size[1]} pixels",) if min(where.size) < _TINY else ()
    found = torch.from_numpy(boxes.reshape(-1, 4))
    return PatchLayout(size=where.size, grid=(len(rows), len(columns)), boxes=found, warnings=tiny)


@lru_cache(maxsize=256)
def _edges(cells: int, cell: float) -> Float[Tensor, "cells 2"]:
    """Start and end of cells that lie side by side; float64 keeps whole pixels whole."""
    edges = torch.arange(cells + 1, dtype=torch.float64) * cell
    return torch.stack([edges[:-1], edges[1:]], dim=-1)


def _original(canvas: Float[Tensor, "cells 2"], offset: int, size: int, resized: int) -> Edges:
    """Places of the canvas along one axis, in original pixels."""
    return np.clip((canvas.numpy() + offset) * size / resized, 0, size).astype(np.float32)


def on_picture(layout: PatchLayout) -> Tensor:
    """True for the patches that show some of the picture and not padding alone."""
    left, top, right, bottom = layout.boxes.unbind(dim=-1)
    return (right > left) & (bottom > top)


def mask_of(layouts: Sequence[PatchLayout]) -> Bool[Tensor, "batch points"]:
    """The mask of a batch of pictures with the same or different numbers of patches, padded at the end."""
    if len({len(layout.boxes) for layout in layouts}) != 1:
        return pad_sequence([on_picture(layout) for layout in layouts], batch_first=True)
    boxes = np.stack([layout.boxes.numpy() for layout in layouts])
    return torch.from_numpy((boxes[:, :, 2] > boxes[:, :, 0]) & (boxes[:, :, 3] > boxes[:, :, 1]))
