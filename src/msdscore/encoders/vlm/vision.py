"""How large vision-language models see: visual tokens after the projector, and where they lie on the picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from msdscore.encoders.base import PatchLayout, Prepared, View
from msdscore.encoders.vision.preprocessing import (
    Preprocessing,
    cell_layout,
    draw,
    patch_layout,
    prepare_picture,
    stack_pixels,
)
from msdscore.encoders.vision.sizes import Size, best_canvas, fit_on, shrunk, smart_size, unpadded

Tokens = Float[Tensor, "points dim"]
SeenPictures = tuple[list[Tokens], tuple[PatchLayout, ...]]

# Tiles that go through the vision tower at once: a large picture has up to 37 of them.
_TILES = 16


class Vision(Protocol):
    """One way of seeing; `choices` are the parts of the signature that depend on it."""

    @property
    def choices(self) -> tuple[str, ...]:
        """What of it can be chosen."""

    def prepare(self, image: Image.Image) -> Prepared:
        """The picture as the vision tower takes it."""

    def look(self, model: Any, images: Sequence[Prepared], device: torch.device, dtype: torch.dtype) -> SeenPictures:
        """The visual tokens of every picture, in row-major order, and where they lie."""


@dataclass(frozen=True, slots=True)
class SquareVision:
    """One square per picture (LLaVA-1.5, and the overview of LLaVA-OneVision)."""

    steps: Preprocessing
    patch: int
    side: int  # patches
    pad: bool = False  # the picture is first set on a square of the mean colour
    choices: tuple[str, ...] = ()

    def prepare(self, image: Image.Image) -> Prepared:
        """The picture on its square."""
        if not self.pad:
            return prepare_picture(image, self.steps)
        squared = prepare_picture(_squared(image, self.steps.mean), self.steps)
        return Prepared(squared.pixels, replace(squared.view, size=image.size))

    def look(self, model: Any, images: Sequence[Prepared], device: torch.device, dtype: torch.dtype) -> SeenPictures:
        """One grid of tokens per picture."""
        pixels = stack_pixels(images, self.steps, device)
        grid, patch = (self.side, self.side), (self.patch, self.patch)
        if self.pad:
            layout = tuple(_unsquared(image.view, grid, self.patch) for image in images)
        else:
            layout = tuple(patch_layout(image.view, grid, patch) for image in images)
        return list(project(model, pixels.to(dtype))), layout


@dataclass(frozen=True, slots=True)
class TileVision:
    """Tiles of the picture at the resolution that suits it, as one mosaic (LLaVA-OneVision).

    The tokens are those of the model's own packing without its overview and its line ends: cells of padding are
    cut off, and a mosaic of more than `most` tiles is pooled.
    """

    steps: Preprocessing
    patch: int
    side: int  # patches of a tile
    canvases: tuple[Size, ...]
    most: int
    choices: tuple[str, ...] = ("views:tiles",)

    @property
    def tile(self) -> int:
        """Pixels of a tile's side."""
        resize = self.steps.resize
        return resize[0] if isinstance(resize, tuple) else int(resize or 0)

    def prepare(self, image: Image.Image) -> Prepared:
        """The picture on the canvas that suits it."""
        where = fit_on(image.size, best_canvas(image.size, list(self.canvases)))
        return Prepared(draw(image, where, self.steps.resample), where)

    def look(self, model: Any, images: Sequence[Prepared], device: torch.device, dtype: torch.dtype) -> SeenPictures:
        """One mosaic of tokens per picture."""
        seen = [self._look(model, image, device, dtype) for image in images]
        return [tokens for tokens, _ in seen], tuple(layout for _, layout in seen)

    def _look(
        self, model: Any, image: Prepared, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tokens, PatchLayout]:
        pixels = stack_pixels([image], self.steps, device)[0]
        tiles = pixels.unfold(1, self.tile, self.tile).unfold(2, self.tile, self.tile)
        down, across = tiles.shape[1:3]
        flat = tiles.permute(1, 2, 0, 3, 4).flatten(0, 1).to(dtype)
        states = torch.cat([project(model, part) for part in flat.split(_TILES)])
        grid = states.reshape(down, across, self.side, self.side, -1).permute(4, 0, 2, 1, 3)
        return self._mosaic(grid.flatten(3, 4).flatten(1, 2), image.view)

    def _mosaic(self, grid: Float[Tensor, "dim rows columns"], where: View) -> tuple[Tokens, PatchLayout]:
        rows, columns = grid.shape[1:]
        crop = unpadded(where.size, (columns, rows))
        grid = grid[:, crop.top : rows - crop.top, crop.left : columns - crop.left]
        size = shrunk((grid.shape[2], grid.shape[1]), side=self.side, most=self.most)
        if size != (grid.shape[2], grid.shape[1]):
            grid = interpolate(grid[None], size[::-1], mode="bilinear")[0]
        layout = cell_layout(
            where,
            columns=_pooled_cells(self._cells(columns)[crop.left : columns - crop.left], size[0]),
            rows=_pooled_cells(self._cells(rows)[crop.top : rows - crop.top], size[1]),
        )
        return grid.flatten(1).T, layout

    def _cells(self, count: int) -> Float[Tensor, "cells 2"]:
        """Pixels of the canvas that each cell of one axis sees; a tower may leave a rim of a tile unseen."""
        cell = torch.arange(count, dtype=torch.float64)
        start = (cell // self.side) * self.tile + (cell % self.side) * self.patch
        return torch.stack([start, start + self.patch], dim=-1)


def _pooled_cells(cells: Float[Tensor, "cells 2"], count: int) -> Float[Tensor, "count 2"]:
    """The stretch of `cells` that each of fewer cells stands for."""
    if count == len(cells):
        return cells
    edges = torch.cat([cells[:, 0], cells[-1:, 1]])
    place = torch.arange(count + 1, dtype=torch.float64) * len(cells) / count
    low = place.floor().long().clamp(max=len(cells) - 1)
    at = torch.lerp(edges[low], edges[low + 1], place - low)
    return torch.stack([at[:-1], at[1:]], dim=-1)


@dataclass(frozen=True, slots=True)
class DynamicVision:
    """A grid in the picture's own shape (Qwen2.5-VL): neighbouring patches are merged into one token."""

    steps: Preprocessing
    patch: int
    merge: int  # patches per side of one token
    frames: int  # times a still picture is repeated, as if it were a film
    least: int  # pixels
    most: int

    @property
    def choices(self) -> tuple[str, ...]:
        """The largest area, which changes what can be seen."""
        return (f"pixels:{self.most}",)

    def prepare(self, image: Image.Image) -> Prepared:
        """The picture in whole tokens, near its own shape."""
        cell = self.patch * self.merge
        resize = smart_size(image.size, factor=cell, least=self.least, most=self.most)
        return prepare_picture(image, replace(self.steps, resize=resize))

    def look(self, model: Any, images: Sequence[Prepared], device: torch.device, dtype: torch.dtype) -> SeenPictures:
        """One grid of tokens per picture, all pictures in one call."""
        drawn = [self._cut(image, device) for image in images]
        layout = tuple(item for _, item in drawn)
        shapes = torch.tensor([[1, item.grid[0] * self.merge, item.grid[1] * self.merge] for item in layout])
        pixels = torch.cat([patches for patches, _ in drawn]).to(dtype)
        found = model.get_image_features(pixels, shapes.to(device))
        # Version 5 gives an output object where version 4 gave the tensors.
        tokens = getattr(found, "pooler_output", found)
        if isinstance(tokens, Tensor):
            tokens = tokens.split([item.grid[0] * item.grid[1] for item in layout])
        return list(tokens), layout

    def _cut(self, image: Prepared, device: torch.device) -> tuple[Float[Tensor, "patches values"], PatchLayout]:
        cell = self.patch * self.merge
        pixels = stack_pixels([image], self.steps, device)[0]
        layout = patch_layout(image.view, (pixels.shape[1] // cell, pixels.shape[2] // cell), (cell, cell))
        return self._patches(pixels), layout

    def _patches(self, pixels: Float[Tensor, "3 height width"]) -> Float[Tensor, "patches values"]:
        """Flat patches, the ones of a token next to each other."""
        cut = pixels.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        rows, columns = cut.shape[1] // self.merge, cut.shape[2] // self.merge
        blocks = cut.reshape(3, rows, self.merge, columns, self.merge, self.patch, self.patch)
        still = blocks.permute(1, 3, 2, 4, 0, 5, 6).unsqueeze(5)
        return still.expand(*[-1] * 5, self.frames, -1, -1).reshape(rows * columns * self.merge**2, -1)


def project(model: Any, pixels: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch points dim"]:
    """The layer of the vision tower that a LLaVA model reads, without its class token, through the projector."""
    config = model.config
    states = model.vision_tower(pixels, output_hidden_states=True).hidden_states
    layers = config.vision_feature_layer
    chosen = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
    if config.vision_feature_select_strategy == "default":
        chosen = [state[:, 1:] for state in chosen]
    return model.multi_modal_projector(torch.cat(chosen, dim=-1))


def _squared(image: Image.Image, mean: Sequence[float]) -> Image.Image:
    side = max(image.size)
    square = Image.new("RGB", (side, side), tuple(int(part * 255) for part in mean))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _unsquared(where: View, grid: Size, patch: int) -> PatchLayout:
    """The layout of a picture that was set on a square; of `where` the size alone is the picture's own."""
    size, side = where.size, max(where.size)
    layout = patch_layout(replace(where, size=(side, side)), grid, (patch, patch))
    shift = torch.tensor([(side - size[0]) // 2, (side - size[1]) // 2] * 2)
    limit = torch.tensor(size * 2)
    return replace(layout, size=size, boxes=(layout.boxes - shift).clamp(min=torch.zeros(4), max=limit))
