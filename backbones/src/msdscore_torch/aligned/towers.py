"""Frozen backbones as towers: images or texts in, raw local features of one or two paths out.

This module has maps of any timm model and hidden states of any transformers checkpoint.

Tower settings are frozen dataclasses, read from plain TOML or JSON values with every key and type checked.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import interpolate

from msdscore.core.arrays import Bool, Float
from msdscore.encoders.base import Prepared, TokenLayout
from msdscore.encoders.checkpoints import Checkpoint, locate
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore.encoders.tokens import TextSettings, join_windows, pack
from msdscore.errors import ConfigError, MSDScoreError, WeightsError, require, unknown_name
from msdscore.text.words import content_tokens
from msdscore_torch.backbone import Placement, as_tensors, place
from msdscore_torch.checkpoints import load_model, load_tokenizer, preprocessor, read_preprocessing
from msdscore_torch.gpu.device import sent
from msdscore_torch.hub import find_checkpoint, verify_files
from msdscore_torch.tensors import Features, read_tensors
from msdscore_torch.tokenizers import literal_backend, special_ids, tokenise_all, unpack_tokens
from msdscore_torch.vision.device import patch_mask, stack_pixels

IMAGE_KINDS = ("encoder", "transformers", "timm", "mini")
TEXT_KINDS = ("encoder", "transformers", "embeddings", "mini")
_TABLES = ("embed_tokens.weight", "wte.weight")  # names of token embeddings in language models
Level = int | str
LevelMap = Callable[[Level], Float[Tensor, "batch dim rows columns"]]
_LONGEST = 100_000  # tokenizers without a limit report an absurd one
_DEFAULT_CONTEXT = 512
Spec = TypeVar("Spec")
Item = TypeVar("Item", contravariant=True)


def read_spec(kind: type[Spec], values: Any, *, where: str = "") -> Spec:
    """Build a spec from a mapping; lists become tuples, nested mappings nested specs.

    >>> from msdscore_torch.aligned.heads import HeadSpec
    >>> read_spec(HeadSpec, {"kind": "mlp", "dropout": 0}).kind
    'mlp'
    >>> read_spec(HeadSpec, {"dropout": "much"}, where="heads.image")
    Traceback (most recent call last):
    msdscore.errors.ConfigError: heads.image.dropout should be float, got 'much'

    Raises:
        UnknownNameError: a key that the spec does not have.
        ConfigError: a value that is invalid or of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or kind.__name__} should be a table of settings, got {values!r}")
    hints = get_type_hints(kind)
    dot = f"{where}." if where else ""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise unknown_name("setting", f"{dot}{key}", [f"{dot}{name}" for name in known])
    settings = {key: read_value(hints[key], value, where=f"{dot}{key}") for key, value in values.items()}
    try:
        return kind(**settings)
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise ConfigError(f"{where or kind.__name__} lacks a setting: {missing}") from error
    except MSDScoreError as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from error


def read_value(hint: Any, value: Any, *, where: str) -> Any:
    """Convert a value to the type of a spec's field.

    Raises:
        ConfigError: it has another type.
    """
    if is_dataclass(hint) and isinstance(hint, type):
        return read_spec(hint, value, where=where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} should be a list, got {value!r}")
        return tuple(read_value(get_args(hint)[0], item, where=where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = get_args(hint) or (hint,)
    if type(value) not in allowed:
        names = " or ".join(choice.__name__ for choice in allowed)
        raise ConfigError(f"{where} should be {names}, got {value!r}")
    return value


def plain(spec: Any) -> dict[str, Any]:
    """The spec as plain values; tuples become lists."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTowerSpec:
    """A frozen image backbone and the features taken from it.

    `source` is an encoder's name or folder (`encoder`), a checkpoint (`transformers`), an architecture (`timm`) or
    `lite2` (`mini`: the network of the shipped encoder, always with its three maps);
    `package:NAME/path` points into an installed package. `levels` are layer indices, names such as `stride16`, or
    `final`; several are resized to `grid` cells per side and concatenated.
    """

    kind: str = "encoder"
    source: str
    revision: str = ""
    weights: str = ""  # timm: a file of tensors; empty: the hub's. mini: a file of tuned convolutions, if there is one
    branches: tuple[str, ...] = ()  # mini: several such files, a network for each; their features are concatenated
    sha256: str = ""  # of the weights; checked if set
    levels: tuple[Level, ...] = (-1,)
    grid: int = 0  # 0: the grid of the first level
    global_levels: tuple[Level, ...] = ()  # of a global path; empty: the same features
    global_grid: int = 0
    size: int = 0  # timm, mini: side of the square that images are resized to; 0: the model's
    mean: tuple[float, ...] = ()  # timm: override the model's statistics
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check(self, IMAGE_KINDS, mini="lite2")
        if self.kind == "encoder" and (self.grid or self.global_grid or self.levels != (-1,) or self.global_levels):
            raise ConfigError("an image tower of kind 'encoder' has no levels and no grid; use transformers or timm")
        if self.branches and (self.kind != "mini" or self.weights):
            raise ConfigError("branches need an image tower of kind 'mini' without weights")
        changed = self.levels != (-1,) or self.global_levels or self.global_grid or self.mean or self.std
        if self.kind == "mini" and changed:
            raise ConfigError("an image tower of kind 'mini' always has its three maps; set only grid and size")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTowerSpec:
    """A frozen text backbone; `levels` are indices of hidden states (0: the embeddings), concatenated.

    With kind `embeddings`, tokens are the input embeddings of a language model, which itself is not loaded.
    """

    kind: str = "encoder"
    source: str
    revision: str = ""
    sha256: str = ""
    levels: tuple[Level, ...] = (-1,)
    global_levels: tuple[Level, ...] = ()
    context: int = 0  # tokens read at once; 0: the checkpoint's value
    words: str = "all"  # of the local path; or "content"

    def __post_init__(self) -> None:
        _check(self, TEXT_KINDS, mini="minilm")
        if self.words not in ("all", "content"):
            raise ConfigError(f"words must be 'all' or 'content', got {self.words!r}")
        if not all(isinstance(level, int) for level in (*self.levels, *self.global_levels)):
            raise ConfigError(f"levels of a text tower must be indices of hidden states, got {self.levels}")
        if self.kind in ("encoder", "embeddings") and (self.levels != (-1,) or self.global_levels):
            raise ConfigError(f"a text tower of kind {self.kind!r} has no levels; use transformers")


def _check(spec: ImageTowerSpec | TextTowerSpec, kinds: tuple[str, ...], *, mini: str) -> None:
    if spec.kind not in kinds:
        raise unknown_name("tower", spec.kind, kinds)
    if not spec.source:
        raise ConfigError("a tower needs a source: an encoder's name, a folder, a hub name or an architecture")
    if not spec.levels:
        raise ConfigError("a tower needs at least one level")
    if spec.kind == "mini" and spec.source != mini:
        raise unknown_name("source of a tower of kind 'mini':", spec.source, (mini,))


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOptions:
    """Device and dtype of towers, and the handling of long captions."""

    device: str = "cpu"
    dtype: str = "auto"
    whole: bool = False  # whether a global path is requested
    long_text: str = "window"


class Tower(Protocol[Item]):
    """A frozen backbone on its device, from the files of its weights, if it has any."""

    files: tuple[Path, ...]
    device: torch.device

    def features(self, items: Sequence[Item], /) -> Features:
        """Raw features of images or captions, without gradient history."""


class ImageTower(Tower[Prepared], Protocol):
    """A frozen image backbone."""

    def prepare(self, image: Image.Image) -> Prepared:
        """Preprocess a decoded image; safe to call from several threads at once."""


TextTower: TypeAlias = Tower[str]


def keep_content(features: Features, texts: Sequence[str]) -> Features:
    """The same features with only the content words on the local path, moved to the front of each caption."""
    layouts = [layout for layout in features.layout if isinstance(layout, TokenLayout)]
    chosen = [content_tokens(text, layout.spans) for text, layout in zip(texts, layouts, strict=True)]
    fewer = tuple(
        replace(
            layout,
            spans=tuple(layout.spans[number] for number in numbers),
            omitted=len(layout.spans) - len(numbers),
        )
        for layout, numbers in zip(layouts, chosen, strict=True)
    )
    points, width = features.points, max(map(len, chosen), default=0)
    rows = [[*numbers, *[0] * (width - len(numbers))] for numbers in chosen]
    index = sent(torch.tensor(rows, dtype=torch.int64).reshape(len(chosen), width), points.device)
    sizes = sent(torch.tensor([[len(numbers)] for numbers in chosen]), points.device)
    return replace(
        features,
        points=points.gather(1, index.unsqueeze(-1).expand(-1, -1, points.shape[2])),
        mask=torch.arange(width, device=points.device) < sizes,
        layout=fewer,
        filled=tuple(map(bool, chosen)),
    )


def frozen(model: Any, placement: Placement) -> Any:
    """Move a model to its device, in evaluation mode and without gradients."""
    return model.to(device=placement.device, dtype=placement.dtype).eval().requires_grad_(False)


def take_level(states: Sequence[Tensor], level: Level) -> Tensor:
    """One of the hidden states by index, from the end if negative."""
    if not isinstance(level, int) or not -len(states) <= level < len(states):
        raise ConfigError(f"level {level!r} does not exist; expected a number under {len(states)} or -1, -2, …")
    return states[level]


def take_levels(
    states: Sequence[Float[Tensor, "windows positions _"]], levels: Sequence[Level]
) -> Float[Tensor, "windows positions dim"]:
    """The concatenated hidden states of several levels."""
    return torch.cat([take_level(states, level) for level in levels], dim=-1)


def mean_state(
    states: Float[Tensor, "windows positions dim"], mask: Bool[Tensor, "windows positions"]
) -> Float[Tensor, "windows dim"]:
    """The mean of the states of real positions, including special tokens."""
    real = mask.unsqueeze(-1)
    return (states.float() * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)


def join_levels(maps: Sequence[Float[Tensor, "batch _ _ _"]], grid: int) -> Float[Tensor, "batch dim rows columns"]:
    """Concatenate maps of several levels on one grid; `grid` 0 uses the first level's."""
    size = (grid, grid) if grid else tuple(maps[0].shape[-2:])
    # Antialiasing averages if the grid gets coarser, and does nothing if it gets finer.
    resized = [
        item.float()
        if tuple(item.shape[-2:]) == size
        else interpolate(item.float(), size=size, mode="bilinear", antialias=True)
        for item in maps
    ]
    return torch.cat(resized, dim=1)


def all_points(features: Float[Tensor, "batch dim rows columns"]) -> Features:
    """The cells of a map as points in row-major order, all of them real."""
    points = features.flatten(2).transpose(1, 2)
    return Features(points, torch.ones(points.shape[:2], dtype=torch.bool, device=points.device))


class MapImages:
    """A frozen image network whose levels are maps of features: of a timm model or a transformers checkpoint."""

    def __init__(self, spec: ImageTowerSpec, options: TowerOptions, *, base: Path | None = None) -> None:
        self._spec, self._whole = spec, options.whole
        self._place = place(options.device, options.dtype)
        self.device = self._place.device
        if spec.kind == "timm":
            self.files, self.preprocessing, model, self._maps = _open_timm(spec, options, base)
        else:
            checkpoint, model = _open(spec, base)
            self.files, self.preprocessing = checkpoint.weight_files(), read_preprocessing(preprocessor(checkpoint))
            model, self._maps = getattr(model, "vision_model", model), _state_maps
        self._model = frozen(model, self._place)
        self.prepare = partial(prepare_image, steps=self.preprocessing)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """The requested levels of every cell."""
        pixels, spec = stack_pixels(images, self.preprocessing, self.device), self._spec
        level_map = self._maps(self._model, pixels.to(self._place.dtype))
        local = join_levels([level_map(level) for level in spec.levels], spec.grid)
        rows, columns = int(local.shape[2]), int(local.shape[3])
        layout = tuple(
            patch_layout(image.view, (rows, columns), (image.view.canvas[0] / columns, image.view.canvas[1] / rows))
            for image in images
        )
        whole = None
        if self._whole:
            global_levels = spec.global_levels  # if empty, those of the local path
            levels, grid = global_levels or spec.levels, spec.global_grid or (0 if global_levels else spec.grid)
            whole = all_points(join_levels([level_map(level) for level in levels], grid))
        return Features(all_points(local).points, patch_mask(layout).to(self.device), layout=layout, whole=whole)


def _open_timm(
    spec: ImageTowerSpec, options: TowerOptions, base: Path | None
) -> tuple[tuple[Path, ...], Preprocessing, Any, Callable[[Any, Tensor], LevelMap]]:
    """Maps at chosen strides (`stride16`), blocks (numbers) or the `final` features of a timm model.

    Return its files, preprocessing and network, and a function that returns the map of any level after one forward
    pass. Images are squashed to a square, so that nothing is cropped.
    """
    timm = require("timm", extra="train", of="msdscore-lab")
    if not timm.is_model(spec.source):
        near = timm.list_models(f"*{spec.source[:12]}*")[:12] or timm.list_models("vit_base*")[:6]
        raise unknown_name("timm model", spec.source, near)
    config = timm.get_pretrained_cfg(spec.source, allow_unregistered=True).to_dict()
    side = spec.size or int(config["input_size"][-1])
    try:
        # Transformers must know the size of their grid; convolutional models reject the argument.
        model = timm.create_model(spec.source, pretrained=False, img_size=side)
    except TypeError:
        model = timm.create_model(spec.source, pretrained=False)
    config, source = model.pretrained_cfg, spec.weights or spec.source
    if spec.weights:
        files: tuple[Path, ...] = (Path(locate(spec.weights, base=base)).expanduser(),)
        if not files[0].is_file():
            raise WeightsError(f"weight file {spec.weights!r} does not exist; pass a .safetensors or .pth file")
    elif config.get("hf_hub_id"):
        files = find_checkpoint(str(config["hf_hub_id"]), revision=spec.revision or None).weight_files()
    else:
        raise WeightsError(f"timm has no weights of {spec.source!r}; set image.weights to a file")
    verify_files(files, spec.sha256, source=source)
    tensors, wanted = read_tensors(files), model.state_dict()
    # By name, or by order and shape if the names differ.
    pairs = tensors.items() if set(wanted) <= set(tensors) else zip(wanted, tensors.values(), strict=False)
    chosen = {name: tensor for name, tensor in pairs if name in wanted and tensor.shape == wanted[name].shape}
    if len(chosen) != len(wanted):
        raise WeightsError(f"weights of {source!r} do not fit the model, neither by name nor by order and shape")
    model.load_state_dict(chosen)
    indices = _indices(model, (*spec.levels, *(spec.global_levels if options.whole else ())))
    steps = Preprocessing(
        resize=(side, side),
        crop=None,
        resample=getattr(Image.Resampling, str(config.get("interpolation")).upper(), Image.Resampling.BICUBIC),
        mean=spec.mean or tuple(config["mean"]),
        std=spec.std or tuple(config["std"]),
    )
    return files, steps, model, partial(_timm_maps, indices)


def _timm_maps(indices: Mapping[Level, int], model: Any, pixels: Tensor) -> LevelMap:
    """`final` is the input of the classifier before pooling, as a map, whatever layout the model has."""
    numbers = sorted(set(indices.values()))
    if numbers:
        final, between = model.forward_intermediates(pixels, indices=numbers, output_fmt="NCHW")
    else:
        final, between = model.forward_features(pixels), []
    if final.dim() == 3:
        patches = final[:, int(getattr(model, "num_prefix_tokens", 0)) :]
        edge = round(patches.shape[1] ** 0.5)
        final = patches.transpose(1, 2).unflatten(2, (edge, edge))
    elif final.shape[1] != model.num_features and final.shape[-1] == model.num_features:
        final = final.permute(0, 3, 1, 2)  # some models have channels last, recognised by their feature width
    by_number = dict(zip(numbers, between, strict=True))
    return {**{level: by_number[number] for level, number in indices.items()}, "final": final}.__getitem__


def _indices(model: Any, levels: Sequence[Level]) -> dict[Level, int]:
    """The index of every level among the model's feature maps; `final` is not one of them."""
    maps = [dict(item) for item in model.feature_info]
    numbers: dict[Level, int] = {}
    for level in levels:
        if level == "final":
            continue
        if isinstance(level, int):
            fits = [level % len(maps)] if -len(maps) <= level < len(maps) else []
        else:
            fits = [number for number, item in enumerate(maps) if level == f"stride{item['reduction']}"]
        if not fits:
            strides = sorted({f"stride{item['reduction']}" for item in maps})
            raise ConfigError(f"level {level!r} does not exist; expected final, {', '.join(strides)} or a number")
        numbers[level] = fits[-1]
    return numbers


def _state_maps(model: Any, pixels: Tensor) -> LevelMap:
    """Patches of hidden states as maps; special tokens precede them."""
    states = model(pixel_values=pixels, output_hidden_states=True).hidden_states
    kind, patch = model.config.model_type, getattr(model.config, "patch_size", None)
    if not isinstance(patch, int):
        raise WeightsError(f"a tower of {kind!r} has no square patches; use a timm model instead")
    rows, columns = pixels.shape[-2] // patch, pixels.shape[-1] // patch
    if any(state.dim() != 3 or state.shape[1] < rows * columns for state in states):
        raise WeightsError(f"a tower of {kind!r} does not return a patch sequence; use a timm model instead")
    patches = [state[:, state.shape[1] - rows * columns :] for state in states]
    return partial(take_level, [part.transpose(1, 2).unflatten(2, (rows, columns)) for part in patches])


class TransformersTexts:
    """Hidden states of any text encoder for the caption's tokens; long captions are read in windows."""

    def __init__(self, spec: TextTowerSpec, options: TowerOptions, *, base: Path | None = None) -> None:
        checkpoint, model = _open(spec, base)
        self.files: tuple[Path, ...] = checkpoint.weight_files()
        self._spec, self._whole = spec, options.whole
        self._place = place(options.device, options.dtype)
        self.device = self._place.device
        model = model.get_encoder() if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else model
        self._model = frozen(getattr(model, "text_model", model), self._place)
        tokenizer = load_tokenizer(checkpoint)
        self._backend = literal_backend(tokenizer.backend_tokenizer)
        prefix, suffix = special_ids(self._backend)
        pad = (suffix or prefix or (0,))[-1] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        context = spec.context or _context(self._model, tokenizer)
        self._text_settings = TextSettings(context, prefix, suffix, pad, options.long_text)

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Features:
        """The requested levels of every token."""
        batch = as_tensors(pack(tokenise_all(self._backend, texts), self._text_settings))
        ids, seen = batch.ids.to(self.device), batch.attention.to(self.device).long()
        if self._spec.kind == "embeddings":
            states = (self._model(ids),)
        else:
            states = self._model(input_ids=ids, attention_mask=seen, output_hidden_states=True).hidden_states
        mask = batch.mask.to(self.device)

        def points(levels: tuple[Level, ...]) -> Features:
            return Features(unpack_tokens(take_levels(states, levels), batch).float(), mask)

        whole = points(self._spec.global_levels or self._spec.levels) if self._whole else None
        pooled = join_windows(mean_state(states[-1], batch.attention.to(self.device)), batch.windows)
        every = replace(points(self._spec.levels), pooled=pooled, layout=batch.layout, whole=whole)
        return keep_content(every, texts) if self._spec.words == "content" else every


def _open(spec: ImageTowerSpec | TextTowerSpec, base: Path | None) -> tuple[Checkpoint, Any]:
    """The verified files of a backbone, and its model."""
    checkpoint = find_checkpoint(locate(spec.source, base=base), revision=spec.revision or None)
    verify_files(checkpoint.weight_files(), spec.sha256, source=spec.source)
    return checkpoint, _token_table(checkpoint) if spec.kind == "embeddings" else load_model("AutoModel", checkpoint)


def _token_table(checkpoint: Checkpoint) -> nn.Embedding:
    """The input embeddings of a language model, read without its other weights."""
    for path in checkpoint.weight_files():
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name.endswith(_TABLES)]  # noqa: SIM118, it is not a mapping
                if names:
                    return nn.Embedding.from_pretrained(file.get_tensor(names[0]))
    raise WeightsError(f"{checkpoint.source!r} has no token embeddings ({' or '.join(_TABLES)}) in safetensors files")


def _context(model: Any, tokenizer: Any) -> int:
    """The smaller limit of tokenizer and position embeddings; RoBERTa models count positions from the pad token."""
    stated = int(min(tokenizer.model_max_length, _LONGEST))
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int):
        weight = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        skipped = getattr(weight, "padding_idx", None)
        stated = min(stated, positions - (0 if skipped is None else skipped + 1))
    return stated if stated < _LONGEST else _DEFAULT_CONTEXT
