"""Checks for encoders of your own: the requirements of every part of msdscore, one sentence per violation."""

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from msdscore.core.arrays import to_numpy
from msdscore.encoders.base import (
    Embeddings,
    Encoder,
    PatchLayout,
    Prepared,
    TokenLayout,
    capabilities,
    prepare_and_encode,
)

CAPTIONS = (
    "a red square next to a blue circle",
    "two dogs",
    "A man in a white shirt rides a black bicycle along a narrow street, past parked cars, while it rains.",
)
_MEMBERS = ("name", "signature", "device", "bank", "recommended", "prepare", "encode_images", "encode_texts")
_SIZES = ((96, 64), (50, 120), (224, 224))
_CHECKED = (
    "members and signature",
    "shapes and types: points, mask, pooled",
    "finite vectors of length 1, zero where the mask is False",
    "one space for images and texts",
    "the same vectors alone and in a batch",
    "grid and boxes of patches, in pixels of the image",
    "spans of tokens, in characters of the caption",
)
_UNIT = 1e-3  # largest distance of a length from 1
_OUTSIDE = 1.0  # pixels that a box may reach over the border of its image


def check_encoder(encoder: Encoder, *, captions: Sequence[str] = CAPTIONS) -> str:
    """Return what was checked, or raise `AssertionError` with one sentence per violated requirement of an encoder.

    The default `captions` are English sentences. Pass others, which differ in length, if the encoder reads another
    language or only some words.

    >>> from msdscore import load_encoder
    >>> print(check_encoder(load_encoder("toy")))
    toy: ok, with 3 images and 3 captions
      members and signature
      shapes and types: points, mask, pooled
      finite vectors of length 1, zero where the mask is False
      one space for images and texts
      the same vectors alone and in a batch
      grid and boxes of patches, in pixels of the image
      spans of tokens, in characters of the caption
    """
    faults = list(find_faults(encoder, captions=captions))
    if faults:
        raise AssertionError("\n".join(faults))
    head = f"{encoder.name}: ok, with {len(_SIZES)} images and {len(captions)} captions"
    return "\n  ".join([head, *_CHECKED])


def find_faults(encoder: Encoder, *, captions: Sequence[str] = CAPTIONS) -> Iterator[str]:
    """Yield one sentence per violated requirement of an encoder."""
    missing = [member for member in _MEMBERS if not hasattr(encoder, member)]
    if missing:
        yield f"the encoder has no {', '.join(missing)}"
        return
    signature = encoder.signature
    if not (isinstance(signature, str) and signature):
        yield f"signature must be a text that names every choice that changes a vector, got {signature!r}"
    elif any(mark in signature for mark in "| \n"):
        yield f"signature must not contain spaces, line breaks or |, got {signature!r}"
    images = [_noise(size, seed) for seed, size in enumerate(_SIZES)]
    prepared = [encoder.prepare(image) for image in images]
    if not all(isinstance(item, Prepared) for item in prepared):
        yield f"prepare must return msdscore.encoders.base.Prepared, got {type(prepared[0]).__name__}"
        return
    tolerance = 2e-2 if capabilities(encoder).computes_in_half else 1e-4
    seen, read = _on_host(prepare_and_encode(encoder, images)), _on_host(encoder.encode_texts(captions))
    single_images = [_on_host(prepare_and_encode(encoder, [image])) for image in images]
    single_texts = [_on_host(encoder.encode_texts([caption])) for caption in captions]
    yield from _side_faults("encode_images", seen, single_images, tolerance)
    yield from _side_faults("encode_texts", read, single_texts, tolerance, captions)
    for what in ("points", "pooled"):
        ours, theirs = (getattr(batch, what).shape[-1] for batch in (seen, read))
        if ours != theirs:
            yield f"{what} of images have {ours} dimensions and those of texts {theirs}; they must share one space"
    yield from _patch_faults(seen, images)
    yield from _token_faults(read, captions)


def _on_host(batch: Embeddings) -> Embeddings:
    """Return a batch as NumPy arrays."""
    return Embeddings(to_numpy(batch.points), to_numpy(batch.mask), to_numpy(batch.pooled), batch.layout)


def _noise(size: tuple[int, int], seed: int) -> Image.Image:
    width, height = size
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def _side_faults(
    name: str, batch: Embeddings, singles: Sequence[Embeddings], tolerance: float, captions: Sequence[str] = ()
) -> Iterator[str]:
    """Check one side: shapes first, then the vectors, and whether they are those of batches of one."""
    shapes = list(_shape_faults(name, batch, len(singles)))
    yield from shapes
    if not shapes:
        yield from _vector_faults(name, batch, captions)
        yield from _batch_faults(name, batch, singles, tolerance)


def _shape_faults(name: str, batch: Embeddings, count: int) -> Iterator[str]:
    points, mask, pooled = batch.points, batch.mask, batch.pooled
    if points.ndim != 3 or points.shape[0] != count:
        yield f"{name}: points must have the shape ({count}, points, dim), got {tuple(points.shape)}"
    if mask.dtype != bool or mask.shape != points.shape[:2]:
        yield f"{name}: mask must be bool of shape {tuple(points.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}"
    if pooled.ndim != 2 or pooled.shape[0] != count:
        yield f"{name}: pooled must have the shape ({count}, dim), got {tuple(pooled.shape)}"
    if points.dtype != np.float32 or pooled.dtype != np.float32:
        yield f"{name}: points and pooled must be float32, got {points.dtype} and {pooled.dtype}"
    if len(batch.layout) != count:
        yield f"{name}: layout must have one entry per item, got {len(batch.layout)} for {count}"


def _vector_faults(name: str, batch: Embeddings, captions: Sequence[str]) -> Iterator[str]:
    if not (np.isfinite(batch.points).all() and np.isfinite(batch.pooled).all()):
        yield f"{name}: points and pooled must be finite"
        return
    unread = np.flatnonzero(~batch.mask.any(axis=1)).tolist()
    if unread and captions:
        yield (
            f"{name}: caption {captions[unread[0]]!r} has no real point; pass captions=[…] with words that this "
            "encoder reads, or correct mask, which must be True for real points"
        )
    elif unread:
        yield f"{name}: image {unread[0]} has no real point; mask must be True for real points"
    lengths = np.linalg.norm(batch.points, axis=-1)[batch.mask]
    if len(lengths) and np.abs(lengths - 1).max() > _UNIT:
        yield f"{name}: points must have length 1, got {lengths.min():.3f} to {lengths.max():.3f}"
    if batch.points[~batch.mask].any():
        yield f"{name}: padded points, where mask is False, must be zero"
    pooled = np.linalg.norm(batch.pooled[batch.mask.any(axis=1)], axis=-1)
    if len(pooled) and np.abs(pooled - 1).max() > _UNIT:
        yield f"{name}: pooled vectors must have length 1, got {pooled.min():.3f} to {pooled.max():.3f}"


def _batch_faults(name: str, batch: Embeddings, singles: Sequence[Embeddings], tolerance: float) -> Iterator[str]:
    """Compare the vectors of each item in a batch with those in a batch of one."""
    largest = 0.0
    for number, single in enumerate(singles):
        ours, theirs = batch.points[number][batch.mask[number]], single.points[0][single.mask[0]]
        if ours.shape != theirs.shape:
            yield f"{name}: item {number} has {len(ours)} points in a batch and {len(theirs)} in a batch of one"
            return
        differences = [np.abs(ours - theirs), np.abs(batch.pooled[number] - single.pooled[0])]
        largest = max(largest, *(float(part.max()) for part in differences if part.size))
    if largest > tolerance:
        yield f"{name}: vectors depend on the batch: in a batch of one they differ by {largest:.2g} (> {tolerance:g})"


def _patch_faults(batch: Embeddings, images: Sequence[Image.Image]) -> Iterator[str]:
    for layout, image in zip(batch.layout, images, strict=False):
        if not isinstance(layout, PatchLayout):
            yield f"encode_images: layout must contain PatchLayout, got {type(layout).__name__}"
            return
        rows, columns = layout.grid
        width, height = image.size
        if tuple(layout.size) != (width, height):
            yield f"encode_images: layout.size must be the image's size {(width, height)}, got {tuple(layout.size)}"
        if layout.boxes.shape != (rows * columns, 4):
            shape = tuple(layout.boxes.shape)
            yield f"encode_images: boxes of a grid {layout.grid} must have shape {(rows * columns, 4)}, got {shape}"
            return
        if len(layout.boxes) > batch.points.shape[1]:
            yield f"encode_images: expected one point per box, got {batch.points.shape[1]} for {len(layout.boxes)}"
        left, top, right, bottom = to_numpy(layout.boxes).T
        if (right <= left).any() or (bottom <= top).any():
            yield "encode_images: a box must have left < right and top < bottom"
        inside = min(left.min(), top.min()) >= -_OUTSIDE and right.max() <= width + _OUTSIDE
        if not (inside and bottom.max() <= height + _OUTSIDE):
            yield f"encode_images: boxes must be pixels of the original image of {width} x {height}"
        if rows > 1 and columns > 1 and not (left[1] > left[0] and top[columns] > top[0]):
            yield "encode_images: boxes must be in rows, from left to right and then from top to bottom"


def _token_faults(batch: Embeddings, captions: Sequence[str]) -> Iterator[str]:
    for number, (layout, caption) in enumerate(zip(batch.layout, captions, strict=False)):
        if not isinstance(layout, TokenLayout):
            yield f"encode_texts: layout must contain TokenLayout, got {type(layout).__name__}"
            return
        real = int(batch.mask[number].sum())
        if len(layout.spans) != real:
            yield f"encode_texts: expected one span per real point, got {len(layout.spans)} for {real} of {caption!r}"
        if any(not 0 <= start <= end <= len(caption) for start, end in layout.spans):
            yield f"encode_texts: spans must be characters of the caption, 0 to {len(caption)}, got {layout.spans}"
