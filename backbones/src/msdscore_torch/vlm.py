"""Large vision-language models through transformers: LLaVA-1.5, LLaVA-OneVision, LLaVA-Critic, Qwen2.5-VL.

Patches are the visual tokens after the projector; tokens are the last states of the language model, which reads
only the caption. The model has no pooled vectors, so pooling is always the mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import pad_sequence

from msdscore.core.arrays import Float
from msdscore.encoders.base import Encoder, PatchLayout, Prepared, View
from msdscore.encoders.checkpoints import Checkpoint
from msdscore.encoders.options import Identity
from msdscore.encoders.preprocessing import (
    Cells,
    Preprocessing,
    as_prepared,
    cell_layout,
    drawn,
    patch_layout,
    prepare_image,
)
from msdscore.encoders.tokens import TextSettings
from msdscore.errors import ConfigError, WeightsError, require
from msdscore_torch.backbone import Backbone, Placement, compile_towers
from msdscore_torch.checkpoints import LargeOptions, load_family, preprocessor, read_preprocessing, square_preprocessing
from msdscore_torch.tensors import Features, read_tensors
from msdscore_torch.tokenizers import special_ids, unpack_tokens
from msdscore_torch.vision.device import patch_mask, stack_pixels

Size = tuple[int, int]  # width, height


def smart_size(size: Size, *, factor: int, least: int, most: int) -> Size:
    """Round a size to multiples of `factor` with an area of `least` to `most` pixels, near its aspect ratio (Qwen2-VL).

    >>> smart_size((640, 480), factor=28, least=3136, most=12845056)
    (644, 476)
    """
    width, height = size
    across, down = (round(side / factor) * factor for side in size)
    if across * down > most:
        shrink = math.sqrt(width * height / most)
        across, down = (math.floor(side / shrink / factor) * factor for side in size)
    elif across * down < least:
        grow = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * grow / factor) * factor for side in size)
    return max(factor, across), max(factor, down)


def best_canvas(size: Size, canvases: Sequence[Size]) -> Size:
    """The canvas that shows most of an image's pixels, ties broken by least padding (LLaVA, anyres).

    >>> best_canvas((640, 480), [(384, 384), (768, 384), (768, 768)])
    (768, 768)
    """
    width, height = size

    def shown(canvas: Size) -> int:
        scale = min(canvas[0] / width, canvas[1] / height)
        return min(int(width * scale) * int(height * scale), width * height)

    # max returns the first of equals, as the published rule does.
    return max(canvases, key=lambda canvas: (shown(canvas), shown(canvas) - canvas[0] * canvas[1]))


def fit_on(size: Size, canvas: Size) -> View:
    """Fit the whole image on the canvas, as large as possible and centred.

    >>> fit_on((640, 480), (768, 768))[:4]
    ((640, 480), (768, 576), (0, -96), (768, 768))
    """
    across, down = canvas[0] / size[0], canvas[1] / size[1]
    if across < down:
        resized = (canvas[0], min(math.ceil(size[1] * across), canvas[1]))
    else:
        resized = (min(math.ceil(size[0] * down), canvas[0]), canvas[1])
    offset = (-((canvas[0] - resized[0]) // 2), -((canvas[1] - resized[1]) // 2))
    return View(size, resized, offset, canvas)


def padding_cells(size: Size, cells: Size) -> Size:
    """Number of padding cells (columns, rows) at each end of a canvas, computed as in LLaVA's packing.

    >>> padding_cells((640, 480), (54, 54))
    (0, 7)
    """
    width, height = size
    columns, rows = cells
    if width / height > columns / rows:
        return 0, (rows - int(round(height * columns / width, 7))) // 2
    return (columns - int(round(width * rows / height, 7))) // 2, 0


def pooled_size(cells: Size, *, side: int, most: int) -> Size:
    """Columns and rows after pooling, which limits a mosaic to about `most` tiles of `side` cells per side.

    >>> pooled_size((162, 162), side=27, most=9)
    (81, 81)
    """
    columns, rows = cells
    ratio = math.sqrt(columns * rows / (most * side * side))
    return (int(columns // ratio), int(rows // ratio)) if ratio > 1.1 else cells


VisualTokens = Float[Tensor, "points dim"]
VisionOutput = tuple[list[VisualTokens], tuple[PatchLayout, ...]]

# Batch size of tiles in the vision tower: a large image has up to 37 of them.
_TILES = 16


@dataclass(frozen=True, slots=True)
class SquareVision:
    """One square per image (LLaVA-1.5, and the overview of LLaVA-OneVision)."""

    steps: Preprocessing
    patch: int
    side: int  # patches
    pad: bool = False  # the image is first padded to a square with the mean colour
    choices: tuple[str, ...] = ()

    def prepare(self, image: Image.Image) -> Prepared:
        """Preprocess an image to a square."""
        if not self.pad:
            return prepare_image(image, self.steps)
        side = max(image.size)
        square = Image.new("RGB", (side, side), tuple(int(part * 255) for part in self.steps.mean))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        squared = prepare_image(square, self.steps)
        return Prepared(squared.pixels, squared.view._replace(size=image.size))

    def visual_tokens(self, model: Any, images: Sequence[Prepared], placement: Placement) -> VisionOutput:
        """Encode images, each as one grid of tokens."""
        pixels = stack_pixels(images, self.steps, placement.device)
        layout = tuple(self._layout(image.view) for image in images)
        return list(project_patches(model, pixels.to(placement.dtype))), layout

    def _layout(self, view: View) -> PatchLayout:
        grid, patch = (self.side, self.side), (self.patch, self.patch)
        if not self.pad:
            return patch_layout(view, grid, patch)
        # The view is that of the padded square, except for its size, which is that of the image.
        size, side = view.size, max(view.size)
        layout = patch_layout(view._replace(size=(side, side)), grid, patch)
        shift = np.array([(side - size[0]) // 2, (side - size[1]) // 2] * 2, dtype=np.float32)
        boxes = np.clip(layout.boxes - shift, 0, np.array(size * 2, dtype=np.float32))
        return replace(layout, size=size, boxes=boxes)


@dataclass(frozen=True, slots=True)
class TileVision:
    """Tiles of the image at its best resolution, as one mosaic (LLaVA-OneVision).

    The tokens are those of the model's packing without its overview and line ends: cells of padding are
    cut off, and a mosaic of more than `most` tiles is pooled.
    """

    steps: Preprocessing
    patch: int
    tile: int  # pixels of a tile's side
    side: int  # patches per side of a tile
    canvases: tuple[Size, ...]
    most: int
    choices: tuple[str, ...] = ("views:tiles",)

    def prepare(self, image: Image.Image) -> Prepared:
        """Preprocess an image to its best canvas."""
        view = fit_on(image.size, best_canvas(image.size, self.canvases))
        return as_prepared(drawn(image, view, self.steps.resample), view)

    def visual_tokens(self, model: Any, images: Sequence[Prepared], placement: Placement) -> VisionOutput:
        """Encode images, each as one mosaic of tokens."""
        tokens, layout = list[VisualTokens](), list[PatchLayout]()
        for image in images:
            pixels = stack_pixels([image], self.steps, placement.device)[0]
            tiles = pixels.unfold(1, self.tile, self.tile).unfold(2, self.tile, self.tile)
            down, across = tiles.shape[1:3]
            flat = tiles.permute(1, 2, 0, 3, 4).flatten(0, 1).to(placement.dtype)
            states = torch.cat([project_patches(model, part) for part in flat.split(_TILES)])
            grid = states.reshape(down, across, self.side, self.side, -1).permute(4, 0, 2, 1, 3)
            grid = grid.flatten(3, 4).flatten(1, 2)  # dim, rows, columns
            rows, columns = grid.shape[1:]
            left, top = padding_cells(image.view.size, (columns, rows))
            grid = grid[:, top : rows - top, left : columns - left]
            size = pooled_size((grid.shape[2], grid.shape[1]), side=self.side, most=self.most)
            if size != (grid.shape[2], grid.shape[1]):
                grid = interpolate(grid[None], size[::-1], mode="bilinear")[0]
            tokens.append(grid.flatten(1).T)
            cells = {"columns": self._cells(columns, left, size[0]), "rows": self._cells(rows, top, size[1])}
            layout.append(cell_layout(image.view, **cells))
        return tokens, tuple(layout)

    def _cells(self, count: int, cut: int, pooled: int) -> Cells:
        """Canvas pixels covered by each of `pooled` cells; `cut` of `count` are dropped at each end."""
        cell = np.arange(cut, count - cut, dtype=np.float64)
        # A tower may ignore the edge of a tile.
        start = (cell // self.side) * self.tile + (cell % self.side) * self.patch
        if pooled == len(cell):
            return np.stack([start, start + self.patch], axis=-1)
        edges = np.concatenate([start, start[-1:] + self.patch])
        position = np.arange(pooled + 1) * len(cell) / pooled
        at = np.interp(position, np.arange(len(edges)), edges)
        return np.stack([at[:-1], at[1:]], axis=-1)


@dataclass(frozen=True, slots=True)
class DynamicVision:
    """A grid in the image's aspect ratio (Qwen2.5-VL): neighbouring patches are merged into one token."""

    steps: Preprocessing
    patch: int
    merge: int  # patches per side of one token
    frames: int  # number of copies of an image, which the tower reads as a video
    least: int  # pixels
    most: int

    @property
    def choices(self) -> tuple[str, ...]:
        """The maximum number of pixels, which changes the vectors."""
        return (f"pixels:{self.most}",)

    def prepare(self, image: Image.Image) -> Prepared:
        """Resize an image to whole tokens, near its aspect ratio."""
        cell = self.patch * self.merge
        resize = smart_size(image.size, factor=cell, least=self.least, most=self.most)
        return prepare_image(image, replace(self.steps, resize=resize))

    def visual_tokens(self, model: Any, images: Sequence[Prepared], placement: Placement) -> VisionOutput:
        """Encode images in one call, each as one grid of tokens."""
        patches, layout, cell = list[Tensor](), list[PatchLayout](), self.patch * self.merge
        for image in images:
            pixels = stack_pixels([image], self.steps, placement.device)[0]
            rows, columns = pixels.shape[1] // cell, pixels.shape[2] // cell
            layout.append(patch_layout(image.view, (rows, columns), (cell, cell)))
            # Flat patches, those of a token next to each other.
            cut = pixels.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
            blocks = cut.reshape(3, rows, self.merge, columns, self.merge, self.patch, self.patch)
            still = blocks.permute(1, 3, 2, 4, 0, 5, 6).unsqueeze(5)
            video = still.expand(*[-1] * 5, self.frames, -1, -1)
            patches.append(video.reshape(rows * columns * self.merge**2, -1))
        shapes = torch.tensor([[1, item.grid[0] * self.merge, item.grid[1] * self.merge] for item in layout])
        output = model.get_image_features(torch.cat(patches).to(placement.dtype), shapes.to(placement.device))
        # Version 5 returns an output object, version 4 the tensors.
        tokens = getattr(output, "pooler_output", output)
        if isinstance(tokens, Tensor):
            tokens = tokens.split([item.grid[0] * item.grid[1] for item in layout])
        return list(tokens), tuple(layout)


Vision = SquareVision | TileVision | DynamicVision


def project_patches(model: Any, pixels: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch points dim"]:
    """Project the patches of the vision tower's layers that a LLaVA model uses, without the class token."""
    config = model.config
    states = model.vision_tower(pixels, output_hidden_states=True).hidden_states
    layers = config.vision_feature_layer
    chosen = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
    if config.vision_feature_select_strategy == "default":
        chosen = [state[:, 1:] for state in chosen]
    return model.multi_modal_projector(torch.cat(chosen, dim=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmOptions(LargeOptions):
    """User options of a vision-language model.

    `views` (LLaVA-OneVision) selects tiles at the resolution of the image, or only the overview.
    """

    views: Literal["tiles", "overview"] = "tiles"
    max_patches: int = 1280  # Qwen2.5-VL: maximum tokens per image, as its authors recommend; its file allows 16384

    def __post_init__(self) -> None:
        LargeOptions.__post_init__(self)
        self.refuse_pixel_choices()


class VlmEncoder(Backbone):
    """Visual tokens and language-model states of one vision-language model; no text is generated."""

    def __init__(self, identity: Identity, *, vision: Vision, **parts: Any) -> None:
        super().__init__(identity, prepare=vision.prepare, **parts)
        self._vision = vision

    def as_published(self) -> Encoder:
        """Raise: the model has no pooled vectors of its own, on which metrics such as CLIPScore are defined."""
        raise ConfigError(
            f"{self.name} has no pooled vectors of its own; choose a contrastive encoder such as clip-l14 for CLIPScore"
        )

    def _see(self, images: Sequence[Prepared]) -> Features:
        placement: Any = self._identity.placement
        tokens, layout = self._vision.visual_tokens(self.model, images, placement)
        return Features(pad_sequence(tokens, batch_first=True), patch_mask(layout), None, layout)

    def _read(self, texts: Sequence[str]) -> Features:
        batch = self._pack(texts)
        ids, attention = batch.ids.to(self.device), batch.attention.to(self.device).long()
        if not ids.shape[1]:  # only texts without tokens, and no start token either
            ids = attention = torch.zeros(len(ids), 1, dtype=torch.long, device=self.device)
        attention[:, 0] = 1  # a row of only padding would divide by zero
        states = self.model.language_model(input_ids=ids, attention_mask=attention, use_cache=False)
        return Features(unpack_tokens(states.last_hidden_state, batch), batch.mask, None, batch.layout)


_KINDS: Mapping[str, str] = {
    "llava": "LlavaForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "llava_qwen": "LlavaOnevisionForConditionalGeneration",  # in the format of the LLaVA-NeXT repository
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
}
_SQUARE_TOWERS = ("clip_vision_model", "siglip_vision_model")


def load_vlm(source: str, **keywords: Any) -> VlmEncoder:
    """Load a vision-language model from a folder or a hub name.

    On CUDA `auto` means bfloat16: states of large language models exceed the range of float16.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    identity, checkpoint, model, tokenizer = load_family(
        source,
        keywords,
        kind=lambda checkpoint: _KINDS[_kind(checkpoint)],
        options=VlmOptions,
        needs=(("tokenizer.json", "vocab.json", "tokenizer.model"),),
        half=torch.bfloat16,
        keywords=lambda checkpoint: _converted(checkpoint) if _kind(checkpoint) == "llava_qwen" else {},
    )
    model, options, backend = model.model, identity.options, tokenizer.backend_tokenizer
    compile_towers(options, model.language_model)
    vision = _vision(checkpoint, options, model.config)
    context = int(model.config.get_text_config().max_position_embeddings)
    pad = int(tokenizer.pad_token_id or 0)  # any token works, since padding is masked
    return VlmEncoder(
        identity.choosing(*vision.choices),
        model=model,
        tokenizer=backend,
        vision=vision,
        text_settings=TextSettings(context, *special_ids(backend), pad, options.long_text),
    )


def _kind(checkpoint: Checkpoint) -> str:
    config = checkpoint.read_json("config.json")
    original = "mm_vision_tower" in config and "LlavaQwenForCausalLM" in config.get("architectures", ())
    kind = "llava_qwen" if original else str(config.get("model_type"))
    if kind not in _KINDS:
        raise WeightsError(f"{checkpoint.source!r} should be one of {', '.join(_KINDS)}, got {kind!r}")
    return kind


def _vision(checkpoint: Checkpoint, options: Any, config: Any) -> Vision:
    """The vision side of a model: one square, tiles, or a grid in the image's aspect ratio."""
    vision, kind = config.vision_config, _kind(checkpoint)
    patch = int(vision.patch_size)
    stored = _ORIGINAL_PREPROCESSOR if kind == "llava_qwen" else preprocessor(checkpoint)
    if kind == "qwen2_5_vl":
        merge, size = int(vision.spatial_merge_size), stored.get("size") or {}
        least = int(stored.get("min_pixels") or size.get("shortest_edge") or 56 * 56)
        most = int(stored.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280)
        limit = options.max_patches * (patch * merge) ** 2
        steps = read_preprocessing({**stored, "do_resize": False, "do_center_crop": False})
        return DynamicVision(steps, patch, merge, int(vision.temporal_patch_size), least, min(most, limit))
    side = int(vision.image_size)
    if kind == "llava":
        if vision.model_type not in _SQUARE_TOWERS:
            raise ConfigError(f"the vision tower should be one of {', '.join(_SQUARE_TOWERS)}, got {vision.model_type}")
        pad = bool(stored.get("do_pad", False))
        return SquareVision(square_preprocessing(checkpoint, side), patch, side // patch, pad)
    steps = read_preprocessing({**stored, "size": {"width": side, "height": side}, "do_center_crop": False})
    if options.views == "overview":
        return SquareVision(steps, patch, side // patch, choices=("views:overview",))
    canvases = tuple((int(width), int(height)) for height, width in config.image_grid_pinpoints)
    most = int(str(config.vision_aspect_ratio).removeprefix("anyres_max_"))
    return TileVision(steps, patch, side, side // patch, canvases, most)


# LLaVA-OneVision and LLaVA-Critic in the format of the LLaVA-NeXT repository: it stores the language model's settings
# at the top level, the hub name of the vision tower, and tensors under different module names. The sizes of the
# vision tower are inferred from the tensors.

# Preprocessing of SigLIP so400m, the only vision tower that these models were published with.
_ORIGINAL_PREPROCESSOR: Mapping[str, Any] = {"resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_HEADS = 16
_TOWER = "vision_tower.vision_model."
# In order: the first matching prefix is replaced.
_NAMES = (
    ("model.vision_tower.vision_tower.vision_model.", _TOWER),
    ("model.mm_projector.0.", "multi_modal_projector.linear_1."),
    ("model.mm_projector.2.", "multi_modal_projector.linear_2."),
    ("model.image_newline", "image_newline"),
    ("model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("", ""),
)
# Settings of the language model; all others are of the vision tower, the projector, or the training.
_TEXT = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
    *("tie_word_embeddings", "use_sliding_window", "sliding_window", "max_window_layers"),
    *("bos_token_id", "eos_token_id"),
)


def _converted(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config` and `state_dict` for `from_pretrained`, converted from a folder in the original format."""
    state: dict[str, Tensor] = {}
    for key, tensor in read_tensors(checkpoint.weight_files()).items():
        old, new = next((old, new) for old, new in _NAMES if key.startswith(old))
        state[new + key.removeprefix(old)] = tensor
    config = checkpoint.read_json("config.json")
    try:
        canvases = [[int(height), int(width)] for width, height in config["image_grid_pinpoints"]]
        patches = state[f"{_TOWER}embeddings.patch_embedding.weight"]
        layers = {key.split(".")[4] for key in state if key.startswith(f"{_TOWER}encoder.layers.")}
        vision = {
            "model_type": "siglip_vision_model",
            "hidden_size": len(patches),
            "intermediate_size": len(state[f"{_TOWER}encoder.layers.0.mlp.fc1.bias"]),
            "num_hidden_layers": len(layers),
            "num_attention_heads": _HEADS,
            "image_size": min(map(min, canvases)),
            "patch_size": int(patches.shape[-1]),
            "vision_use_head": False,
        }
        whole = require("transformers", extra="hf").LlavaOnevisionConfig(
            text_config={"model_type": "qwen2", **{name: config[name] for name in _TEXT if name in config}},
            vision_config=vision,
            image_grid_pinpoints=canvases,
            vision_aspect_ratio=config["image_aspect_ratio"],
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"config.json of {checkpoint.source!r} is not supported ({error!r}); download it again"
        ) from None
    return {"config": whole, "state_dict": state}
