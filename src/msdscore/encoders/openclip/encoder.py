"""Models of the open_clip library: its names and tags, RemoteCLIP and LongCLIP files, BiomedCLIP, MobileCLIP."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.core.sphere import unit
from msdscore.core.transfer import sent
from msdscore.encoders.backbone import Backbone, Identity, States, compile_towers
from msdscore.encoders.base import Prepared
from msdscore.encoders.loading.checkpoints import find_settings
from msdscore.encoders.loading.tensors import read_tensors
from msdscore.encoders.loading.transformers import quiet
from msdscore.encoders.openclip.files import Plan, plan_model, read_preprocess
from msdscore.encoders.openclip.text import load_reader
from msdscore.encoders.options import SharedOptions, read_options
from msdscore.encoders.placement import place
from msdscore.encoders.text.longclip import merge_positions, stretch_positions
from msdscore.encoders.text.tokens import Reading, pack_texts, unpack_pooled, unpack_tokens
from msdscore.encoders.vision.preprocessing import Preprocessing, mask_of, patch_layout, stack_pixels
from msdscore.errors import ConfigError, WeightsError, require


@dataclass(frozen=True, slots=True)
class ProjectedPatches:
    """What an image tower gives: patches in the pooled space, and their grid on the canvas."""

    patches: Float[Tensor, "batch points dim"]
    pooled: Float[Tensor, "batch dim"]
    grid: tuple[int, int]  # rows, columns
    cell: tuple[float, float]  # width, height


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClipOptions(SharedOptions):
    """What a user can choose about an open_clip encoder.

    `model` and `file` name the architecture and the weights of a repository that holds no configuration;
    `context` is the number of text positions where it differs from the architecture's (LongCLIP: 248).
    """

    patch_norm: bool = False  # as for CLIP: the authors leave the final norm out
    model: str = ""
    file: str = ""
    context: int = 0


@dataclass(frozen=True, slots=True)
class OpenClipParts:
    """What a model consists of once it is loaded."""

    model: Any  # open_clip.CLIP or CustomTextCLIP
    backend: Any  # tokenizers.Tokenizer
    preprocessing: Preprocessing
    reading: Reading
    patch_norm: bool


class OpenClipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one open_clip model.

    Pooled vectors are what `encode_image` and `encode_text` give. Patches of open_clip's own towers are the last
    states through the projection; those of timm towers go through the tower's head each on its own.
    """

    def __init__(self, parts: OpenClipParts, identity: Identity) -> None:
        super().__init__(identity)
        self._parts = parts

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps by which pictures are made ready."""
        return self._parts.preprocessing

    def _see(self, images: Sequence[Prepared]) -> States:
        visual = self._parts.model.visual
        pixels = stack_pixels(images, self._parts.preprocessing, self.device)
        look = _timm_patches if hasattr(visual, "trunk") else _own_patches
        seen = look(visual, pixels.to(self._identity.placement.dtype), self._parts.patch_norm)
        layout = tuple(patch_layout(image.view, seen.grid, seen.cell) for image in images)
        return States(seen.patches, mask_of(layout), unit(seen.pooled), layout)

    def _read(self, texts: Sequence[str]) -> States:
        model = self._parts.model
        batch = pack_texts(texts, self._parts.backend, self._parts.reading)
        text = getattr(model, "text", model)
        pooled, states = _watch(text.transformer, lambda: model.encode_text(sent(batch.ids, self.device)))
        tokens = _project_text(text, unpack_tokens(getattr(states, "last_hidden_state", states), batch))
        return States(tokens, batch.mask, unpack_pooled(pooled, batch), batch.layout)


def _own_patches(visual: Any, pixels: Tensor, norm: bool) -> ProjectedPatches:
    """The view of open_clip's own vision transformer."""
    pooled, states = _watch(visual.transformer, lambda: visual(pixels))
    patches = states[:, 1:]  # the first is the class token
    if norm:
        patches = visual.ln_post(patches)
    if visual.proj is not None:
        patches = patches @ visual.proj
    height, width = visual.patch_size
    return ProjectedPatches(patches, pooled, visual.grid_size, (width, height))


def _timm_patches(visual: Any, pixels: Tensor, _norm: bool) -> ProjectedPatches:
    """The view of a timm tower, whose features are normed already."""
    trunk = visual.trunk
    features = trunk.forward_features(pixels)
    pooled = visual.head(trunk.forward_head(features))
    if features.ndim == 4:  # a map of channels: every place as a picture of one place
        _, channels, rows, columns = features.shape
        cell = (pixels.shape[3] / columns, pixels.shape[2] / rows)
        alone = features.permute(0, 2, 3, 1).reshape(-1, channels, 1, 1)
    else:  # a row of tokens: every token in the place of the class token too, whichever the head reads
        rows, columns = trunk.patch_embed.grid_size
        cell = trunk.patch_embed.patch_size[::-1]
        lead = int(trunk.num_prefix_tokens)
        alone = features[:, lead:].reshape(-1, 1, features.shape[-1]).repeat(1, lead + 1, 1)
    patches = visual.head(trunk.forward_head(alone))
    return ProjectedPatches(patches.reshape(len(pixels), rows * columns, -1), pooled, (rows, columns), cell)


def _project_text(text: Any, states: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points out"]:
    if hasattr(text, "proj"):  # a transformers tower
        return text.proj(states)
    states, projection = text.ln_final(states), text.text_projection
    if projection is None:
        return states
    return projection(states) if isinstance(projection, torch.nn.Module) else states @ projection


def _watch(module: Any, call: Callable[[], Tensor]) -> tuple[Tensor, Any]:
    """What a call returns, and what the module gave while it ran."""
    seen: list[Any] = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        returned = call()
    finally:
        handle.remove()
    return returned, seen[-1]


def load_openclip(
    source: str,
    *,
    name: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> OpenClipEncoder:
    """Load an open_clip model by architecture and tag or file, or from a folder or a hub name.

    Raises:
        ConfigError: a kind of model that has no patches or tokens to take.
        WeightsError: files are missing, damaged, or of another architecture.
    """
    chosen = read_options(OpenClipOptions, options)
    placement = place(device, dtype, half=torch.float16)
    plan = plan_model(source, name=name, revision=revision, model=chosen.model, file=chosen.file)
    model = _build(plan, chosen.context).to(device=placement.device, dtype=placement.dtype).eval()
    compile_towers(chosen, model.visual)
    text = {**plan.model["text_cfg"], **({"context_length": chosen.context} if chosen.context else {})}
    backend, reading = load_reader(text, plan.checkpoint, chosen.long_text)
    height, width = _pair(model.visual.image_size)
    steps = chosen.applied(read_preprocess(plan.preprocess, (width, height)))
    parts = OpenClipParts(model, backend, steps, reading, chosen.patch_norm)
    norm = (f"norm:{'yes' if chosen.patch_norm else 'no'}",)
    return OpenClipEncoder(parts, Identity(name, plan.label, placement, chosen, norm))


def _pair(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


def _build(plan: Plan, context: int) -> Any:
    open_clip = require("open_clip", extra="openclip")
    config = {**plan.model, "text_cfg": dict(plan.model["text_cfg"]), "vision_cfg": dict(plan.model["vision_cfg"])}
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    if "multimodal_cfg" in config or isinstance(config["vision_cfg"].get("layers"), list):
        raise ConfigError(f"{plan.checkpoint.source!r} is a CoCa or ResNet of open_clip; expected a ViT or timm tower")
    if context:
        config["text_cfg"]["context_length"] = context
    if "hf_model_name" in config["text_cfg"]:
        config["text_cfg"] |= _local_tower(config["text_cfg"], plan)
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    with quiet(require("transformers", extra="hf")):
        model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    _fill(model, plan, context)
    return model


def _local_tower(text: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The text tower's configuration from a folder of ours, so that open_clip does not ask the hub for it."""
    inside = plan.checkpoint.folder / Path(text["hf_model_name"])
    folder = inside if inside.is_dir() else find_settings(text["hf_model_name"]).folder
    return {"hf_model_name": str(folder), "hf_model_pretrained": False}


def _fill(model: Any, plan: Plan, context: int) -> None:
    factory = require("open_clip.factory", extra="openclip")
    tensors = read_tensors(plan.checkpoint.weight_files())
    state = merge_positions({key.removeprefix("module."): tensor for key, tensor in tensors.items()})
    state = factory.convert_state_dict(model, state)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = factory.convert_to_custom_text_state_dict(state)
    for key in ("positional_embedding", "text.positional_embedding"):
        if key in state and 0 < len(state[key]) < context:
            state[key] = stretch_positions(state[key])
    for key in ("logit_scale", "logit_bias"):  # a number, or a list of one
        if key in state and getattr(model, key) is not None:
            state[key] = state[key].reshape(getattr(model, key).shape)
    # Counted, not learned; older files of BERT towers hold them.
    state = {key: value for key, value in state.items() if not key.endswith("embeddings.position_ids")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"weights of {plan.checkpoint.source!r} do not fit their architecture ({reason})") from None
