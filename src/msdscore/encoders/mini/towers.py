"""The two networks of `mini` as towers: EfficientNet-Lite2 for images, MiniLM for captions."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import interpolate

from msdscore.encoders.aligned.towers import (
    ImageTowerSpec,
    Level,
    TextTowerSpec,
    TowerPlace,
    all_points,
    keep_content,
    mean_state,
    take_level,
)
from msdscore.encoders.backbone import Placement, place
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import find_weights, locate
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.loading.tensors import read_tensors, widened
from msdscore.encoders.mini import lite2, minilm
from msdscore.encoders.tokens import TextSettings, join_windows, pack_texts, tokenise, unpack_tokens
from msdscore.encoders.vision.preprocessing import Preprocessing, patch_layout, prepare_image, stack_pixels
from msdscore.errors import WeightsError
from msdscore.text.words import token_contents

SIZE, GRID = 288, 12  # of the shipped encoder
_CPU_BATCH = 4  # images at a time: more spill out of a CPU's caches and are slower
_MOST_SENTENCES = 1 << 14  # sentence vectors that are cached


class Lite2Images:
    """Three maps of EfficientNet-Lite2: on one grid for the local path, as one vector of means for the global path."""

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        self.files: tuple[Path, ...] = (find_weights(lite2.WEIGHTS),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._place = place(where.device, where.dtype, half=torch.bfloat16)
        self.device = self._place.device
        # Cells per side of the grid of its maps, and pixels per side of its input squares.
        self._whole, self.grid, self.side = where.whole, spec.grid or GRID, spec.size or SIZE
        # The network was trained on (x − 127) / 128; the image is squashed, so that nothing is cropped.
        self.preprocessing = Preprocessing(
            resize=(self.side, self.side), crop=None, scale=1 / 128, mean=(127 / 128,) * 3
        )
        network = lite2.load_lite2(read_tensors(self.files)).eval().requires_grad_(False)
        names = spec.branches or ((spec.weights,) if spec.weights else ())
        tuned = [_tuned(network, Path(locate(name, base=base))) for name in names] or [network]
        # Channels last: the depth-wise convolutions run several times faster.
        self._networks = [
            network.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for network in tuned
        ]
        self._shared = lite2.share_stages(self._networks)

    def prepare(self, image: Image) -> Prepared:
        """Preprocess an image for the network."""
        return prepare_image(image, self.preprocessing)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Cells of the joined maps, row by row, and the maps' means."""
        pixels = stack_pixels(images, self.preprocessing, self.device)
        few = pixels.split(_CPU_BATCH if self.device.type == "cpu" else len(pixels))
        cells, means = (torch.cat(parts) for parts in zip(*map(self._maps, few), strict=True))
        cell = self.side / self.grid
        layout = tuple(patch_layout(image.view, (self.grid, self.grid), (cell, cell)) for image in images)
        return replace(self._features(cells, means), layout=layout)

    @torch.no_grad()
    def see(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Features of pixels on its device, with values from 0 to 255; the layout is empty."""
        return self._features(*self._maps((pixels - 127) / 128))

    def _features(self, cells: Tensor, means: Tensor) -> Features:
        return replace(all_points(cells), whole=all_points(means[:, :, None, None]) if self._whole else None)

    @property
    def network(self) -> lite2.Lite2:
        """The frozen network; the first of its branches."""
        return self._networks[0]

    def tuned(self, tensors: Mapping[str, Tensor]) -> "Lite2Images":
        """The same tower with some tensors of its network replaced."""
        tower = copy(self)
        network = deepcopy(self.network)
        network.load_state_dict(network.state_dict() | dict(tensors))
        tower._networks, tower._shared = [network], lite2.share_stages([network])
        return tower

    def _maps(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated maps of every branch on one grid, and their means."""
        with _autocast(self._place):
            maps = lite2.branch_maps(
                self._networks, pixels.contiguous(memory_format=torch.channels_last), shared=self._shared
            )
        wide, size = [part.float() for part in maps], (self.grid, self.grid)
        cells = [interpolate(part, size, mode="bilinear", align_corners=False) for part in wide]
        return torch.cat(cells, dim=1), torch.cat([part.mean(dim=(2, 3)) for part in wide], dim=1)


def _tuned(network: lite2.Lite2, file: Path) -> lite2.Lite2:
    """The network with tuned convolutions instead of the frozen ones; those missing from the file are unchanged."""
    copied, tuned = deepcopy(network), widened(read_tensors([file]))
    try:
        copied.load_state_dict(copied.state_dict() | tuned)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"{file.name} does not fit EfficientNet-Lite2 ({reason}); export it again") from None
    return copied


class MiniLMTexts:
    """Hidden states of MiniLM: content words for the local path, all tokens with special ones for the global path."""

    def __init__(self, spec: TextTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        self.files: tuple[Path, ...] = (find_weights(minilm.WEIGHTS),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype, half=torch.bfloat16)
        self.device = self._place.device
        self._tokenizer, marks = minilm.read_tokenizer(), ((minilm.CLS,), (minilm.SEP,), minilm.PAD)
        self._text_settings = TextSettings(minilm.CONTEXT, *marks, where.long_text, unknown=minilm.UNKNOWN)
        network = minilm.load_minilm(read_tensors(self.files))
        self._network = network.eval().requires_grad_(False).to(self.device)
        self._sentences: dict[str, Tensor] = {}

    @property
    def marks(self) -> tuple[int, int, int]:
        """Ids of the tokens before a text, after it, and of padding."""
        return self._text_settings.prefix[0], self._text_settings.suffix[0], self._text_settings.pad

    @property
    def embeddings(self) -> Float[Tensor, "vocabulary dim"]:
        """The vector of every token out of context."""
        return self._network.words.weight

    def split(self, text: str) -> tuple[list[int], list[str]]:
        """Token ids of a text, and the content word of each in lower case; empty if it belongs to none."""
        tokens = tokenise(self._tokenizer, text)
        return list(tokens.ids), token_contents(text, tokens.spans)

    @torch.no_grad()
    def read(
        self,
        ids: Int[Tensor, "texts positions"],
        mask: Bool[Tensor, "texts positions"],
        places: Int[Tensor, "texts kept"],
        kept: Bool[Tensor, "texts kept"],
    ) -> Features:
        """Features of token ids on its device; the local path has only the tokens at `places`."""
        with _autocast(self._place):
            states = self._network(ids, mask)
        rows = places.unsqueeze(-1).expand(-1, -1, states[-1].shape[2])
        local = [take_level(states, level).gather(1, rows) for level in self._spec.levels]
        pooled, whole = mean_state(states[-1], mask), self._global(states, mask)
        return Features(torch.cat(local, dim=-1), kept, pooled, whole=whole)

    def features(self, texts: Sequence[str]) -> Features:
        """The requested states of every token; global path and means of the last state have a row per window."""
        return self._features(texts)[0]

    def sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts 384"]:
        """Sentence vectors, for which MiniLM was trained: the normalised mean of the last state.

        The vectors of the latest texts are cached, so that a text is not read again after its features.
        """
        known = {text: vector for text in texts if (vector := self._sentences.get(text)) is not None}
        if fresh := [text for text in dict.fromkeys(texts) if text not in known]:
            known |= dict(zip(fresh, self._features(fresh)[1], strict=True))
        return torch.stack([known[text] for text in texts])

    @torch.no_grad()
    def _features(self, texts: Sequence[str]) -> tuple[Features, Float[Tensor, "texts 384"]]:
        batch = pack_texts(texts, self._tokenizer, self._text_settings)
        attention = batch.attention.to(self.device)
        with _autocast(self._place):
            states = [state.float() for state in self._network(batch.ids.to(self.device), attention)]
        local = unpack_tokens(_joined(states, self._spec.levels), batch)
        pooled, whole = mean_state(states[-1], attention), self._global(states, attention)
        every = Features(local, batch.mask.to(self.device), pooled, batch.layout, whole, batch.windows)
        vectors = join_windows(pooled, batch.windows)
        if len(self._sentences) > _MOST_SENTENCES:
            self._sentences = {}
        self._sentences.update(zip(texts, vectors, strict=True))
        return (keep_content(every, texts) if self._spec.words == "content" else every), vectors

    def _global(self, states: Sequence[Tensor], mask: Tensor) -> Features | None:
        levels = self._spec.global_levels or self._spec.levels
        return Features(_joined(states, levels), mask) if self._whole else None


def _joined(states: Sequence[Tensor], levels: Sequence[Level]) -> Float[Tensor, "windows positions dim"]:
    return torch.cat([take_level(states, level) for level in levels], dim=-1)


def _autocast(where: Placement) -> torch.autocast:
    return torch.autocast(where.device.type, where.dtype, enabled=where.dtype != torch.float32)
