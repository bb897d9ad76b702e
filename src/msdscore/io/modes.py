"""Every Pillow mode brought to 8-bit RGB."""

from typing import Any, TypeAlias

import numpy as np
from PIL import Image

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_WHITE = (255, 255, 255, 255)
_DEEP = ("I", "F")  # and everything that starts with "I;"


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in RGB mode: deep greys scaled to 8 bit, transparency laid on white.

    White is what a transparent picture stands on in nearly every page and viewer; dropping the alpha channel
    instead would show whatever colours the file hides below it, often black.

    >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _DEEP or image.mode.startswith("I;"):
        return Image.fromarray(_to_8bit(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    # Premultiplied modes only convert to their plain twins.
    plain = image.convert({"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode))
    picture = plain.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, _WHITE), picture).convert("RGB")


def _to_8bit(values: _Array, mode: str) -> _Array:
    """Scale by the declared depth where there is one, else by the range that the values themselves show."""
    levels = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = levels.min(), levels.max()
    if mode.startswith("I;"):
        low, high = 0.0, 65535.0
    elif low >= 0.0 and mode == "F" and high <= 1.0:
        low, high = 0.0, 1.0
    elif low >= 0.0 and high <= 255.0:
        low, high = 0.0, 255.0
    elif low >= 0.0 and high <= 65535.0:
        low, high = 0.0, 65535.0
    scaled: _Array = np.rint((levels - low) * (255.0 / ((high - low) or 1.0))).astype(np.uint8)
    return scaled
