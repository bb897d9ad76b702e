"""A weight-free encoder of colours and positions, for tests and documentation.

All features are integers and lengths are computed in float64 from exact sums, so every machine yields the same
bits.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.encoders.base import Embeddings, Prepared, TokenLayout
from msdscore.encoders.preprocessing import Preprocessing, as_prepared, patch_layout, view_of
from msdscore.errors import ConfigError

_Ints = npt.NDArray[np.int64]

_COLOURS = {
    "black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128), "red": (220, 30, 30),
    "orange": (255, 140, 0), "yellow": (250, 220, 40), "green": (40, 150, 50), "blue": (40, 80, 210),
    "purple": (130, 40, 150), "pink": (255, 150, 190), "brown": (130, 80, 40),
}  # fmt: skip
_SAME = {"gray": "grey", "violet": "purple", "centre": "middle", "center": "middle", "upper": "top", "lower": "bottom"}
_PLACES = ("left", "right", "top", "bottom", "middle")
_SILENT = frozenset(("a", "an", "and", "are", "at", "in", "is", "it", "of", "on", "the", "there", "to", "with"))
_HASHED = 32  # dimensions for all other words
_DIM = 1 + len(_COLOURS) + len(_PLACES) + _HASHED
_GRID = 6  # cells per side
_SAMPLES = 8  # pixels sampled along each side of a cell
_SIDE = _GRID * _SAMPLES
_REACH = 150 * 150  # squared distance in RGB from which two colours have no similarity
_FULL = 1000  # feature value of a perfect match
_WORD = re.compile(r"\w+")


class ToyEncoder:
    """Cells of the image and words of the caption in one space of colours, positions and hashed words."""

    signature = "toy@1"  # version of its rules; it has no options
    device = "cpu"
    bank = recommended = None

    def __init__(self, *, name: str) -> None:
        self.name = name

    def prepare(self, image: Image) -> Prepared:
        """The sampled pixels, evenly spread over the image."""
        pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
        down, across = ((2 * np.arange(_SIDE) + 1) * length // (2 * _SIDE) for length in pixels.shape[:2])
        return as_prepared(
            pixels[down][:, across], view_of(Preprocessing(resize=(_SIDE, _SIDE), crop=None), image.size)
        )

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """One point per cell of a fixed grid."""
        features = [_cells(image) for image in images]
        layout = tuple(patch_layout(image.view, (_GRID, _GRID), (_SAMPLES, _SAMPLES)) for image in images)
        return self._embeddings(features, layout)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """One point per word."""
        matches = [list(_WORD.finditer(text)) for text in texts]
        features = [
            np.array([_word(match.group()) for match in words], np.int64).reshape(-1, _DIM) for words in matches
        ]
        return self._embeddings(features, tuple(TokenLayout(tuple(m.span() for m in words)) for words in matches))

    def _embeddings(self, features: Sequence[_Ints], layout: Any) -> Embeddings:
        longest = max((len(item) for item in features), default=0)
        points = np.zeros((len(features), longest, _DIM), dtype=np.int64)
        mask = np.zeros((len(features), longest), dtype=bool)
        for row, item in enumerate(features):
            points[row, : len(item)] = item
            mask[row, : len(item)] = True
        pooled = points.sum(axis=1)
        pooled[:, 0] += ~mask.any(axis=1)  # a text without words has a nonzero vector too
        return Embeddings(_unit(points), mask, _unit(pooled), layout)


def load_toy(source: str, *, name: str, revision: str | None, device: str, dtype: str, **options: Any) -> ToyEncoder:
    """Build the toy encoder, which has no weights and no options."""
    if options:
        raise ConfigError(f"encoder {name!r} has no options, got {', '.join(sorted(options))}")
    if device not in ("auto", "cpu"):
        raise ConfigError(f"encoder {name!r} computes on the CPU only; use device='auto' or 'cpu', got {device!r}")
    return ToyEncoder(name=name)


def _unit(features: _Ints) -> npt.NDArray[np.float32]:
    """Unit vectors in float32; sums are exact, and square root and division round identically everywhere."""
    length = np.sqrt((features * features).sum(axis=-1, keepdims=True).astype(np.float64))
    unit: npt.NDArray[np.float32] = (features / np.maximum(length, 1.0)).astype(np.float32)
    return unit


def _likeness(pixels: _Ints) -> _Ints:
    """Similarity of the pixels to each basic colour, 0 to `_FULL`; the last axis changes from RGB to colours."""
    basic = np.array(list(_COLOURS.values()), dtype=np.float64)
    seen = pixels.astype(np.float64)  # exact: all values are integers far below 2^53
    distance = (seen**2).sum(axis=-1)[..., None] - 2 * (seen @ basic.T) + (basic**2).sum(axis=-1)
    like: _Ints = np.maximum(_REACH - distance.astype(np.int64), 0) * _FULL // _REACH
    return like


def _cells(image: Prepared) -> _Ints:
    pixels = image.pixels.transpose(1, 2, 0).astype(np.int64)
    blocks = _likeness(pixels).reshape(_GRID, _SAMPLES, _GRID, _SAMPLES, -1)
    features = np.zeros((_GRID, _GRID, _DIM), dtype=np.int64)
    features[..., 0] = _FULL // 5
    features[..., 1 : 1 + len(_COLOURS)] = blocks.sum(axis=(1, 3)) // _SAMPLES**2
    features[..., 1 + len(_COLOURS) : -_HASHED] = _places()
    return features.reshape(-1, _DIM)


@cache
def _places() -> _Ints:
    """Closeness of each cell to the left, right, top, bottom and centre."""
    row, column = np.mgrid[0:_GRID, 0:_GRID]
    end = _GRID - 1
    middle = end - np.maximum(abs(2 * row - end), abs(2 * column - end))
    near: _Ints = np.stack([end - column, column, end - row, row, middle], axis=-1).astype(np.int64)
    return near * _FULL // (4 * end)


@lru_cache(maxsize=1 << 14)
def _word(word: str) -> _Ints:
    features = np.zeros(_DIM, dtype=np.int64)
    features[0] = _FULL // 5
    plain = _SAME.get(word.casefold(), word.casefold())
    if plain in _COLOURS:
        features[1 : 1 + len(_COLOURS)] = _likeness(np.array(_COLOURS[plain], dtype=np.int64))
    elif plain in _PLACES:
        features[1 + len(_COLOURS) + _PLACES.index(plain)] = _FULL
    elif plain not in _SILENT:
        digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=_HASHED).digest()
        features[-_HASHED:] = [byte - 128 for byte in digest]
    return features
