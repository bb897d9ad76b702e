"""Towers of other libraries: maps of any timm model, hidden states of any transformers checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from msdscore.encoders.aligned.towers import (
    ImageTowerSpec,
    Level,
    TextTowerSpec,
    TowerPlace,
    all_points,
    frozen,
    join_levels,
    keep_content,
    mean_state,
    take_level,
)
from msdscore.encoders.backbone import place
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint, locate
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.loading.tensors import read_tensors
from msdscore.encoders.loading.transformers import load_model, load_tokenizer, preprocessor
from msdscore.encoders.text.tokens import (
    Reading,
    join_windows,
    literal_backend,
    pack_texts,
    special_ids,
    unpack_tokens,
)
from msdscore.encoders.vision.preprocessing import (
    Preprocessing,
    mask_of,
    patch_layout,
    prepare_image,
    read_preprocessing,
    stack_pixels,
)
from msdscore.errors import ConfigError, WeightsError, require, unknown_name

_RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_LONGEST = 100_000  # tokenizers without a limit state an absurd one
_DEFAULT_CONTEXT = 512

LevelMap = Callable[[Level], Float[Tensor, "batch dim rows columns"]]


class _MapImages(ABC):
    """A frozen image network whose levels are maps of features."""

    files: tuple[Path, ...]
    preprocessing: Preprocessing

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace) -> None:
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype)
        self.device = self._place.device

    @abstractmethod
    def _maps(self, pixels: Float[Tensor, "batch 3 height width"]) -> LevelMap:
        """The map of any level, after one pass through the network."""

    def prepare(self, image: Image.Image) -> Prepared:
        """The image as the network takes it."""
        return prepare_image(image, self.preprocessing)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """The asked levels of every cell."""
        pixels = stack_pixels(images, self.preprocessing, self.device)
        level_map = self._maps(pixels.to(self._place.dtype))
        local = join_levels([level_map(level) for level in self._spec.levels], self._spec.grid)
        rows, columns = int(local.shape[2]), int(local.shape[3])
        layout = tuple(
            patch_layout(image.view, (rows, columns), (image.view.canvas[0] / columns, image.view.canvas[1] / rows))
            for image in images
        )
        whole = None
        if self._whole:
            levels, grid = self._spec.global_path
            whole = all_points(join_levels([level_map(level) for level in levels], grid))
        return Features(all_points(local).points, mask_of(layout).to(self.device), layout=layout, whole=whole)


class TimmImages(_MapImages):
    """Maps at chosen strides (`stride16`), blocks (numbers) or the `final` features of a timm model.

    Images are squashed onto a square, so that nothing of them is cut off.
    """

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        super().__init__(spec, where)
        timm = require("timm", extra="train")
        if not timm.is_model(spec.source):
            near = timm.list_models(f"*{spec.source[:12]}*")[:12] or timm.list_models("vit_base*")[:6]
            raise unknown_name("timm model", spec.source, near)
        own = timm.get_pretrained_cfg(spec.source, allow_unregistered=True).to_dict()
        side = spec.size or int(own["input_size"][-1])
        try:
            # Transformers must know the size of their grid; convolutional models refuse the argument.
            model = timm.create_model(spec.source, pretrained=False, img_size=side)
        except TypeError:
            model = timm.create_model(spec.source, pretrained=False)
        self.files = _weight_files(spec, model, base)
        verify_files(self.files, spec.sha256, source=spec.weights or spec.source)
        load_by_name_or_order(model, read_tensors(self.files), source=spec.weights or spec.source)
        self._indices = _indices(model, (*spec.levels, *(spec.global_levels if where.whole else ())))
        config = model.pretrained_cfg
        self.preprocessing = Preprocessing(
            resize=(side, side),
            crop=None,
            resample=_RESAMPLE.get(str(config.get("interpolation")), Image.Resampling.BICUBIC),
            mean=spec.mean or tuple(config["mean"]),
            std=spec.std or tuple(config["std"]),
        )
        self._model = frozen(model, self._place)

    def _maps(self, pixels: Tensor) -> LevelMap:
        """`final` is what the classifier would see before pooling."""
        numbers = sorted(set(self._indices.values()))
        if numbers:
            final, between = self._model.forward_intermediates(pixels, indices=numbers, output_fmt="NCHW")
        else:
            final, between = self._model.forward_features(pixels), []
        by_number = dict(zip(numbers, between, strict=True))
        maps: dict[Level, Tensor] = {level: by_number[number] for level, number in self._indices.items()}
        maps["final"] = _final_map(final, self._model)
        return maps.__getitem__


def _weight_files(spec: ImageTowerSpec, model: Any, base: Path | None) -> tuple[Path, ...]:
    if spec.weights:
        path = Path(locate(spec.weights, base=base)).expanduser()
        if not path.is_file():
            raise WeightsError(f"there is no weight file {spec.weights!r}; give a .safetensors or .pth file")
        return (path,)
    name = model.pretrained_cfg.get("hf_hub_id")
    if not name:
        raise WeightsError(f"timm knows no weights of {spec.source!r}; give a file of them as image.weights")
    return find_checkpoint(str(name), revision=spec.revision or None).weight_files()


def load_by_name_or_order(model: Any, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Fill a model from tensors of its own names, or of other names in the same order and of the same shapes.

    Raises:
        WeightsError: neither fits.
    """
    wanted = model.state_dict()
    if set(wanted) <= set(tensors):
        chosen = {name: tensors[name] for name in wanted}
    else:
        pairs = zip(wanted, tensors.values(), strict=False)
        chosen = {name: tensor for name, tensor in pairs if tensor.shape == wanted[name].shape}
    if len(chosen) != len(wanted) or any(chosen[name].shape != wanted[name].shape for name in wanted):
        raise WeightsError(f"weights of {source!r} do not fit the model, neither by name nor by order and shape")
    model.load_state_dict(chosen)


def _indices(model: Any, levels: Sequence[Level]) -> dict[Level, int]:
    """The number of every level among the model's feature maps; `final` is none of them."""
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


def _final_map(final: Tensor, model: Any) -> Tensor:
    """Final features as a map, whatever layout the model has."""
    if final.dim() == 3:
        patches = final[:, int(getattr(model, "num_prefix_tokens", 0)) :]
        edge = round(patches.shape[1] ** 0.5)
        return patches.transpose(1, 2).unflatten(2, (edge, edge))
    # Some models put channels last; their feature width tells.
    last = final.shape[1] != model.num_features and final.shape[-1] == model.num_features
    return final.permute(0, 3, 1, 2) if last else final


class TransformersImages(_MapImages):
    """Hidden states of a vision transformer, without its special tokens."""

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        super().__init__(spec, where)
        checkpoint, model = _open(spec, base)
        self.files = checkpoint.weight_files()
        self._model = frozen(getattr(model, "vision_model", model), self._place)
        self.preprocessing = read_preprocessing(preprocessor(checkpoint))

    def _maps(self, pixels: Tensor) -> LevelMap:
        states = self._model(pixel_values=pixels, output_hidden_states=True).hidden_states
        return partial(take_level, [_as_map(state, self._model.config, pixels.shape[-2:]) for state in states])


class TransformersTexts:
    """Hidden states of any text encoder over the caption's own tokens; long captions are read in windows."""

    def __init__(self, spec: TextTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        checkpoint, model = _open(spec, base)
        self.files: tuple[Path, ...] = checkpoint.weight_files()
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype)
        self.device = self._place.device
        model = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
        self._model = frozen(getattr(model, "text_model", model), self._place)
        tokenizer = load_tokenizer(checkpoint)
        self._backend = literal_backend(tokenizer.backend_tokenizer)
        prefix, suffix = special_ids(self._backend)
        pad = (suffix or prefix or (0,))[-1] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        context = spec.context or _context(self._model, tokenizer)
        self._reading = Reading(context, prefix, suffix, pad, where.long_text)

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Features:
        """The asked levels of every token."""
        batch = pack_texts(texts, self._backend, self._reading)
        states = self._model(
            input_ids=batch.ids.to(self.device),
            attention_mask=batch.attention.to(self.device).long(),
            output_hidden_states=True,
        ).hidden_states
        mask = batch.mask.to(self.device)

        def points(levels: tuple[Level, ...]) -> Features:
            chosen = torch.cat([take_level(states, level) for level in levels], dim=-1)
            return Features(unpack_tokens(chosen, batch).float(), mask)

        whole = points(self._spec.global_levels or self._spec.levels) if self._whole else None
        pooled = join_windows(mean_state(states[-1], batch.attention.to(self.device)), batch.windows)
        every = replace(points(self._spec.levels), pooled=pooled, layout=batch.layout, whole=whole)
        return keep_content(every, texts) if self._spec.words == "content" else every


def _open(spec: ImageTowerSpec | TextTowerSpec, base: Path | None) -> tuple[Checkpoint, Any]:
    """The files of a backbone, which are those that the spec was made with, and the model in them."""
    checkpoint = find_checkpoint(locate(spec.source, base=base), revision=spec.revision or None)
    verify_files(checkpoint.weight_files(), spec.sha256, source=spec.source)
    return checkpoint, load_model("AutoModel", checkpoint)


def _as_map(states: Tensor, config: Any, size: Sequence[int]) -> Tensor:
    """Patches of a sequence of states as a map; special tokens stand before them."""
    patch = getattr(config, "patch_size", None)
    if not isinstance(patch, int):
        raise WeightsError(f"a tower of {config.model_type!r} has no square patches; use a timm model instead")
    rows, columns = size[0] // patch, size[1] // patch
    if states.dim() != 3 or states.shape[1] < rows * columns:
        raise WeightsError(f"a tower of {config.model_type!r} gives no row of patches; use a timm model instead")
    return states[:, states.shape[1] - rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


def _context(model: Any, tokenizer: Any) -> int:
    """What both the tokenizer and the position embeddings allow; RoBERTa's kin count positions from the pad on."""
    stated = int(min(tokenizer.model_max_length, _LONGEST))
    places = getattr(model.config, "max_position_embeddings", None)
    if isinstance(places, int):
        weight = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        skipped = getattr(weight, "padding_idx", None)
        stated = min(stated, places - (0 if skipped is None else skipped + 1))
    return stated if stated < _LONGEST else _DEFAULT_CONTEXT
