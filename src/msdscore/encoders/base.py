"""What an encoder is: pictures and texts in, unit vectors with their places out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Where the patches of one picture lie.

    `boxes` holds (left, top, right, bottom) in pixels of the original picture, one row a patch in the order of the
    points, row-major over `grid` (rows, columns). Resizing and cropping are undone, so a box may be fractional.
    """

    size: tuple[int, int]  # width, height of the original picture
    grid: tuple[int, int]  # rows, columns
    boxes: Float[Tensor, "points 4"]


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Where the tokens of one caption stand.

    `spans` are (start, end) character offsets into the caption as given, one a point. `windows` says how many
    windows of the text tower the caption took; `cut` how many of its tokens were dropped because cutting was asked.
    """

    spans: tuple[tuple[int, int], ...]
    windows: int = 1
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Local unit vectors and one pooled unit vector for each item of a batch; `mask` is True for real points.

    Points and pooled vectors may have different sizes: a backbone can have separate local and global spaces.
    """

    points: Float[Tensor, "batch points dim"]
    mask: Bool[Tensor, "batch points"]
    pooled: Float[Tensor, "batch pooled_dim"]
    layout: tuple[PatchLayout | TokenLayout, ...]

    def __len__(self) -> int:
        return self.points.shape[0]


@runtime_checkable
class Encoder(Protocol):
    """Anything that turns pictures and captions into `Embeddings` of one space.

    `name` is the short name or path it was loaded by; `signature` spells every choice that can change a vector:
    weights and revision, pooling, norms, window rule, dtype. Pictures come decoded, upright and in RGB mode. An
    item's vectors must not depend on the other items of its batch beyond rounding.
    """

    @property
    def name(self) -> str:
        """The name it was loaded by."""

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as ``key:value`` parts joined by commas."""

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""

    def encode_images(self, images: Sequence[Image]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds a `PatchLayout` an item."""

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds a `TokenLayout` an item. No tokens give an empty mask."""
