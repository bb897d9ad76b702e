"""Frozen towers that read what lies on their device already: pixels and token numbers instead of pictures and texts."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.encoders.aligned.towers.base import Features, ImageTower, TextTower
from msdscore.encoders.mini.lite2 import Lite2
from msdscore.errors import ConfigError


@runtime_checkable
class DeviceImages(Protocol):
    """An image tower that reads pixels on its device."""

    @property
    def device(self) -> torch.device:
        """Where its features are made."""

    @property
    def side(self) -> int:
        """Pixels of a side of the squares that it reads."""

    @property
    def network(self) -> Lite2:
        """The frozen network."""

    @property
    def grid(self) -> int:
        """Cells of a side of the grid that its maps are put on."""

    def see(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Raw features of pictures, values from 0 to 255; the layout is empty."""


@runtime_checkable
class DeviceTexts(Protocol):
    """A text tower that reads token numbers on its device."""

    @property
    def device(self) -> torch.device:
        """Where its features are made."""

    @property
    def marks(self) -> tuple[int, int, int]:
        """Numbers of the tokens before a text, after it, and of padding."""

    @property
    def embeddings(self) -> Float[Tensor, "vocabulary dim"]:
        """The vector of every token out of context."""

    def split(self, text: str) -> tuple[list[int], list[str]]:
        """Token numbers of a text, and the content word of each in lower case; empty where it belongs to none."""

    def read(
        self,
        ids: Int[Tensor, "texts positions"],
        mask: Bool[Tensor, "texts positions"],
        places: Int[Tensor, "texts kept"],
        kept: Bool[Tensor, "texts kept"],
    ) -> Features:
        """Raw features of texts; the local path has the given places alone."""


def device_towers(image: ImageTower, text: TextTower) -> tuple[DeviceImages, DeviceTexts]:
    """The same towers, if they can read from the device.

    Raises:
        ConfigError: one of them cannot.
    """
    if not isinstance(image, DeviceImages) or not isinstance(text, DeviceTexts):
        raise ConfigError("train.resident needs towers of kind 'mini'; set it to false for others")
    return image, text
