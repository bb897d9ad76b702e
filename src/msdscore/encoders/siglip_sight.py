"""How the SigLIP towers see: squares of one size, or patches in the picture's own shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image, Resampling
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from msdscore.encoders.base import PatchLayout
from msdscore.encoders.frames import Frame, draw, frame_batch, normalise, patch_layout, read_frame, view
from msdscore.encoders.grids import naflex_size
from msdscore.encoders.hf import preprocessor, square_frame
from msdscore.encoders.placement import Placement
from msdscore.encoders.weights import Checkpoint

Seen = tuple[Any, tuple[PatchLayout, ...]]  # the tower's output, and where its patches lie


@dataclass(frozen=True, slots=True)
class FixedSight:
    """Every picture is squashed or cropped to one square."""

    frame: Frame
    patch: int
    side: int  # patches

    @property
    def choices(self) -> tuple[str, ...]:
        """Nothing of it can be chosen."""
        return ()

    def look(self, tower: Any, images: Sequence[Image], placement: Placement) -> Seen:
        """The tower's output for a batch of pictures."""
        pixels, views = frame_batch(images, self.frame, placement.device)
        layout = tuple(patch_layout(where, (self.side, self.side), (self.patch, self.patch)) for where in views)
        return tower(pixel_values=pixels.to(placement.dtype)), layout


@dataclass(frozen=True, slots=True)
class NativeSight:
    """Every picture keeps its shape, in at most `most` patches."""

    frame: Frame
    patch: int
    most: int

    @property
    def choices(self) -> tuple[str, ...]:
        """The number of patches, which changes what can be seen."""
        return (f"patches:{self.most}",)

    def look(self, tower: Any, images: Sequence[Image], placement: Placement) -> Seen:
        """The tower's output for a batch of pictures; patches beyond a picture's own are padding."""
        drawn = [self._draw(image, placement.device) for image in images]
        layout = tuple(item for _, item in drawn)
        pixels = pad_sequence([patches for patches, _ in drawn], batch_first=True)
        counts = torch.tensor([len(patches) for patches, _ in drawn])
        mask = (torch.arange(pixels.shape[1]) < counts.unsqueeze(1)).long()
        shapes = torch.tensor([item.grid for item in layout])
        # By position: the name of the mask differs between versions.
        states = tower(pixels.to(placement.dtype), mask.to(placement.device), shapes.to(placement.device))
        return states, layout

    def _draw(self, image: Image, device: torch.device) -> tuple[Float[Tensor, "patches values"], PatchLayout]:
        resize = naflex_size(image.size, patch=self.patch, most=self.most)
        where = view(replace(self.frame, resize=resize), image.size)
        pixels = normalise(draw(image, where, self.frame.resample)[None].to(device), self.frame)[0]
        grid = (resize[1] // self.patch, resize[0] // self.patch)
        return _patches(pixels, self.patch), patch_layout(where, grid, (self.patch, self.patch))


def _patches(pixels: Float[Tensor, "3 height width"], patch: int) -> Float[Tensor, "patches values"]:
    """Row-major patches, each flattened by row, column and colour."""
    cut = pixels.unfold(1, patch, patch).unfold(2, patch, patch)
    return cut.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1)


def fixed_sight(checkpoint: Checkpoint, model: Any) -> FixedSight:
    """The sight of a model with one resolution."""
    vision = model.config.vision_config
    size, patch = int(vision.image_size), int(vision.patch_size)
    return FixedSight(square_frame(checkpoint, size), patch, size // patch)


def native_sight(checkpoint: Checkpoint, model: Any, most: int) -> NativeSight:
    """The sight of a NaFlex model; `most` 0 is the checkpoint's own number of patches."""
    config: Mapping[str, Any] = preprocessor(checkpoint)
    frame = read_frame({"resample": Resampling.BILINEAR, **config, "do_resize": False})
    own = int(config.get("max_num_patches", 256))
    return NativeSight(frame, int(model.config.vision_config.patch_size), most or own)
