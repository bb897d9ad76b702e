"""Large vision-language models through transformers: LLaVA-1.5, LLaVA-OneVision, LLaVA-Critic, Qwen2.5-VL.

Patches are the visual tokens after the projector; tokens are the last states of the language model, which reads
the caption alone. The model has no pooled vectors, so pooling is always the mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from msdscore.encoders.backbone import Backbone, Identity, States, compile_towers
from msdscore.encoders.base import Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint
from msdscore.encoders.loading.transformers import load_placed, load_tokenizer, preprocessor, square_preprocessing
from msdscore.encoders.options import LargeOptions, read_options, require_choice
from msdscore.encoders.placement import Placement, place
from msdscore.encoders.text.tokens import Reading, literal_backend, pack_texts, special_ids, unpack_tokens
from msdscore.encoders.vision.preprocessing import mask_of, read_preprocessing
from msdscore.encoders.vlm.llava_original import PREPROCESSOR, converted, is_original
from msdscore.encoders.vlm.vision import DynamicVision, SquareVision, TileVision, Vision
from msdscore.errors import ConfigError, WeightsError

_NEEDS = (("tokenizer.json", "vocab.json", "tokenizer.model"),)
_SQUARE_TOWERS = ("clip_vision_model", "siglip_vision_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmOptions(LargeOptions):
    """What a user can choose about a vision-language model.

    `views` (LLaVA-OneVision) takes the tiles of the picture's own resolution, or the overview alone.
    """

    pool: str = "mean"
    views: str = "tiles"
    max_patches: int = 1280  # Qwen2.5-VL: tokens of a picture; what its authors advise, its file allows 16384

    def __post_init__(self) -> None:
        LargeOptions.__post_init__(self)
        self.refuse_pixel_choices()
        require_choice("views", self.views, ("tiles", "overview"))
        if self.pool != "mean":
            raise ConfigError(f"a vision-language model has no pooled vectors: pool must be 'mean', got {self.pool!r}")


@dataclass(frozen=True, slots=True)
class VlmParts:
    """What a checkpoint consists of once it is loaded."""

    model: Any  # the model inside ...ForConditionalGeneration: no words are generated
    backend: Any  # tokenizers.Tokenizer
    vision: Vision
    reading: Reading


class VlmEncoder(Backbone):
    """Visual tokens and language-model states of one vision-language model."""

    def __init__(self, parts: VlmParts, identity: Identity) -> None:
        super().__init__(identity, prepare=parts.vision.prepare)
        self._parts = parts

    def _see(self, images: Sequence[Prepared]) -> States:
        placement = self._identity.placement
        tokens, layout = self._parts.vision.look(self._parts.model, images, placement.device, placement.dtype)
        return States(pad_sequence(tokens, batch_first=True), mask_of(layout), None, layout)

    def _read(self, texts: Sequence[str]) -> States:
        batch = pack_texts(texts, self._parts.backend, self._parts.reading)
        ids, attention = batch.ids.to(self.device), batch.attention.to(self.device).long()
        if not ids.shape[1]:  # nothing but texts without tokens, and no start token either
            ids = attention = torch.zeros(len(ids), 1, dtype=torch.long, device=self.device)
        attention[:, 0] = 1  # a row of padding alone would divide by zero
        states = self._parts.model.language_model(input_ids=ids, attention_mask=attention, use_cache=False)
        return States(unpack_tokens(states.last_hidden_state, batch), batch.mask, None, batch.layout)


def load_vlm(
    source: str,
    *,
    name: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> VlmEncoder:
    """Load a vision-language model from a folder or a hub name.

    On CUDA `auto` means bfloat16: states of large language models leave the range of float16.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(VlmOptions, options)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    kind = _kind(checkpoint)
    model, placement = _load(kind, checkpoint, place(device, dtype, half=torch.bfloat16), chosen)
    compile_towers(chosen, model.language_model)
    tokenizer = load_tokenizer(checkpoint)
    parts = VlmParts(
        model=model,
        backend=literal_backend(tokenizer),
        vision=_WAYS_OF_SEEING[kind](checkpoint, model, chosen),
        reading=_reading(model, tokenizer, chosen.long_text),
    )
    choices = (*parts.vision.choices, *chosen.bits_choice)
    return VlmEncoder(parts, Identity(name, checkpoint.signed(name), placement, chosen, choices))


def _kind(checkpoint: Checkpoint) -> str:
    config = checkpoint.read_json("config.json")
    kind = "llava_onevision" if is_original(config) else str(config.get("model_type"))
    if kind not in _KINDS:
        raise WeightsError(f"{checkpoint.source!r} should be one of {', '.join(_KINDS)}, got {kind!r}")
    return kind


def _load(kind: str, checkpoint: Checkpoint, placement: Placement, options: VlmOptions) -> tuple[Any, Placement]:
    given = converted(checkpoint) if is_original(checkpoint.read_json("config.json")) else {}
    model, placed = load_placed(_KINDS[kind], checkpoint, placement, options, **given)
    return model.model, placed


def _reading(model: Any, tokenizer: Any, long_text: str) -> Reading:
    prefix, suffix = special_ids(tokenizer.backend_tokenizer)
    context = int(model.config.get_text_config().max_position_embeddings)
    pad = tokenizer.pad_token_id or 0  # masked, so that any token does
    return Reading(context, prefix, suffix, int(pad), long_text)


def _square(checkpoint: Checkpoint, model: Any, _options: VlmOptions) -> Vision:
    vision = model.config.vision_config
    if vision.model_type not in _SQUARE_TOWERS:
        raise ConfigError(f"the vision tower should be one of {', '.join(_SQUARE_TOWERS)}, got {vision.model_type}")
    side, patch = int(vision.image_size), int(vision.patch_size)
    pad = bool(preprocessor(checkpoint).get("do_pad", False))
    return SquareVision(square_preprocessing(checkpoint, side), patch, side // patch, pad)


def _tiles(checkpoint: Checkpoint, model: Any, options: VlmOptions) -> Vision:
    vision = model.config.vision_config
    size, patch = int(vision.image_size), int(vision.patch_size)
    config = PREPROCESSOR if is_original(checkpoint.read_json("config.json")) else preprocessor(checkpoint)
    steps = read_preprocessing({**config, "size": {"width": size, "height": size}, "do_center_crop": False})
    if options.views == "overview":
        return SquareVision(steps, patch, size // patch, choices=("views:overview",))
    canvases = tuple((int(width), int(height)) for height, width in model.config.image_grid_pinpoints)
    most = int(str(model.config.vision_aspect_ratio).removeprefix("anyres_max_"))
    return TileVision(steps, patch, size // patch, canvases, most)


def _dynamic(checkpoint: Checkpoint, model: Any, options: VlmOptions) -> Vision:
    config = preprocessor(checkpoint)
    vision = model.config.vision_config
    patch, merge = int(vision.patch_size), int(vision.spatial_merge_size)
    size: Mapping[str, Any] = config.get("size") or {}
    least = int(config.get("min_pixels") or size.get("shortest_edge") or 56 * 56)
    most = int(config.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280)
    limit = options.max_patches * (patch * merge) ** 2
    steps = read_preprocessing({**config, "do_resize": False, "do_center_crop": False})
    return DynamicVision(steps, patch, merge, int(vision.temporal_patch_size), least, min(most, limit))


_KINDS: Mapping[str, str] = {
    "llava": "LlavaForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
}
_WAYS_OF_SEEING: Mapping[str, Callable[[Checkpoint, Any, VlmOptions], Vision]] = {
    "llava": _square,
    "llava_onevision": _tiles,
    "qwen2_5_vl": _dynamic,
}
