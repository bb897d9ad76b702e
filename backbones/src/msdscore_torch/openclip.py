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
from PIL.Image import Resampling
from torch import Tensor

from msdscore.core.arrays import Float
from msdscore.core.embeddings import unit
from msdscore.encoders.base import Prepared
from msdscore.encoders.checkpoints import OPEN_CLIP, Checkpoint
from msdscore.encoders.options import Identity, SharedOptions, read_options
from msdscore.encoders.preprocessing import Preprocessing, patch_layout
from msdscore.encoders.tokens import TextSettings, join_windows
from msdscore.errors import ConfigError, WeightsError, require, unknown_name
from msdscore_torch.backbone import Backbone, compile_towers, place
from msdscore_torch.checkpoints import load_tokenizer, quiet
from msdscore_torch.contrastive import merge_positions, stretch_positions
from msdscore_torch.gpu.device import sent
from msdscore_torch.hub import find_checkpoint, find_file, find_settings
from msdscore_torch.tensors import Features, read_tensors
from msdscore_torch.tokenizers import CLIP_WORDS, SPACES, literal_backend, normalise_first, special_ids, unpack_tokens
from msdscore_torch.vision.device import patch_mask

_PUNCTUATION = r"""[!-/:-@\[-^`{-~]"""  # without the underscore, which becomes a space


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClipOptions(SharedOptions):
    """User options of an open_clip encoder.

    `model` and `file` name the architecture and the weights of a repository without a configuration;
    `context` is the number of text positions if it differs from the architecture's (LongCLIP: 248).
    """

    patch_norm: bool = False  # as for CLIP: the authors omit the final norm
    model: str = ""
    file: str = ""
    context: int = 0


class OpenClipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one open_clip model.

    Pooled vectors are those of `encode_image` and `encode_text`. Patches of open_clip's towers are the last
    states through the projection; those of timm towers are each passed through the tower's head.
    """

    def _see(self, images: Sequence[Prepared]) -> Features:
        visual, pixels = self.model.visual, self._pixels(images)
        if hasattr(visual, "trunk"):
            patches, pooled, grid, cell = timm_patches(visual, pixels)
        else:
            pooled, states = _watch(visual.transformer, lambda: visual(pixels))
            patches = states[:, 1:]  # the first is the class token
            if self._options.patch_norm:
                patches = visual.ln_post(patches)
            if visual.proj is not None:
                patches = patches @ visual.proj
            grid, cell = visual.grid_size, visual.patch_size[::-1]
        layout = tuple(patch_layout(image.view, grid, cell) for image in images)
        return Features(patches, patch_mask(layout), unit(pooled), layout)

    def _read(self, texts: Sequence[str]) -> Features:
        model = self.model
        batch = self._pack(texts)
        text = getattr(model, "text", model)
        pooled, states = _watch(text.transformer, lambda: model.encode_text(sent(batch.ids, self.device)))
        tokens = unpack_tokens(getattr(states, "last_hidden_state", states), batch)
        if hasattr(text, "proj"):  # a transformers tower
            tokens = text.proj(tokens)
        else:
            tokens, projection = text.ln_final(tokens), text.text_projection
            if projection is not None:
                tokens = projection(tokens) if isinstance(projection, torch.nn.Module) else tokens @ projection
        return Features(tokens, batch.mask, join_windows(pooled, batch.windows), batch.layout)


# Patches and pooled vectors in one space, rows and columns of the grid, width and height of a cell.
TimmPatches = tuple[Float[Tensor, "batch points dim"], Float[Tensor, "batch dim"], tuple[int, int], tuple[float, float]]


def timm_patches(visual: Any, pixels: Float[Tensor, "batch 3 height width"]) -> TimmPatches:
    """Patches and pooled vectors of a timm tower, whose features are already normalised."""
    trunk = visual.trunk
    features = trunk.forward_features(pixels)
    pooled = visual.head(trunk.forward_head(features))
    if features.ndim == 4:  # a feature map: every cell as an image of one cell
        _, channels, rows, columns = features.shape
        cell = (pixels.shape[3] / columns, pixels.shape[2] / rows)
        alone = features.permute(0, 2, 3, 1).reshape(-1, channels, 1, 1)
    else:  # a token sequence: every token also replaces the class token, whichever of them the head reads
        rows, columns = trunk.patch_embed.grid_size
        cell = trunk.patch_embed.patch_size[::-1]
        lead = int(trunk.num_prefix_tokens)
        alone = features[:, lead:].reshape(-1, 1, features.shape[-1]).repeat(1, lead + 1, 1)
    patches = visual.head(trunk.forward_head(alone))
    return patches.reshape(len(pixels), rows * columns, -1), pooled, (rows, columns), cell


def _watch(module: Any, call: Callable[[], Tensor]) -> tuple[Tensor, Any]:
    """The result of a call, and the output of the module during it."""
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
        ConfigError: a kind of model without patches or tokens, or an architecture without weights.
        UnknownNameError: no such architecture or tag.
        WeightsError: files are missing, damaged, or of another architecture.
    """
    chosen = read_options(OpenClipOptions, options)
    placement = place(device, dtype)
    checkpoint, label, architecture, preprocess = _find(source, name, revision, chosen)
    text = {**architecture["text_cfg"], **({"context_length": chosen.context} if chosen.context else {})}
    model = _build({**architecture, "text_cfg": dict(text)}, checkpoint, chosen.context)
    model = model.to(device=placement.device, dtype=placement.dtype).eval()
    compile_towers(chosen, model.visual)
    backend, text_settings = _reader(text, checkpoint, chosen.long_text)
    size = model.visual.image_size
    height, width = map(int, size if isinstance(size, (tuple, list)) else (size, size))
    return OpenClipEncoder(
        Identity(name, label, placement, chosen, (f"norm:{'yes' if chosen.patch_norm else 'no'}",)),
        model=model,
        tokenizer=backend,
        preprocessing=chosen.applied(_steps(preprocess, (width, height))),
        text_settings=text_settings,
    )


def _find(
    source: str, name: str, revision: str | None, options: OpenClipOptions
) -> tuple[Checkpoint, str, Mapping[str, Any], Mapping[str, Any]]:
    """The files of a source, their label in the signature, and open_clip's architecture and preprocessing."""
    library = require("open_clip", extra="openclip")

    def config_of(architecture: str) -> dict[str, Any]:
        config = library.get_model_config(architecture)
        if config is None:
            raise unknown_name("open_clip architecture", architecture, library.list_models())
        return deepcopy(config)

    model, file = options.model, options.file
    if model and file:
        checkpoint = find_file(source, file, revision=revision)
        return checkpoint, checkpoint.signed(name), config_of(model), {}
    if model or file:
        raise ConfigError(f"pass both model and file, or neither; got model={model!r}, file={file!r}")
    architecture, _, weights = source.partition("/")
    if Path(source).expanduser().is_dir() or architecture not in library.list_models():
        checkpoint = find_checkpoint(source, revision=revision, form=OPEN_CLIP)
        config = checkpoint.read_json(OPEN_CLIP.config)
        if not isinstance(config.get("model_cfg"), dict):
            raise WeightsError(f"{OPEN_CLIP.config} of {source!r} has no model_cfg; download it again")
        return checkpoint, checkpoint.signed(name), config["model_cfg"], config.get("preprocess_cfg", {})
    if not weights:
        raise ConfigError(f"{architecture!r} needs weights: name one as {architecture}/TAG or {architecture}/FILE")
    path = Path(weights).expanduser()
    if path.is_file():
        checkpoint = find_file(str(path.parent), path.name)
        return checkpoint, f"open_clip:{architecture}/{path.name}@{checkpoint.mark}", config_of(architecture), {}
    tags = library.list_pretrained_tags_by_model(architecture)
    if weights not in tags:
        raise unknown_name(f"weights of {architecture}, neither a file nor a tag:", weights, tags)
    tag = library.get_pretrained_cfg(architecture, weights)
    repository, _, file = str(tag.get("hf_hub", "")).rpartition("/")
    if not repository:
        raise WeightsError(f"{source} is not on the hub; download {tag.get('url')} and pass the file")
    checkpoint = find_file(repository, *([file] if file else OPEN_CLIP.weights), revision=revision)
    quick = {"quick_gelu": bool(tag.get("quick_gelu", False))}
    return checkpoint, f"{name}@{checkpoint.mark}", {**config_of(architecture), **quick}, tag


def _steps(config: Mapping[str, Any], size: tuple[int, int]) -> Preprocessing:
    """The preprocessing steps of an open_clip `preprocess_cfg`, for canvases of (width, height)."""
    constants = require("open_clip.constants", extra="openclip")
    mode = config.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or (mode == "shortest" and size[0] != size[1]):
        raise WeightsError(f"resize_mode must be 'shortest' (of a square) or 'squash', got {mode!r} for {size}")
    return Preprocessing(
        resize=size if mode == "squash" else size[0],
        crop=None if mode == "squash" else size,
        resample=Resampling[config.get("interpolation", "bicubic").upper()],
        mean=tuple(config.get("mean") or constants.OPENAI_DATASET_MEAN),
        std=tuple(config.get("std") or constants.OPENAI_DATASET_STD),
        even_centre=True,
    )


def _reader(config: Mapping[str, Any], checkpoint: Checkpoint, long_text: str) -> tuple[Any, TextSettings]:
    """The tokenizer of a `text_cfg` and the settings of its tower."""
    context = int(config.get("context_length", 77))
    extras = dict(config.get("tokenizer_kwargs") or {})
    clean = extras.pop("clean", None)
    if config.get("tokenizer_mode") or extras:
        raise ConfigError(f"unsupported open_clip tokenizer: {config.get('tokenizer_mode') or extras}")
    if not config.get("hf_tokenizer_name"):
        return _clip_reader(context, long_text)
    # Files in the folder take precedence: the model was published with them.
    has_files = any((checkpoint.folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    tokenizer = load_tokenizer(checkpoint if has_files else find_settings(config["hf_tokenizer_name"]))
    backend = literal_backend(tokenizer.backend_tokenizer)
    marks = [("_", " "), (_PUNCTUATION, "")] if clean == "canonicalize" else []
    lower = ["Lowercase"] if clean in ("lower", "canonicalize") else []
    normalise_first(backend, *marks, *lower, SPACES, "Strip")
    # A transformers tower masks its padding; open_clip's towers read it.
    full = not config.get("hf_model_name")
    return backend, TextSettings(context, *special_ids(backend), int(tokenizer.pad_token_id), long_text, full)


def _clip_reader(context: int, long_text: str) -> tuple[Any, TextSettings]:
    """CLIP's tokenizer: the vocabulary from open_clip, the spans from the tokenizers library."""
    library, models, cutters = (require(f"tokenizers{part}", extra="hf") for part in ("", ".models", ".pre_tokenizers"))
    table = require("open_clip.tokenizer", extra="openclip").SimpleTokenizer()
    model = models.BPE(
        vocab=table.encoder, merges=list(table.bpe_ranks), end_of_word_suffix="</w>", continuing_subword_prefix=""
    )
    backend = library.Tokenizer(model)
    normalise_first(backend, "NFC", SPACES, "Lowercase")
    words = cutters.Split(library.Regex(CLIP_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = cutters.Sequence([words, cutters.ByteLevel(add_prefix_space=False, use_regex=False)])
    return backend, TextSettings(context, (table.sot_token_id,), (table.eot_token_id,), 0, long_text, full=True)


def _build(config: dict[str, Any], checkpoint: Checkpoint, context: int) -> Any:
    """Build the model of an architecture and load its weights."""
    open_clip = require("open_clip", extra="openclip")
    text, vision = config["text_cfg"], dict(config["vision_cfg"])
    custom = config.pop("custom_text", False) or "hf_model_name" in text
    if "multimodal_cfg" in config or isinstance(vision.get("layers"), list):
        raise ConfigError(f"{checkpoint.source!r} is a CoCa or ResNet of open_clip; expected a ViT or timm tower")
    if "hf_model_name" in text:
        # From a temporary folder, so that open_clip does not request the tower's configuration from the hub.
        inside = checkpoint.folder / Path(text["hf_model_name"])
        folder = inside if inside.is_dir() else find_settings(text["hf_model_name"]).folder
        text |= {"hf_model_name": str(folder), "hf_model_pretrained": False}
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    with quiet(require("transformers", extra="hf")):
        model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**{**config, "vision_cfg": vision})
    factory = require("open_clip.factory", extra="openclip")
    tensors = read_tensors(checkpoint.weight_files())
    state = merge_positions({key.removeprefix("module."): tensor for key, tensor in tensors.items()})
    state = factory.convert_state_dict(model, state)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = factory.convert_to_custom_text_state_dict(state)
    for key in ("positional_embedding", "text.positional_embedding"):
        if key in state and 0 < len(state[key]) < context:
            state[key] = stretch_positions(state[key])
    for key in ("logit_scale", "logit_bias"):  # a scalar, or a list of one
        if key in state and getattr(model, key) is not None:
            state[key] = state[key].reshape(getattr(model, key).shape)
    # Computed buffers, not weights; older files of BERT towers contain them.
    state = {key: value for key, value in state.items() if not key.endswith("embeddings.position_ids")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"weights of {checkpoint.source!r} do not fit their architecture ({reason})") from None
    return model
