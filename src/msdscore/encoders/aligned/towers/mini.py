"""The frozen networks of `mini` as towers: EfficientNet-Lite2 for pictures, MiniLM for captions."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import interpolate

from msdscore.encoders.aligned.towers.base import Features, ImageTowerSpec, Level, Points, TextTowerSpec, TowerPlace
from msdscore.encoders.aligned.towers.transformers import all_points, take_level
from msdscore.encoders.backbone import Placement, place
from msdscore.encoders.base import Prepared, TokenLayout
from msdscore.encoders.loading.files import verify_files
from msdscore.encoders.loading.packages import find_weights, read_tensors
from msdscore.encoders.mini.encoder import LITE2, MINILM, read_config, read_tokenizer, reading, shipped_folder
from msdscore.encoders.mini.lite2 import load_lite2
from msdscore.encoders.mini.minilm import load_minilm
from msdscore.encoders.mini.words import content_tokens, pick
from msdscore.encoders.text.tokens import TextBatch, pack, tokenise, unpack_tokens
from msdscore.encoders.vision.preprocessing import Preprocessing, patch_layout, prepare_picture, stack_pixels

SIZE, GRID = 288, 12  # of the shipped encoder


class Lite2Images:
    """Three maps of EfficientNet-Lite2: on one grid for the local path, as one vector of means for the global one."""

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace) -> None:
        self.files: tuple[Path, ...] = (find_weights(LITE2),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._place = place(where.device, where.dtype, half=torch.bfloat16)
        self._whole, self._grid, self._side = where.whole, spec.grid or GRID, spec.size or SIZE
        # As `mini` sees them: squashed, so that no border is lost, and (x − 127) / 128.
        self._steps = Preprocessing(resize=(self._side, self._side), crop=None, scale=1 / 128, mean=(127 / 128,) * 3)
        content = read_config(shipped_folder())["lite2_sha256"]
        network = load_lite2(read_tensors(self.files[0]), content=content)
        frozen = network.eval().requires_grad_(False).to(self.device)
        # Channels last: the depth-wise convolutions run several times faster.
        self._network = frozen.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def device(self) -> torch.device:
        """Where its features are made."""
        return self._place.device

    def prepare(self, image: Image) -> Prepared:
        """The picture as the network takes it."""
        return prepare_picture(image, self._steps)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Cells of the joined maps, row by row, and the maps' means."""
        pixels = stack_pixels(images, self._steps, self.device)
        with _autocast(self._place):
            maps = self._network(pixels.contiguous(memory_format=torch.channels_last))
        maps = [part.float() for part in maps]
        size = (self._grid, self._grid)
        cells = torch.cat([interpolate(part, size, mode="bilinear", align_corners=False) for part in maps], dim=1)
        means = torch.cat([part.mean(dim=(2, 3)) for part in maps], dim=1)
        whole = all_points(means[:, :, None, None]) if self._whole else None
        cell = self._side / self._grid
        layout = tuple(patch_layout(image.view, size, (cell, cell)) for image in images)
        return Features(all_points(cells), whole, None, layout)


class MiniLMTexts:
    """Hidden states of MiniLM: content words for the local path, all tokens with their marks for the global one."""

    def __init__(self, spec: TextTowerSpec, where: TowerPlace) -> None:
        self.files: tuple[Path, ...] = (find_weights(MINILM),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype, half=torch.bfloat16)
        self._stop_words = frozenset(read_config(shipped_folder())["stop_words"])
        self._tokenizer, self._reading = read_tokenizer(), reading(where.long_text)
        self._network = load_minilm(read_tensors(self.files[0])).eval().requires_grad_(False).to(self.device)

    @property
    def device(self) -> torch.device:
        """Where its features are made."""
        return self._place.device

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Features:
        """The asked states of every token; pooled is the mean of the last state over all tokens."""
        batch = pack([tokenise(self._tokenizer, text) for text in texts], self._reading)
        attention = batch.attention.to(self.device)
        with _autocast(self._place):
            states = [state.float() for state in self._network(batch.ids.to(self.device), attention)]
        local, layout = self._local(texts, unpack_tokens(_joined(states, self._spec.levels), batch), batch)
        whole = _whole(_joined(states, self._spec.global_levels or self._spec.levels), batch)
        last = _whole(states[-1], batch)
        real = last.mask.unsqueeze(-1)
        pooled = (last.vectors * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
        return Features(local, whole if self._whole else None, pooled, layout)

    def _local(
        self, texts: Sequence[str], vectors: Float[Tensor, "batch points dim"], batch: TextBatch
    ) -> tuple[Points, tuple[TokenLayout, ...]]:
        if self._spec.words == "all":
            return Points(vectors, batch.mask.to(self.device)), batch.layout
        chosen = [
            content_tokens(text, layout.spans, self._stop_words)
            for text, layout in zip(texts, batch.layout, strict=True)
        ]
        fewer = tuple(
            TokenLayout(tuple(layout.spans[number] for number in own), layout.windows, layout.cut)
            for layout, own in zip(batch.layout, chosen, strict=True)
        )
        return Points(*pick(vectors, chosen)), fewer


def _joined(states: Sequence[Tensor], levels: Sequence[Level]) -> Float[Tensor, "windows positions dim"]:
    return torch.cat([take_level(states, level) for level in levels], dim=-1)


def _whole(states: Float[Tensor, "windows positions dim"], batch: TextBatch) -> Points:
    """All positions of all windows of a caption, with the marks at both ends of each."""
    own = batch.own.to(states.device)
    parts = torch.tensor([[layout.windows] for layout in batch.layout], device=states.device)
    real: Bool[Tensor, "batch parts"] = torch.arange(own.shape[1], device=states.device) < parts
    mask = batch.attention.to(states.device)[own] & real.unsqueeze(-1)
    return Points(states[own].flatten(1, 2), mask.flatten(1, 2))


def _autocast(where: Placement) -> torch.autocast:
    return torch.autocast(where.device.type, where.dtype, enabled=where.dtype != torch.float32)
