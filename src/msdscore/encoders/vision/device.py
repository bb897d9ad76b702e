"""Images decoded and resized where the network runs: JPEG files by the device's decoder, sizes by two matrix products.

The weights of the products are Pillow's, so images of any sizes are resized together. On a GPU they are rounded to
float16, which holds the levels of pixels exactly; the decoder's own differences are larger (docs/performance.md).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, local
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from msdscore.core.device import sent
from msdscore.encoders.base import Prepared
from msdscore.encoders.vision.canvas import Preprocessing, View
from msdscore.errors import ConfigError

Floats: TypeAlias = npt.NDArray[np.float64]
Taps: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]  # first pixel and weights, a row per output
TOGETHER = 2**26  # pixels that are decoded and resized in one go: 0.4 GB in float16
CLASS = 128  # images whose sides round up to the same multiples of it are resized together
_PRECISION = 1 << 22  # Pillow's weights are multiples of its inverse
_PILLOW_BICUBIC = -0.5
# One batch at a time is decoded, and others are resized meanwhile: the decoder of a process takes no more.
_decoding = Lock()
_own = local()  # a stream of every thread


def require_decoder() -> None:
    """Refuse `jpeg=device` where torchvision is missing.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        import torchvision.io  # noqa: F401
    except ImportError:
        raise ConfigError("jpeg=device needs torchvision; pip install torchvision, or leave jpeg=device out") from None


def decode_jpegs(files: Sequence[Prepared], steps: Preprocessing, device: torch.device) -> list[Prepared | None]:
    """Undecoded files on their canvases, on the device; None for one that its decoder refuses.

    It may be called from any thread; work that others have begun on the device goes on meanwhile.
    """
    canvases: list[Prepared | None] = [None] * len(files)
    with _aside(device) as finish:
        for numbers in _together([file.view.size for file in files]):
            with _decoding:
                decoded = _decoded([files[number].pixels for number in numbers], device)
            good = [(number, pixels) for number, pixels in zip(numbers, decoded, strict=True) if pixels is not None]
            if good:
                views = [files[number].view for number, _ in good]
                resized = resize([pixels for _, pixels in good], views, steps, device)
                for (number, _), view, pixels in zip(good, views, resized, strict=True):
                    canvases[number] = Prepared(pixels, view)
            # The decoder's own stream writes into memory that this one has given back: all here must be over.
            finish()
    return canvases


@contextmanager
def _aside(device: torch.device) -> Iterator[Callable[[], None]]:
    """Work on a stream of its own, ahead of what waits on others; gives a function that waits until it is done."""
    if device.type != "cuda":
        yield lambda: None
        return
    stream = _stream(device)

    def finish() -> None:
        event = torch.cuda.Event(blocking=True)  # the processor is left to others
        event.record(stream)
        event.synchronize()

    with torch.cuda.stream(stream):
        yield finish


def _stream(device: torch.device) -> torch.cuda.Stream:
    streams = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device, priority=-1)
    return streams[device]


def on_canvases(
    images: Sequence[Prepared], steps: Preprocessing, device: torch.device
) -> UInt8[Tensor, "batch 3 height width"]:
    """Images on the canvas: those that lie on it already, here or on the device, and those still to be resized."""
    sizes = [(image.pixels.shape[2], image.pixels.shape[1]) for image in images]
    ready = [number for number, size in enumerate(sizes) if size == images[number].view.canvas]
    if len(ready) == len(images):
        return _stacked([image.pixels for image in images], device)
    width, height = images[0].view.canvas
    batch = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device=device)
    if ready:
        batch[_index(ready, device)] = _stacked([images[number].pixels for number in ready], device)
    rest = sorted(set(range(len(images))) - set(ready))
    for places in _together([sizes[number] for number in rest]):
        numbers = [rest[place] for place in places]
        pixels = [sent(images[number].pixels, device) for number in numbers]
        batch[_index(numbers, device)] = resize(pixels, [images[number].view for number in numbers], steps, device)
    return batch


def _index(numbers: Sequence[int], device: torch.device) -> Tensor:
    return sent(torch.tensor(numbers), device)


def _stacked(pixels: Sequence[Tensor], device: torch.device) -> UInt8[Tensor, "batch 3 height width"]:
    here = [number for number, image in enumerate(pixels) if image.device.type == "cpu"]
    if len(here) == len(pixels):
        return sent(torch.stack(list(pixels)), device)
    for image in pixels:
        if image.device.type == "cuda":
            image.record_stream(torch.cuda.current_stream(device))  # it was made on another one
    return torch.stack([sent(image, device) for image in pixels])


def _together(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Numbers of images of one size class each, in even parts of at most `TOGETHER` pixels."""
    classes: dict[tuple[int, int], list[int]] = {}
    for number, size in enumerate(sizes):
        classes.setdefault(_size_class(size), []).append(number)
    for (width, height), numbers in classes.items():
        most = max(1, TOGETHER // (width * height))
        yield from (part.tolist() for part in np.array_split(numbers, -(-len(numbers) // most)))


def _size_class(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // CLASS) * CLASS, -(-size[1] // CLASS) * CLASS


def _decoded(files: Sequence[UInt8[Tensor, " bytes"]], device: torch.device) -> list[Tensor | None]:
    """Pixels (3, height, width); the decoder refuses a whole list for one file, so then each is tried alone."""
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        return list(decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device))
    except RuntimeError:
        if len(files) == 1:
            return [None]
        return [pixels for file in files for pixels in _decoded([file], device)]


def resize(
    images: Sequence[UInt8[Tensor, "3 _ _"]], views: Sequence[View], steps: Preprocessing, device: torch.device
) -> UInt8[Tensor, "batch 3 height width"]:
    """Images of one size class resized and cut out as their views say; one direction after the other, as Pillow does.

    Both are rounded to whole levels, as Pillow does too.
    """
    width, height = (max(image.shape[side] for image in images) for side in (2, 1))
    levels = torch.float16 if device.type == "cuda" else torch.float32
    if all(image.shape == images[0].shape for image in images):
        batch = torch.stack(list(images)).to(levels)
    else:
        batch = torch.zeros((len(images), 3, height, width), dtype=levels, device=device)
        for row, image in zip(batch, images, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
    across, down = (
        _weights([(view, side, steps.resample, room) for view in views], levels, device)
        for side, room in ((0, width), (1, height))
    )
    narrow = _rounded(batch.flatten(1, 2) @ across.mT).unflatten(1, (3, height))
    return _rounded(down.unsqueeze(1) @ narrow).to(torch.uint8)


def _rounded(levels: Tensor) -> Tensor:
    """Whole levels; halves go up, as in Pillow."""
    return levels.add_(0.5).floor_().clamp_(0, 255)


def _weights(
    sides: Sequence[tuple[View, int, int, int]], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "batch canvas room"]:
    """The weights of all images along one side; one matrix for all where they are alike."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    matrices = {side: _matrix(*side, dtype, device, stream) for side in dict.fromkeys(sides)}
    return torch.stack([matrices[side] for side in (sides if len(matrices) > 1 else matrices)])


@lru_cache(maxsize=256)
def _matrix(
    view: View, side: int, resample: int, room: int, dtype: torch.dtype, device: torch.device, stream: int
) -> Float[Tensor, "canvas room"]:
    """The weights along one side as a matrix on the device, most of it zero; one for each stream that uses it."""
    first, weights = taps(view.size[side], view.resized[side], view.offset[side], view.canvas[side], resample)
    matrix = np.zeros((len(first), room + weights.shape[1]), dtype=np.float32)
    np.put_along_axis(matrix, first[:, None] + np.arange(weights.shape[1]), weights, axis=1)
    return sent(torch.from_numpy(matrix[:, :room]).to(dtype), device)


def taps(size: int, resized: int, offset: int, canvas: int, resample: int) -> Taps:
    """Pillow's weights along one side: for each pixel of the canvas its first source pixel, and the weights from it on.

    >>> first, weights = taps(4, 2, 0, 2, Image.Resampling.BOX)
    >>> first.tolist(), weights.tolist()
    ([0, 2], [[0.5, 0.5], [0.5, 0.5]])
    """
    reach, shape = FILTERS[resample]
    scale = size / resized
    stretch = max(scale, 1.0)
    outputs = np.arange(offset, offset + canvas)
    centres = (outputs + 0.5) * scale
    # Truncated towards zero, as a cast in C does.
    first = np.maximum((centres - reach * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach * stretch + 0.5).astype(np.int64), size)
    inputs = first[:, None] + np.arange(max(int((last - first).max()), 1))
    weights = np.where(inputs < last[:, None], shape((inputs - centres[:, None] + 0.5) / stretch), 0.0)
    sums = weights.sum(axis=1, keepdims=True)
    weights /= np.where(sums == 0, 1.0, sums)
    weights = np.trunc(weights * _PRECISION + np.where(weights < 0, -0.5, 0.5)) / _PRECISION
    outside = (outputs < 0) | (outputs >= resized)  # the canvas is black there
    weights[outside] = 0.0
    return np.where(outside, 0, first), weights.astype(np.float32)


def _box(x: Floats) -> Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _triangle(x: Floats) -> Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: Floats) -> Floats:
    a, x = _PILLOW_BICUBIC, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    found: Floats = np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
    return found


def _lanczos(x: Floats) -> Floats:
    found: Floats = np.where(np.abs(x) < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)
    return found


# Reach in source pixels, and shape, of Pillow's filters that resize by weights.
FILTERS: dict[int, tuple[float, Any]] = {
    Image.Resampling.BOX: (0.5, _box),
    Image.Resampling.BILINEAR: (1.0, _triangle),
    Image.Resampling.BICUBIC: (2.0, _bicubic),
    Image.Resampling.LANCZOS: (3.0, _lanczos),
}
