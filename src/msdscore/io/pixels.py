"""Pixels of any kind brought to 8-bit RGB: Pillow modes, arrays and tensors; what has no clear meaning is refused."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image

from msdscore.errors import ImageError

Pixels: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_WHITE = (255, 255, 255, 255)
_DEEP = ("I", "F")  # and everything that starts with "I;"
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_HALF_LEVEL = 0.5 / 255.0  # an overshoot of resampling up to this rounds to the nearest level
_DIM = 16.0  # floats above 1 whose maximum stays below it would be black on the scale of 255


@runtime_checkable
class Tensor(Protocol):
    """What a torch tensor can do; torch itself is not imported here."""

    def detach(self) -> Any:
        """The values without their history."""

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""


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
        return Image.fromarray(_deep_grey(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image)
    return image.convert("RGB")


def from_tensor(tensor: Tensor) -> Image.Image:
    """The picture of a tensor, channels first (as torch keeps pictures) or last.

    Raises:
        ImageError: the shape or the values can be no picture.
    """
    plain = tensor.detach().cpu()
    # numpy has no bfloat16.
    values: Pixels = (plain.float() if tensor.is_floating_point() else plain).numpy()
    if values.ndim != 3:
        return from_array(values)
    first, last = values.shape[0] in _CHANNELS, values.shape[2] in _CHANNELS
    if first and last:
        raise ImageError(f"shape {values.shape} may have its channels first or last; give a numpy array, channels last")
    if not (first or last):
        raise ImageError(f"expected a tensor of shape (3, height, width) or (height, width, 3), got {values.shape}")
    return from_array(np.moveaxis(values, 0, 2) if first else values)


def from_array(values: Pixels) -> Image.Image:
    """The picture of an array: (height, width) or with 1, 3 or 4 channels last; uint8, or floats from 0 to 1.

    >>> from_array(np.full((1, 1, 3), 0.5)).getpixel((0, 0))
    (128, 128, 128)
    """
    if values.size == 0:
        raise ImageError("has no pixels")
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in _CHANNELS):
        raise ImageError(_wrong_shape(values.shape))
    levels = np.ascontiguousarray(_array_levels(values))
    return to_rgb(Image.fromarray(levels[:, :, 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels))


def _wrong_shape(shape: tuple[int, ...]) -> str:
    expected = f"expected an array of shape (height, width), (height, width, 3) or (height, width, 4), got {shape}"
    if len(shape) == 4:
        return f"{expected}; give the pictures of a batch one by one"
    if len(shape) == 3 and shape[0] in _CHANNELS:
        return f"{expected}; channels come last: array.transpose(1, 2, 0)"
    return expected


def _array_levels(values: Pixels) -> Pixels:
    if values.dtype == np.uint8:
        return values
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(f"expected uint8 values from 0 to 255 or floats from 0 to 1, got {values.dtype}")
    low, high = _finite_range(values)
    if low < -_HALF_LEVEL or high > 1.0 + _HALF_LEVEL:
        raise ImageError(
            f"expected floats from 0 to 1, got {low:.4g} to {high:.4g}; undo a normalisation, or give levels as uint8"
        )
    return _scaled(values, 1.0)


def _deep_grey(values: Pixels) -> Pixels:
    """Levels of a picture with 16 or 32 bits per pixel, by the depth that the values themselves show."""
    low, high = _finite_range(values)
    if np.issubdtype(values.dtype, np.floating):
        if low >= -_HALF_LEVEL and high <= 1.0 + _HALF_LEVEL:
            return _scaled(values, 1.0)
        if low >= 0.0 and _DIM <= high <= 255.0:
            return _scaled(values, 255.0)
        raise ImageError(f"expected float pixels from 0 to 1 or from 0 to 255, got {low:.4g} to {high:.4g}; rescale it")
    if low < 0 or high > 65535:
        raise ImageError(f"expected pixels from 0 to 65535, got {low:.0f} to {high:.0f}; rescale it")
    # 8, 10 and 12 bits are often stored in 16; read as 16 they would be black.
    return _scaled(values, next(top for top in (255.0, 1023.0, 4095.0, 65535.0) if high <= top))


def _finite_range(values: Pixels) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):  # a NaN anywhere makes both NaN
        raise ImageError("holds pixels that are NaN or infinite; replace them first")
    return low, high


def _scaled(values: Pixels, top: float) -> Pixels:
    levels: Pixels = np.clip(np.rint(values.astype(np.float64) * (255.0 / top)), 0, 255).astype(np.uint8)
    return levels


def _on_white(image: Image.Image) -> Image.Image:
    # Premultiplied modes only convert to their plain twins.
    plain = image.convert({"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode))
    picture = plain.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, _WHITE), picture).convert("RGB")
