"""The image tower of `mini`: maps of EfficientNet-Lite2, in fused kernels on a GPU."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from msdscore.core.arrays import Float, UInt8
from msdscore.core.embeddings import PatchLayout
from msdscore.encoders.base import Prepared
from msdscore.encoders.checkpoints import locate
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore_torch.aligned.lite2 import BASE, GRID, SIZE, Lite2, branch_maps, load_lite2, share_stages
from msdscore_torch.aligned.minilm import base_file
from msdscore_torch.aligned.rows import RowNetworks
from msdscore_torch.aligned.towers import ImageTowerSpec, TowerOptions, all_points
from msdscore_torch.backbone import place
from msdscore_torch.gpu.convolutions import serves
from msdscore_torch.hub import verify_files
from msdscore_torch.tensors import Features, read_tensors, widened
from msdscore_torch.vision.device import normalise, stack_levels

_CPU_BATCH = 4  # images at a time: more spill out of a CPU's caches and are slower
_GPU_BATCH = 512  # torch's depth-wise convolution takes fewer than 2^31 numbers, its largest input has 2 million each


class Lite2Images:
    """Three maps of EfficientNet-Lite2: on one grid for the local path, as one vector of means for the global path."""

    def __init__(self, spec: ImageTowerSpec, options: TowerOptions, *, base: Path | None = None) -> None:
        self.files: tuple[Path, ...] = (base_file(BASE),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._place = place(options.device, options.dtype, half=torch.bfloat16)
        self.device = self._place.device
        # Cells per side of the grid of its maps, and pixels per side of its input squares.
        self._whole, self.grid, self.side = options.whole, spec.grid or GRID, spec.size or SIZE
        # The network was trained on (x − 127) / 128; the image is squashed, so that nothing is cropped.
        self.preprocessing = Preprocessing(
            resize=(self.side, self.side), crop=None, scale=1 / 128, mean=(127 / 128,) * 3
        )
        self.prepare = partial(prepare_image, steps=self.preprocessing)
        frozen = widened(read_tensors(self.files))
        names = spec.branches or ((spec.weights,) if spec.weights else ())
        tuned = [_tuned(frozen, Path(locate(name, base=base))) for name in names] or [load_lite2(frozen)]
        self._networks = [
            network.to(self.device).to(memory_format=self._format)  # type: ignore[call-overload]
            for network in tuned
        ]
        self._shared = share_stages(self._networks)
        self._rows: RowNetworks | None = None  # made for the first batch

    def levels(self, images: Sequence[Prepared]) -> UInt8[Tensor, "batch 3 side side"]:
        """Prepared images on the device, as levels from 0 to 255."""
        return stack_levels(images, self.preprocessing, self.device)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Cells of the joined maps, row by row, and the maps' means."""
        return replace(self.features_of(self.levels(images)), layout=self.layout(images))

    @torch.no_grad()
    def features_of(self, pixels: UInt8[Tensor, "batch 3 side side"]) -> Features:
        """The features of levels on the device; the layout is empty."""
        few = pixels.split(_CPU_BATCH if self.device.type == "cpu" else _GPU_BATCH)
        cells, means = (torch.cat(parts) for parts in zip(*map(self._maps, few), strict=True))
        return self._features(cells, means)

    def layout(self, images: Sequence[Prepared]) -> tuple[PatchLayout, ...]:
        """The boxes of the cells on each image."""
        cell = self.side / self.grid
        return tuple(patch_layout(image.view, (self.grid, self.grid), (cell, cell)) for image in images)

    @torch.no_grad()
    def see(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Features of pixels on its device, with values from 0 to 255; the layout is empty."""
        return self._features(*self._maps((pixels - 127) / 128))

    @property
    def _format(self) -> torch.memory_format:
        # Channels last: on a CPU the depth-wise convolutions run several times faster.
        return torch.contiguous_format if self.device.type == "cuda" else torch.channels_last

    def _features(self, cells: Tensor, means: Tensor) -> Features:
        return replace(all_points(cells), whole=all_points(means[:, :, None, None]) if self._whole else None)

    @property
    def network(self) -> Lite2:
        """The frozen network; the first of its branches."""
        return self._networks[0]

    def tuned(self, tensors: Mapping[str, Tensor]) -> "Lite2Images":
        """The same tower with some tensors of its network replaced."""
        tower = copy(self)
        network = deepcopy(self.network)
        network.load_state_dict(network.state_dict() | dict(tensors))
        tower._networks, tower._shared, tower._rows = [network], share_stages([network]), None
        return tower

    @property
    def is_fused(self) -> bool:
        """Whether the network runs in fused kernels on a GPU."""
        return self._in_rows() is not None

    def _in_rows(self) -> RowNetworks | None:
        """The networks for a GPU on which their kernels work; else None."""
        if self.device.type != "cuda":
            return None
        if self._rows is None and serves(self.device, self._place.dtype):
            self._rows = RowNetworks(self._networks, self._place.dtype, shared=self._shared)
        return self._rows

    def _maps(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated maps of every branch on one grid, and their means; of normalised pixels or of bytes."""
        levels = pixels.dtype == torch.uint8
        if (rows := self._in_rows()) is not None:
            maps = rows(pixels, scale=1 / 128, shift=127 / 128) if levels else rows(pixels)
        else:
            pixels = normalise(pixels, self.preprocessing) if levels else pixels
            pixels = pixels.contiguous(memory_format=self._format)
            pixels = pixels.to(self._place.dtype) if self.device.type == "cuda" else pixels
            with self._place.autocast():
                maps = branch_maps(self._networks, pixels, shared=self._shared)
        wide, size = [part.float() for part in maps], (self.grid, self.grid)
        cells = [functional.interpolate(part, size, mode="bilinear", align_corners=False) for part in wide]
        return torch.cat(cells, dim=1), torch.cat([part.mean(dim=(2, 3)) for part in wide], dim=1)


def _tuned(frozen: Mapping[str, Tensor], file: Path) -> Lite2:
    """The network with tuned convolutions instead of the frozen ones; those missing from the file are unchanged."""
    return load_lite2({**frozen, **widened(read_tensors([file]))}, source=file.name)
