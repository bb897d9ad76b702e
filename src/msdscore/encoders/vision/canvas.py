"""Images on the canvas of a model: resized and cut out by Pillow, without torch, wherever they are decoded."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from msdscore.io.images import ImageLimits, open_image, open_reduced, plain_jpeg, source_name
from msdscore.io.tar import File

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]  # (height, width, 3)
# Above this many pixels only the cropped part is resized: a 1 x 20000 image would grow to gigabytes.
_RESIZE_LIMIT = 2**24
DEVICE_PIXELS = 2**20  # of an image that is resized on the device; 256 of them fill 0.8 GB
DEVICE_JPEG_PIXELS = 2**26  # of one that is decoded there: so many at a time


class View(NamedTuple):
    """How one image lies on the model's canvas: resized, then cut out from `offset` on."""

    size: tuple[int, int]  # width, height of the original image
    resized: tuple[int, int]
    offset: tuple[int, int]  # left, top of the canvas in the resized image; negative where it is padded
    canvas: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The steps of preprocessing: resize, then centre crop, then scale and normalise.

    `resize` is a shortest edge, or a (width, height) that squashes the image, or None; `crop` is a (width,
    height), black where it reaches beyond the image. Half a pixel beside the centre goes up and left, or with
    `even_centre` to the even side, as torchvision rounds. With `reduced` a JPEG file is decoded at a half, a quarter
    or an eighth of its size where that is still so many times as large as what it is resized to. With `on_device`
    torch resizes images where the network runs, and not Pillow where they are decoded; with `jpeg_on_device` JPEG files
    are decoded there too, and come there as they are.
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
    jpeg_on_device: bool = False


def view(steps: Preprocessing, size: tuple[int, int]) -> View:
    """Where an image of `size` (width, height) lies on the canvas.

    >>> view(Preprocessing(resize=32, crop=(32, 32)), (128, 64))
    View(size=(128, 64), resized=(64, 32), offset=(16, 0), canvas=(32, 32))
    """
    resized = steps.resize or size
    if isinstance(resized, int):  # of the shorter side
        width, height = size
        longer = int(resized * max(size) / min(size))
        resized = (resized, longer) if width <= height else (longer, resized)
    canvas = steps.crop or resized
    spare = (resized[0] - canvas[0], resized[1] - canvas[1])
    offset = tuple(round(side / 2) if steps.even_centre else side // 2 for side in spare)
    return View(size, resized, (offset[0], offset[1]), canvas)


def drawn(image: Image.Image, where: View, resample: int) -> Pixels:
    """The image on the model's canvas; black where the canvas reaches beyond it."""
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    left, top = where.offset
    right, bottom = left + where.canvas[0], top + where.canvas[1]
    if where.resized[0] * where.resized[1] > _RESIZE_LIMIT and min(left, top) >= 0:
        across, down = rgb.size[0] / where.resized[0], rgb.size[1] / where.resized[1]
        part = (left * across, top * down, right * across, bottom * down)
        return pixels_of(rgb.resize(where.canvas, resample, box=part))
    return pixels_of(rgb.resize(where.resized, resample).crop((left, top, right, bottom)))


def pixels_of(image: Image.Image) -> Pixels:
    """The pixels of an image as they are."""
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def prepared_pixels(
    image: Image.Image, steps: Preprocessing, *, size: tuple[int, int] | None = None
) -> tuple[Pixels, View]:
    """A decoded image as the steps leave it, before its numbers are scaled.

    `size` is that of the original, where the image was decoded at a reduced one.
    """
    where = view(steps, size or image.size)
    # Not a large image: its pixels would fill the memory of a batch. One of the canvas's own size is drawn
    # at once too: by their size it is known which ones are.
    small = math.prod(image.size) <= DEVICE_PIXELS and math.prod(where.resized) <= DEVICE_PIXELS
    if steps.on_device and small and image.size != where.canvas:
        return pixels_of(image), where
    return drawn(image, where, steps.resample), where


def read_pixels(
    source: File, *, steps: Preprocessing, limits: ImageLimits, name: str | None = None
) -> tuple[Pixels, View]:
    """A file decoded and made ready; at reduced size, or left as a row of bytes, where the steps ask for it."""
    if steps.jpeg_on_device:
        content, size = plain_jpeg(source, limits=limits, name=name)
        where = None if size is None else view(steps, size)
        if where and math.prod(where.size) <= DEVICE_JPEG_PIXELS and math.prod(where.resized) <= DEVICE_PIXELS:
            return np.frombuffer(bytearray(content), dtype=np.uint8), where
        return prepared_pixels(open_image(content, limits=limits, name=name or source_name(source)), steps)
    if not steps.reduced:
        return prepared_pixels(open_image(source, limits=limits, name=name), steps)

    def needed(size: tuple[int, int]) -> tuple[int, int]:
        width, height = view(steps, size).resized
        return steps.reduced * width, steps.reduced * height

    image, size = open_reduced(source, needed, limits=limits, name=name)
    return prepared_pixels(image, steps, size=size)
