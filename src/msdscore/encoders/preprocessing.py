"""Convert images to a model's pixels with Pillow, and the model's patches back to boxes of the image.

The steps and their order are those of the checkpoint's preprocessor file, so that the pixels do not depend on the
preferred image backend of another library. They need no torch: images are prepared in the processes that decode them.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from msdscore.core.arrays import Array, Float, UInt8, to_numpy
from msdscore.core.embeddings import PatchLayout
from msdscore.io.files import File
from msdscore.io.images import ImageLimits, open_image, open_reduced, plain_jpeg, source_name

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]  # (height, width, 3)
# Above this many pixels only the cropped part is resized: a 1 x 20000 image would grow to gigabytes.
_RESIZE_LIMIT = 2**24
DEVICE_PIXELS = 2**20  # maximum of an image that is resized on the device; 256 of them take 0.8 GB
DEVICE_JPEG_PIXELS = 2**26  # maximum of one that is decoded there, and of a batch


class View(NamedTuple):
    """Location of an image on the model's canvas: resized, then cropped from `offset`."""

    size: tuple[int, int]  # width, height of the original image
    resized: tuple[int, int]
    offset: tuple[int, int]  # left, top of the canvas in the resized image; negative if padded
    canvas: tuple[int, int]
    warnings: tuple[str, ...] = ()  # about the file of the image


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An image preprocessed for one encoder: the pixels of its network, and their location on the original.

    The vectors and boxes of the image depend on nothing else, and its size does not grow with that of the image. Pixels
    are a NumPy array, or a tensor if they were decoded on the device. A JPEG file to be decoded there is stored as its
    bytes.
    """

    pixels: UInt8[Array, "3 height width"] | UInt8[Array, " bytes"]
    view: View


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The steps of preprocessing: resize, then centre crop, then scale and normalise.

    `resize` is a shortest edge, or a (width, height) that squashes the image, or None; `crop` is a (width,
    height), black beyond the image. An offset of half a pixel is rounded up and left, or with
    `even_centre` to the even side, as in torchvision. With `reduced` a JPEG file is decoded at a half, a quarter
    or an eighth of its size if that is still at least this multiple of the resized one. With `on_device`
    torch resizes images on the device of the network instead of Pillow on the CPU; with `jpeg_on_device` JPEG files
    are also decoded there, and passed undecoded.
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


def prepared_key(image: Prepared) -> str:
    """Hash everything that the vectors and boxes of a prepared image depend on."""
    key: str | None = getattr(image, "key", None)  # of its file, if vectors are cached on disk
    if key is not None:
        return key
    digest = blake2b(repr((image.view, tuple(image.pixels.shape))).encode(), digest_size=20)
    # One layout for equal pixels: Pillow's bytes are row-major with the channels innermost.
    digest.update(to_numpy(image.pixels).transpose(1, 2, 0).tobytes())
    return digest.hexdigest()


def view_of(steps: Preprocessing, size: tuple[int, int]) -> View:
    """The location of an image of `size` (width, height) on the canvas.

    >>> view_of(Preprocessing(resize=32, crop=(32, 32)), (128, 64))[:4]
    ((128, 64), (64, 32), (16, 0), (32, 32))
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


def drawn(image: Image.Image, view: View, resample: int) -> Pixels:
    """Draw an image on the model's canvas; black where the canvas extends beyond it."""
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    left, top = view.offset
    right, bottom = left + view.canvas[0], top + view.canvas[1]
    if view.resized[0] * view.resized[1] > _RESIZE_LIMIT and min(left, top) >= 0:
        across, down = rgb.size[0] / view.resized[0], rgb.size[1] / view.resized[1]
        part = (left * across, top * down, right * across, bottom * down)
        return pixels_of(rgb.resize(view.canvas, resample, box=part))
    return pixels_of(rgb.resize(view.resized, resample).crop((left, top, right, bottom)))


def pixels_of(image: Image.Image) -> Pixels:
    """The unchanged pixels of an image."""
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def prepared_pixels(
    image: Image.Image, steps: Preprocessing, *, size: tuple[int, int] | None = None
) -> tuple[Pixels, View]:
    """Apply the steps to a decoded image, without normalisation.

    `size` is that of the original, if the image was decoded at a reduced size.
    """
    view = view_of(steps, size or image.size)
    # Not for a large image, whose pixels would fill the memory of a batch. An image of the size of the canvas is drawn
    # at once too: the two kinds are distinguished by their sizes.
    small = math.prod(image.size) <= DEVICE_PIXELS and math.prod(view.resized) <= DEVICE_PIXELS
    if steps.on_device and small and image.size != view.canvas:
        return pixels_of(image), view
    return drawn(image, view, steps.resample), view


def read_pixels(
    source: File, *, steps: Preprocessing, limits: ImageLimits, name: str | None = None
) -> tuple[Pixels, View]:
    """Decode and preprocess a file; at reduced size, or left as undecoded bytes, if the steps say so."""
    if steps.jpeg_on_device:
        content, size = plain_jpeg(source, limits=limits, name=name)
        view = None if size is None else view_of(steps, size)
        if view and math.prod(view.size) <= DEVICE_JPEG_PIXELS and math.prod(view.resized) <= DEVICE_PIXELS:
            return np.frombuffer(bytearray(content), dtype=np.uint8), view
        return prepared_pixels(open_image(content, limits=limits, name=name or source_name(source)), steps)
    if not steps.reduced:
        return prepared_pixels(open_image(source, limits=limits, name=name), steps)

    def needed(size: tuple[int, int]) -> tuple[int, int]:
        width, height = view_of(steps, size).resized
        return steps.reduced * width, steps.reduced * height

    image, size = open_reduced(source, needed, limits=limits, name=name)
    return prepared_pixels(image, steps, size=size)


Cells = Float[np.ndarray, "cells 2"]  # start and end of the rows or columns of a grid
_TINY = 32  # pixels of a side below which hardly anything is recognisable


def prepare_image(image: Image.Image, steps: Preprocessing) -> Prepared:
    """Apply the steps to a decoded image, without normalisation."""
    return as_prepared(*prepared_pixels(image, steps))


def as_prepared(pixels: Pixels, view: View) -> Prepared:
    """Wrap pixels (height, width, 3), or the bytes of an undecoded file, as a prepared image, without a copy."""
    return Prepared(pixels if pixels.ndim == 1 else pixels.transpose(2, 0, 1), view)


@lru_cache(maxsize=4096)
def patch_layout(view: View, grid: tuple[int, int], patch: tuple[float, float]) -> PatchLayout:
    """Boxes of original pixels for a grid of (rows, columns) patches of (width, height) canvas pixels.

    Resize and crop are undone; boxes are clipped to the image, so a patch of only padding has no
    area.

    >>> patch_layout(view_of(Preprocessing(resize=32, crop=(32, 32)), (128, 64)), (2, 2), (16, 16)).boxes[0].tolist()
    [32.0, 0.0, 64.0, 32.0]
    """
    rows, columns = grid
    return cell_layout(view, columns=_edges(columns, patch[0]), rows=_edges(rows, patch[1]))


def cell_layout(view: View, *, columns: Cells, rows: Cells) -> PatchLayout:
    """The layout of cells whose columns and rows (start, end) are in canvas pixels."""
    xs, ys = (
        np.clip((cells + view.offset[axis]) * view.size[axis] / view.resized[axis], 0, view.size[axis])
        for axis, cells in enumerate((columns, rows))
    )
    boxes = np.empty((len(rows), len(columns), 4), dtype=np.float32)
    boxes[:, :, 0::2], boxes[:, :, 1::2] = xs, ys[:, np.newaxis]
    tiny = (f"tiny image: {view.size[0]} x {view.size[1]} pixels",) if min(view.size) < _TINY else ()
    grid = (len(rows), len(columns))
    return PatchLayout(view.size, grid, boxes.reshape(-1, 4), (*tiny, *view.warnings))


@lru_cache(maxsize=256)
def _edges(cells: int, cell: float) -> Cells:
    """Start and end of adjacent cells; in float64 whole pixels remain exact."""
    edges = np.arange(cells + 1, dtype=np.float64) * cell
    return np.stack([edges[:-1], edges[1:]], axis=-1)
