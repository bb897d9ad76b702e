"""Batches of images on the network's device: normalised, and decoded by nvJPEG or resized there if that is requested.

Resizing is two matrix products with Pillow's weights, so images of different sizes are resized together. On a GPU they
are rounded to float16, which represents pixel levels exactly; the decoder's differences are larger.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache
from io import BytesIO
from itertools import accumulate
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from msdscore.core.arrays import Bool, Float, Int, UInt8
from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.preprocessing import Preprocessing, View
from msdscore_torch.gpu.device import sent
from msdscore_torch.vision.nvjpeg import NvJpeg

PixelBatch: TypeAlias = UInt8[Tensor, "batch 3 height width"]
Axis: TypeAlias = tuple[int, int, int, int]  # of a view: original size, resized size, canvas start and canvas size
# Pixels that are decoded and resized at once: 0.8 GB in float16. 256 photographs take hardly longer than 128, since
# most of the time is spent in one kernel of few threads per file.
TOGETHER = 2**27
CLASS = 128  # images whose sides round up to the same multiples of it are resized together
_PRECISION = 1 << 22  # Pillow's weights are multiples of its inverse
_PILLOW_BICUBIC = -0.5
# Per GPU: the host prepares files for one while the other decodes.
DECODERS = 2


def decode_jpegs(files: Sequence[Prepared], steps: Preprocessing, device: torch.device) -> list[Prepared | None]:
    """Decode files to their canvases, on the device; None for a file that the decoder rejects.

    Thread-safe: a few batches are decoded at a time, on streams with a higher priority than those of encoders.
    """
    canvases: list[Prepared | None] = [None] * len(files)
    with _decoder(device) as (decoder, stream), torch.cuda.stream(stream) if stream else nullcontext():
        for numbers in _together([file.view.size for file in files]):
            views = [files[number].view for number in numbers]
            batch = _black([view.size for view in views], device)
            good = _decode([_tensor(files[number]) for number in numbers], views, batch, decoder)
            resized = resize(batch, views, steps)
            for number, view, pixels, taken in zip(numbers, views, resized, good, strict=True):
                canvases[number] = Prepared(pixels, view) if taken else None
            if stream:
                done = torch.cuda.Event(blocking=True)  # waits without spinning
                done.record(stream)
                done.synchronize()
    return canvases


@contextmanager
def _decoder(device: torch.device) -> Iterator[tuple[NvJpeg, torch.cuda.Stream] | tuple[None, None]]:
    """Context with a decoder of a GPU that no other thread uses, and its stream."""
    if device.type != "cuda":
        yield None, None
        return
    free = _decoders(device)
    chosen = free.get()
    try:
        yield chosen
    finally:
        free.put(chosen)


@cache
def _decoders(device: torch.device) -> "SimpleQueue[tuple[NvJpeg, torch.cuda.Stream]]":
    free: SimpleQueue[tuple[NvJpeg, torch.cuda.Stream]] = SimpleQueue()
    for _ in range(DECODERS):
        free.put((NvJpeg(device), torch.cuda.Stream(device, priority=-1)))
    return free


def _decode(
    files: Sequence[UInt8[Tensor, " bytes"]], views: Sequence[View], batch: PixelBatch, decoder: NvJpeg | None
) -> list[bool]:
    """Decode files into the upper left of their rows; return for each whether it was decoded."""
    if decoder is not None:
        return decoder.decode(files, [view.size for view in views], batch)
    good = []
    for file, view, row in zip(files, views, batch, strict=True):
        try:
            with Image.open(BytesIO(file.numpy().tobytes())) as image:
                pixels = np.array(image.convert("RGB"))
        except OSError:
            good.append(False)
        else:
            row[:, : view.size[1], : view.size[0]] = torch.from_numpy(pixels).permute(2, 0, 1)
            good.append(True)
    return good


def _black(sizes: Sequence[tuple[int, int]], device: torch.device) -> PixelBatch:
    """Allocate a black batch for images in the upper left of one size; missing parts of damaged files remain black."""
    width, height = (max(size[side] for size in sizes) for side in (0, 1))
    return torch.zeros((len(sizes), 3, height, width), dtype=torch.uint8, device=device)


def on_canvases(images: Sequence[Prepared], steps: Preprocessing, device: torch.device) -> PixelBatch:
    """Images on the canvas: those that are already resized, on the CPU or the device, and those still to be resized."""
    sizes = [(image.pixels.shape[2], image.pixels.shape[1]) for image in images]
    ready = [number for number, size in enumerate(sizes) if size == images[number].view.canvas]
    if len(ready) == len(images):
        return _stacked([_tensor(image) for image in images], device)
    width, height = images[0].view.canvas
    batch = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device=device)
    if ready:
        batch[_index(ready, device)] = _stacked([_tensor(images[number]) for number in ready], device)
    rest = sorted(set(range(len(images))) - set(ready))
    for group in _together([sizes[number] for number in rest]):
        numbers = [rest[index] for index in group]
        pixels = _black([sizes[number] for number in numbers], device)
        for row, number in zip(pixels, numbers, strict=True):
            image = sent(_tensor(images[number]), device)
            row[:, : image.shape[1], : image.shape[2]] = image
        batch[_index(numbers, device)] = resize(pixels, [images[number].view for number in numbers], steps)
    return batch


def _tensor(image: Prepared) -> Tensor:
    """The pixels of an image, which are a NumPy array unless they were decoded on the device."""
    return torch.from_numpy(image.pixels) if isinstance(image.pixels, np.ndarray) else image.pixels


def _index(numbers: Sequence[int], device: torch.device) -> Tensor:
    return sent(torch.tensor(numbers), device)


def _stacked(pixels: Sequence[Tensor], device: torch.device) -> PixelBatch:
    if all(image.device.type == "cpu" for image in pixels):
        return sent(torch.stack(list(pixels)), device)
    return joined([sent(image, device) for image in pixels], device)


def joined(pixels: Sequence[Tensor], device: torch.device) -> PixelBatch:
    """Images that are on the device, as one batch.

    Images that were decoded together are rows of one batch: a few launches for each batch, and not for each image.
    """
    batches, order = dict[int, tuple[PixelBatch, list[int]]](), list[tuple[int, int]]()
    for image in pixels:
        if device.type == "cuda" and image.untyped_storage().data_ptr() not in batches:
            image.record_stream(torch.cuda.current_stream(device))  # it was computed on another stream
        row, left = divmod(int(image.storage_offset()), image.numel())
        image = image if image.is_contiguous() and not left else image.clone(memory_format=torch.contiguous_format)
        storage = image.untyped_storage()
        if storage.data_ptr() not in batches:
            shape = (storage.nbytes() // image.numel(), *image.shape)
            batches[storage.data_ptr()] = image.as_strided(shape, (image.numel(), *image.stride()), 0), []
        rows = batches[storage.data_ptr()][1]
        order.append((storage.data_ptr(), len(rows)))
        rows.append(row if image.storage_offset() else 0)
    parts = [
        batch if rows == list(range(len(batch))) else batch[_index(rows, device)] for batch, rows in batches.values()
    ]
    if len(parts) == 1:
        return parts[0]
    starts = dict(zip(batches, accumulate(map(len, parts), initial=0), strict=False))
    return torch.cat(parts)[_index([starts[batch] + row for batch, row in order], device)]


def _together(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Indices of images of one size class each, in even parts of at most `TOGETHER` pixels."""
    classes: dict[tuple[int, int], list[int]] = {}
    for number, size in enumerate(sizes):
        width, height = (-(-side // CLASS) * CLASS for side in size)
        classes.setdefault((width, height), []).append(number)
    for (width, height), numbers in classes.items():
        most = max(1, TOGETHER // (width * height))
        yield from (part.tolist() for part in np.array_split(numbers, -(-len(numbers) // most)))


def resize(batch: PixelBatch, views: Sequence[View], steps: Preprocessing) -> UInt8[Tensor, "batch 3 down across"]:
    """Resize and crop images in the upper left of a batch according to their views.

    One axis after the other, both rounded to whole levels, as in Pillow.
    """
    levels = torch.float16 if batch.device.type == "cuda" else torch.float32
    height, width = batch.shape[2:]
    across, down = (
        _matrices(
            [(view.size[side], view.resized[side], view.offset[side], view.canvas[side]) for view in views],
            room, steps.resample, batch.device,
        ).to(levels)
        for side, room in ((0, width), (1, height))
    )  # fmt: skip
    narrow = _rounded(batch.to(levels).flatten(1, 2) @ across.mT).unflatten(1, (3, height))
    return _rounded(down.unsqueeze(1) @ narrow).to(torch.uint8)


def _rounded(levels: Tensor) -> Tensor:
    """Whole levels; halves are rounded up, as in Pillow."""
    return levels.add_(0.5).floor_().clamp_(0, 255)


def _matrices(
    sides: Sequence[Axis], room: int, resample: int, device: torch.device
) -> Float[Tensor, "batch canvas room"]:
    """The weights of images along one axis as matrices, most of them zero; a single one if all are equal."""
    numbers = {side: number for number, side in enumerate(dict.fromkeys(sides))}
    first, weights = taps(list(numbers), resample, device)
    columns = first.unsqueeze(2) + torch.arange(weights.shape[2], device=device)
    matrices = torch.zeros((*first.shape, room + weights.shape[2]), device=device)
    matrices = matrices.scatter_(2, columns, weights)[..., :room]
    return matrices if len(numbers) == 1 else matrices[_index([numbers[side] for side in sides], device)]


def taps(
    sides: Sequence[Axis], resample: int, device: torch.device
) -> tuple[Int[Tensor, "batch canvas"], Float[Tensor, "batch canvas taps"]]:
    """Pillow's weights: for each pixel of a canvas its first source pixel, and the weights starting there.

    >>> first, weights = taps([(4, 2, 0, 2)], Image.Resampling.BOX, torch.device("cpu"))
    >>> first.tolist(), weights[..., :2].tolist()
    ([[0, 2]], [[[0.5, 0.5], [0.5, 0.5]]])
    """
    reach, shape = FILTERS[resample]
    most = max(2 * math.ceil(reach * max(size / resized, 1.0)) + 1 for size, resized, _, _ in sides)
    table = sent(torch.tensor([side[:3] for side in sides], dtype=torch.float64), device)
    size, resized, offset = table.T[..., None]
    scale = size / resized
    stretch = scale.clamp(min=1.0)
    outputs = offset + torch.arange(sides[0][3], device=device)
    centres = (outputs + 0.5) * scale
    # Truncated towards zero, as a cast in C does.
    first = (centres - reach * stretch + 0.5).trunc().clamp(min=0)
    last = torch.minimum((centres + reach * stretch + 0.5).trunc(), size)
    inputs = first.unsqueeze(2) + torch.arange(most, device=device)
    weights = shape((inputs - centres.unsqueeze(2) + 0.5) / stretch.unsqueeze(2))
    weights = weights.where(inputs < last.unsqueeze(2), 0.0)
    sums = weights.sum(dim=2, keepdim=True)
    weights = weights / sums.where(sums != 0, 1.0)
    weights = (weights * _PRECISION + 0.5 * weights.sign()).trunc() / _PRECISION
    outside = (outputs < 0) | (outputs >= resized)  # the canvas is black there
    return first.where(~outside, 0).long(), weights.where(~outside.unsqueeze(2), 0.0).float()


def _bicubic(x: Tensor) -> Tensor:
    a, x = _PILLOW_BICUBIC, x.abs()
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return near.where(x < 1.0, far.where(x < 2.0, 0.0))


# Reach in source pixels, and shape, of Pillow's filters that resize by weights.
FILTERS: dict[int, tuple[float, Callable[[Tensor], Tensor]]] = {
    Image.Resampling.BOX: (0.5, lambda x: ((x > -0.5) & (x <= 0.5)).double()),
    Image.Resampling.BILINEAR: (1.0, lambda x: (1.0 - x.abs()).clamp(min=0.0)),
    Image.Resampling.BICUBIC: (2.0, _bicubic),
    Image.Resampling.LANCZOS: (3.0, lambda x: (torch.sinc(x) * torch.sinc(x / 3.0)).where(x.abs() < 3.0, 0.0)),
}


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
    return normalise(stack_levels(images, steps, device).contiguous(), steps)


def stack_levels(images: Sequence[Prepared], steps: Preprocessing, device: torch.device) -> PixelBatch:
    """Prepared images of one size as one batch of levels from 0 to 255, in any memory format."""
    if not all(
        isinstance(image.pixels, np.ndarray) and image.pixels.shape[:0:-1] == image.view.canvas for image in images
    ):
        return on_canvases(images, steps, device)
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
    return moved.permute(0, 3, 1, 2)


def on_image(layout: PatchLayout) -> Bool[np.ndarray, " points"]:
    """True for the patches that show some of the image and not only padding."""
    left, top, right, bottom = layout.boxes.T
    return (right > left) & (bottom > top)


def patch_mask(layouts: Sequence[PatchLayout]) -> Bool[Tensor, "batch points"]:
    """The mask of a batch of images with the same or different numbers of patches, padded at the end."""
    # Images of one size share their layout, so the mask is computed once for each layout.
    distinct = {id(layout): layout for layout in layouts}
    shown = {number: on_image(layout) for number, layout in distinct.items()}
    mask = np.zeros((len(layouts), max(map(len, shown.values()))), dtype=bool)
    for row, layout in zip(mask, layouts, strict=True):
        real = shown[id(layout)]
        row[: len(real)] = real
    return torch.from_numpy(mask)
