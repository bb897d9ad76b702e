"""Augmented views of a picture: crops, mirrors and other light, the same ones whenever they are asked for."""

import re
from collections.abc import Sequence

import numpy as np
from PIL import Image

from msdscore.align.recipe import SampleSpec
from msdscore.align.repeatable import draw, stream

_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_ASPECTS = (0.8, 1.25)


def pick_view(spec: SampleSpec, *, seed: int, epoch: int, item: int) -> int:
    """Which of the views an epoch shows of an item."""
    return draw(seed, "view", epoch, item) % spec.views


def make_view(picture: Image.Image, spec: SampleSpec, captions: Sequence[str], *, item: int, view: int) -> Image.Image:
    """View number `view` of a picture, the same one for every seed; number 0 is the picture as it is.

    Seeds choose among the views and so may share one cache of their features.
    """
    if view == 0:
        return picture
    chance = stream(0, "crop", item, view)
    area, aspect = chance.uniform(spec.crop, 1.0), chance.uniform(*_ASPECTS)
    width, height = min(1.0, (area * aspect) ** 0.5), min(1.0, (area / aspect) ** 0.5)
    left, top = chance.uniform(0, 1 - width), chance.uniform(0, 1 - height)
    across, down = picture.size
    box = (left * across, top * down, (left + width) * across, (top + height) * down)
    whole = (int(box[0]), int(box[1]), max(int(box[2]), int(box[0]) + 1), max(int(box[3]), int(box[1]) + 1))
    part = picture.crop(whole)
    mirrored = chance.random() < 0.5
    part = _lit(part, chance.uniform(-spec.contrast, spec.contrast), chance.uniform(-spec.brightness, spec.brightness))
    if spec.flip and mirrored and not says_side(captions):
        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return part


def says_side(captions: Sequence[str]) -> bool:
    """Whether a caption says left or right, so that its picture must not be mirrored."""
    return any(_SIDES.search(caption) for caption in captions)


def _lit(picture: Image.Image, contrast: float, brightness: float) -> Image.Image:
    """Distances from the mean grow by the share `contrast`, the mean itself by `brightness`."""
    if not contrast and not brightness:
        return picture
    pixels = np.asarray(picture.convert("RGB"))
    mean = float(pixels.mean())
    table = np.rint((np.arange(256) - mean) * (1 + contrast) + mean * (1 + brightness)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(table[pixels])
