"""Convert images to a model's pixels, and the model's patches back to boxes of the image.

The steps and their order are those of the checkpoint's preprocessor file, done only with Pillow, so that
the pixels do not depend on the preferred image backend of another library.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from msdscore.core.arrays import Bool, Float
from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.vision.canvas import Pixels, View, prepared_pixels
from msdscore.encoders.vision.canvas import Preprocessing as Preprocessing
from msdscore.encoders.vision.canvas import view_of as view_of
from msdscore.errors import WeightsError

Cells = Float[np.ndarray, "cells 2"]  # start and end of the rows or columns of a grid
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


def prepare_image(image: Image.Image, steps: Preprocessing) -> Prepared:
    """Apply the steps to a decoded image, without normalisation."""
    return as_prepared(*prepared_pixels(image, steps))


def as_prepared(pixels: Pixels, view: View) -> Prepared:
    """Wrap pixels (height, width, 3), or the bytes of an undecoded file, as a prepared image, without a copy."""
    return Prepared(pixels if pixels.ndim == 1 else pixels.transpose(2, 0, 1), view)


def preprocessing_of(encoder: object) -> Preprocessing | None:
    """The preprocessing steps of an encoder or a tower; None if it does anything else."""
    return getattr(encoder, "preprocessing", None)


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


def on_image(layout: PatchLayout) -> Bool[np.ndarray, " points"]:
    """True for the patches that show some of the image and not only padding."""
    left, top, right, bottom = layout.boxes.T
    return (right > left) & (bottom > top)


def mask_of(layouts: Sequence[PatchLayout]) -> Bool[np.ndarray, "batch points"]:
    """The mask of a batch of images with the same or different numbers of patches, padded at the end."""
    # Images of one size share their layout, so the mask is computed once for each layout.
    distinct = {id(layout): on_image(layout) for layout in layouts}
    mask = np.zeros((len(layouts), max(map(len, distinct.values()))), dtype=bool)
    for row, layout in zip(mask, layouts, strict=True):
        real = distinct[id(layout)]
        row[: len(real)] = real
    return mask
