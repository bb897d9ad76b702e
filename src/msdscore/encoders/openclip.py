"""Models of the open_clip library: its names and tags, RemoteCLIP and LongCLIP files, BiomedCLIP, MobileCLIP.

A source is a built-in architecture with a tag or a file (`ViT-B-32/laion2b_s34b_b79k`, `ViT-L-14/./mine.pt`), a
folder or hub name with an `open_clip_config.json`, or, with the options `model` and `file`, a single file of a
folder or hub name."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Resampling
from torch import Tensor

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.backbone import Backbone, Identity, SharedOptions, compile_towers, place, read_options
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.clip import merge_positions, stretch_positions
from msdscore.encoders.loading.checkpoints import OPEN_CLIP, Checkpoint, find_checkpoint, find_file, find_settings
from msdscore.encoders.loading.tensors import read_tensors
from msdscore.encoders.loading.transformers import load_tokenizer, quiet
from msdscore.encoders.text.tokens import Reading, join_windows, literal_backend, special_ids, unpack_tokens
from msdscore.encoders.vision.preprocessing import Preprocessing, mask_of, patch_layout
from msdscore.errors import ConfigError, WeightsError, require, unknown_name

_RESAMPLE = {"bicubic": Resampling.BICUBIC, "bilinear": Resampling.BILINEAR}


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is needed to build one open_clip model; `label` is how the signature names it."""

    checkpoint: Checkpoint
    label: str
    model: Mapping[str, Any]  # an architecture as open_clip spells it
    preprocess: Mapping[str, Any]


def plan_model(source: str, *, name: str, revision: str | None, model: str, file: str) -> Plan:
    """Find the files of a source.

    Raises:
        ConfigError: an architecture needs weights, or a file an architecture.
        UnknownNameError: no such architecture or tag.
        WeightsError: files are missing and cannot be fetched.
    """
    architecture, _, weights = source.partition("/")
    if model and file:
        found = find_file(source, file, revision=revision)
        return Plan(found, found.signed(name), _architecture(model), {})
    if model or file:
        raise ConfigError(f"give both model and file, or none; got model={model!r}, file={file!r}")
    if Path(source).expanduser().is_dir() or architecture not in _open_clip().list_models():
        return _from_config(source, name, revision)
    if not weights:
        raise ConfigError(f"{architecture!r} needs weights: name one as {architecture}/TAG or {architecture}/FILE")
    return _from_architecture(architecture, weights, name, revision)


def _from_config(source: str, name: str, revision: str | None) -> Plan:
    checkpoint = find_checkpoint(source, revision=revision, form=OPEN_CLIP)
    config = checkpoint.read_json(OPEN_CLIP.config)
    if not isinstance(config.get("model_cfg"), dict):
        raise WeightsError(f"{OPEN_CLIP.config} of {source!r} has no model_cfg; fetch it again")
    return Plan(checkpoint, checkpoint.signed(name), config["model_cfg"], config.get("preprocess_cfg", {}))


def _from_architecture(architecture: str, weights: str, name: str, revision: str | None) -> Plan:
    path = Path(weights).expanduser()
    if path.is_file():
        found = find_file(str(path.parent), path.name)
        return Plan(found, f"open_clip:{architecture}/{path.name}@{found.mark}", _architecture(architecture), {})
    tags = _open_clip().list_pretrained_tags_by_model(architecture)
    if weights not in tags:
        raise unknown_name(f"weights of {architecture}, neither a file nor a tag:", weights, tags)
    tag = _open_clip().get_pretrained_cfg(architecture, weights)
    checkpoint = _of_tag(tag, f"{architecture}/{weights}", revision)
    model = {**_architecture(architecture), "quick_gelu": bool(tag.get("quick_gelu", False))}
    return Plan(checkpoint, f"{name}@{checkpoint.mark}", model, tag)


def _of_tag(tag: Mapping[str, Any], label: str, revision: str | None) -> Checkpoint:
    repository, _, file = str(tag.get("hf_hub", "")).rpartition("/")
    if not repository:
        raise WeightsError(f"open_clip has {label} outside the hub; download {tag.get('url')} and name the file")
    return find_file(repository, *([file] if file else OPEN_CLIP.weights), revision=revision)


def _architecture(name: str) -> dict[str, Any]:
    found = _open_clip().get_model_config(name)
    if found is None:
        raise unknown_name("open_clip architecture", name, _open_clip().list_models())
    return deepcopy(found)


def read_preprocess(config: Mapping[str, Any], size: tuple[int, int]) -> Preprocessing:
    """The steps of an open_clip `preprocess_cfg`, for canvases of (width, height).

    Raises:
        WeightsError: it asks for a way to resize that is not understood.
    """
    constants = require("open_clip.constants", extra="openclip")
    mode = config.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or (mode == "shortest" and size[0] != size[1]):
        raise WeightsError(f"resize_mode must be 'shortest' (of a square) or 'squash', got {mode!r} for {size}")
    return Preprocessing(
        resize=size if mode == "squash" else size[0],
        crop=None if mode == "squash" else size,
        resample=_RESAMPLE[config.get("interpolation", "bicubic")],
        mean=tuple(config.get("mean") or constants.OPENAI_DATASET_MEAN),
        std=tuple(config.get("std") or constants.OPENAI_DATASET_STD),
        even_centre=True,
    )


def _open_clip() -> Any:
    return require("open_clip", extra="openclip")


# How CLIP cuts a text into words before pairs of bytes are merged.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PUNCTUATION = r"""[!-/:-@\[-^`{-~]"""  # without the underscore, which becomes a space


def load_reader(config: Mapping[str, Any], checkpoint: Checkpoint, long_text: str) -> tuple[Any, Reading]:
    """The tokenizer of a `text_cfg` and how its tower reads.

    Raises:
        ConfigError: a kind of tokenizer that is not understood.
        WeightsError: its files are missing and cannot be fetched.
    """
    context = int(config.get("context_length", 77))
    extras = dict(config.get("tokenizer_kwargs") or {})
    clean = extras.pop("clean", None)
    if config.get("tokenizer_mode") or extras:
        raise ConfigError(f"this open_clip tokenizer is not understood: {config.get('tokenizer_mode') or extras}")
    if not config.get("hf_tokenizer_name"):
        return _simple(context, long_text)
    # The files in the folder come first: that is what the model was published with.
    own = any((checkpoint.folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    tokenizer = load_tokenizer(checkpoint if own else find_settings(config["hf_tokenizer_name"]))
    backend = literal_backend(tokenizer.backend_tokenizer)
    _clean(backend, clean or "whitespace")
    prefix, suffix = special_ids(backend)
    # A transformers tower masks its padding; open_clip's own ones read it.
    full = not config.get("hf_model_name")
    return backend, Reading(context, prefix, suffix, int(tokenizer.pad_token_id), long_text, full)


def _simple(context: int, long_text: str) -> tuple[Any, Reading]:
    """CLIP's own tokenizer: the table comes with open_clip, the spans from the tokenizers library."""
    tokenizers = require("tokenizers", extra="hf")
    normalizers, pre_tokenizers = (
        require(f"tokenizers.{part}", extra="hf") for part in ("normalizers", "pre_tokenizers")
    )
    table = require("open_clip.tokenizer", extra="openclip").SimpleTokenizer()
    model = require("tokenizers.models", extra="hf").BPE(
        vocab=table.encoder, merges=list(table.bpe_ranks), end_of_word_suffix="</w>", continuing_subword_prefix=""
    )
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return backend, Reading(context, (table.sot_token_id,), (table.eot_token_id,), 0, long_text, full=True)


def _clean(backend: Any, kind: str) -> None:
    """Prepare texts as the model's training did; inside the tokenizer, so that spans stay true."""
    normalizers = require("tokenizers.normalizers", extra="hf")
    regex = require("tokenizers", extra="hf").Regex
    steps = [normalizers.Replace(regex(r"\s+"), " "), normalizers.Strip()]
    if kind in ("lower", "canonicalize"):
        steps.insert(0, normalizers.Lowercase())
    if kind == "canonicalize":
        steps[:0] = [normalizers.Replace("_", " "), normalizers.Replace(regex(_PUNCTUATION), "")]
    own = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([*steps, *own])


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


class OpenClipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one open_clip model.

    Pooled vectors are what `encode_image` and `encode_text` give. Patches of open_clip's own towers are the last
    states through the projection; those of timm towers go through the tower's head each on its own.
    """

    def __init__(self, identity: Identity, *, patch_norm: bool, **parts: Any) -> None:
        super().__init__(identity, **parts)
        self._patch_norm = patch_norm

    def _see(self, images: Sequence[Prepared]) -> Features:
        visual = self._model.visual
        look = timm_patches if hasattr(visual, "trunk") else _own_patches
        seen = look(visual, self._pixels(images), self._patch_norm)
        layout = tuple(patch_layout(image.view, seen.grid, seen.cell) for image in images)
        return Features(seen.patches, mask_of(layout), unit(seen.pooled), layout)

    def _read(self, texts: Sequence[str]) -> Features:
        model = self._model
        batch = self._pack(texts)
        text = getattr(model, "text", model)
        pooled, states = _watch(text.transformer, lambda: model.encode_text(sent(batch.ids, self.device)))
        tokens = _project_text(text, unpack_tokens(getattr(states, "last_hidden_state", states), batch))
        return Features(tokens, batch.mask, join_windows(pooled, batch.windows), batch.layout)


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


def timm_patches(visual: Any, pixels: Tensor, _norm: bool) -> ProjectedPatches:
    """The view of a timm tower, whose features are normed already."""
    trunk = visual.trunk
    features = trunk.forward_features(pixels)
    pooled = visual.head(trunk.forward_head(features))
    if features.ndim == 4:  # a map of channels: every place as an image of one place
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
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
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
    size = model.visual.image_size
    height, width = map(int, size if isinstance(size, (tuple, list)) else (size, size))
    steps = chosen.applied(read_preprocess(plan.preprocess, (width, height)))
    norm = (f"norm:{'yes' if chosen.patch_norm else 'no'}",)
    return OpenClipEncoder(
        Identity(name, plan.label, placement, chosen, norm),
        model=model,
        tokenizer=backend,
        preprocessing=steps,
        reading=reading,
        patch_norm=chosen.patch_norm,
    )


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
