"""How the SigLIP towers see: squares of one size, or patches in the picture's own shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image, Resampling
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint
from msdscore.encoders.loading.transformers import preprocessor, square_preprocessing
from msdscore.encoders.placement import Placement
from msdscore.encoders.vision.preprocessing import (
    Preprocessing,
    patch_layout,
    prepare_picture,
    read_preprocessing,
    stack_pixels,
)
from msdscore.encoders.vision.sizes import naflex_size

Layouts = tuple[PatchLayout, ...]


@dataclass(frozen=True, slots=True)
class FixedVision:
    """Every picture is squashed or cropped to one square."""

    steps: Preprocessing
    patch: int
    side: int  # patches

    @property
    def choices(self) -> tuple[str, ...]:
        """Nothing of it can be chosen."""
        return ()

    def prepare(self, image: Image) -> Prepared:
        """The picture on its square."""
        return prepare_picture(image, self.steps)

    def look(self, tower: Any, images: Sequence[Prepared], placement: Placement) -> tuple[Any, Layouts]:
        """The tower's output for a batch of pictures, and where its patches lie."""
        pixels = stack_pixels(images, self.steps, placement.device)
        layout = tuple(patch_layout(image.view, (self.side, self.side), (self.patch, self.patch)) for image in images)
        return tower(pixel_values=pixels.to(placement.dtype)), layout


@dataclass(frozen=True, slots=True)
class NativeVision:
    """Every picture keeps its shape, in at most `most` patches."""

    steps: Preprocessing
    patch: int
    most: int

    @property
    def choices(self) -> tuple[str, ...]:
        """The number of patches, which changes what can be seen."""
        return (f"patches:{self.most}",)

    def prepare(self, image: Image) -> Prepared:
        """The picture in whole patches of its own shape."""
        resize = naflex_size(image.size, patch=self.patch, most=self.most)
        return prepare_picture(image, replace(self.steps, resize=resize))

    def look(self, tower: Any, images: Sequence[Prepared], placement: Placement) -> tuple[Any, Layouts]:
        """The tower's output for a batch of pictures; patches beyond a picture's own are padding."""
        drawn = [self._cut(image, placement.device) for image in images]
        layout = tuple(item for _, item in drawn)
        pixels = pad_sequence([patches for patches, _ in drawn], batch_first=True)
        counts = torch.tensor([len(patches) for patches, _ in drawn])
        mask = (torch.arange(pixels.shape[1]) < counts.unsqueeze(1)).long()
        shapes = torch.tensor([item.grid for item in layout])
        # By position: the name of the mask differs between versions.
        states = tower(pixels.to(placement.dtype), mask.to(placement.device), shapes.to(placement.device))
        return states, layout

    def _cut(self, image: Prepared, device: torch.device) -> tuple[Float[Tensor, "patches values"], PatchLayout]:
        pixels = stack_pixels([image], self.steps, device)[0]
        grid = (pixels.shape[1] // self.patch, pixels.shape[2] // self.patch)
        return _patches(pixels, self.patch), patch_layout(image.view, grid, (self.patch, self.patch))


def _patches(pixels: Float[Tensor, "3 height width"], patch: int) -> Float[Tensor, "patches values"]:
    """Row-major patches, each flattened by row, column and colour."""
    cut = pixels.unfold(1, patch, patch).unfold(2, patch, patch)
    return cut.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1)


def fixed_vision(checkpoint: Checkpoint, model: Any) -> FixedVision:
    """The vision of a model with one resolution."""
    vision = model.config.vision_config
    size, patch = int(vision.image_size), int(vision.patch_size)
    return FixedVision(square_preprocessing(checkpoint, size), patch, size // patch)


def native_vision(checkpoint: Checkpoint, model: Any, most: int) -> NativeVision:
    """The vision of a NaFlex model; `most` 0 is the checkpoint's own number of patches."""
    config: Mapping[str, Any] = preprocessor(checkpoint)
    steps = read_preprocessing({"resample": Resampling.BILINEAR, **config, "do_resize": False})
    own = int(config.get("max_num_patches", 256))
    return NativeVision(steps, int(model.config.vision_config.patch_size), most or own)
