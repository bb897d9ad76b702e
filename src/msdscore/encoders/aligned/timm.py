"""Feature maps of any timm model as a frozen image tower."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from msdscore.encoders.aligned.towers import (
    ImageTowerSpec,
    Level,
    TowerPlace,
    all_points,
    frozen,
    join_levels,
)
from msdscore.encoders.backbone import place
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import find_checkpoint, locate
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.loading.tensors import read_tensors
from msdscore.encoders.vision.preprocessing import Preprocessing, patch_layout, prepare_picture, stack_pixels
from msdscore.errors import ConfigError, WeightsError, require, unknown_name

_RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class TimmImages:
    """Maps at chosen strides (`stride16`), blocks (numbers) or the `final` features of a timm model.

    Images are squashed onto a square, so that nothing of them is cut off.
    """

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace, *, base: Path | None = None) -> None:
        timm = require("timm", extra="train")
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype)
        self.device = self._place.device
        self._side = spec.size or int(_config(timm, spec.source)["input_size"][-1])
        model = _model(timm, spec.source, self._side)
        self.files: tuple[Path, ...] = _weight_files(spec, model, base)
        verify_files(self.files, spec.sha256, source=spec.weights or spec.source)
        load_by_name_or_order(model, read_tensors(self.files), source=spec.weights or spec.source)
        self._indices = _indices(model, (*spec.levels, *(spec.global_levels if where.whole else ())))
        self.preprocessing = _preprocessing(model.pretrained_cfg, spec, self._side)
        self._model = frozen(model, self._place)

    def prepare(self, image: Image.Image) -> Prepared:
        """The image as the network takes it."""
        return prepare_picture(image, self.preprocessing)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """The asked levels of every cell."""
        pixels = stack_pixels(images, self.preprocessing, self.device)
        maps = self._maps(pixels.to(self._place.dtype))
        local = join_levels([maps[level] for level in self._spec.levels], self._spec.grid)
        rows, columns = int(local.shape[2]), int(local.shape[3])
        cell = (self._side / columns, self._side / rows)
        layout = tuple(patch_layout(image.view, (rows, columns), cell) for image in images)
        whole = None
        if self._whole:
            levels, grid = self._spec.global_path
            whole = all_points(join_levels([maps[level] for level in levels], grid))
        return replace(all_points(local), layout=layout, whole=whole)

    def _maps(self, pixels: Tensor) -> dict[Level, Tensor]:
        """One pass through the model; `final` is what its classifier would see before pooling."""
        numbers = sorted(set(self._indices.values()))
        if numbers:
            final, between = self._model.forward_intermediates(pixels, indices=numbers, output_fmt="NCHW")
        else:
            final, between = self._model.forward_features(pixels), []
        found = dict(zip(numbers, between, strict=True))
        maps: dict[Level, Tensor] = {level: found[number] for level, number in self._indices.items()}
        maps["final"] = _final_map(final, self._model, self._side)
        return maps


def _config(timm: Any, source: str) -> Mapping[str, Any]:
    if not timm.is_model(source):
        near = timm.list_models(f"*{source[:12]}*")[:12] or timm.list_models("vit_base*")[:6]
        raise unknown_name("timm model", source, near)
    found: Mapping[str, Any] = timm.get_pretrained_cfg(source, allow_unregistered=True).to_dict()
    return found


def _model(timm: Any, source: str, side: int) -> Any:
    try:
        # Transformers must know the size of their grid; convolutional models refuse the argument.
        return timm.create_model(source, pretrained=False, img_size=side)
    except TypeError:
        return timm.create_model(source, pretrained=False)


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
    found: dict[Level, int] = {}
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
        found[level] = fits[-1]
    return found


def _final_map(final: Tensor, model: Any, side: int) -> Tensor:
    """Final features as a map, whatever layout the model has."""
    if final.dim() == 3:
        patches = final[:, int(getattr(model, "num_prefix_tokens", 0)) :]
        edge = round(patches.shape[1] ** 0.5)
        return patches.transpose(1, 2).unflatten(2, (edge, edge))
    # Some models put channels last; their feature width tells.
    return (
        final.permute(0, 3, 1, 2)
        if final.shape[1] != model.num_features and final.shape[-1] == model.num_features
        else final
    )


def _preprocessing(config: Mapping[str, Any], spec: ImageTowerSpec, side: int) -> Preprocessing:
    return Preprocessing(
        resize=(side, side),
        crop=None,
        resample=_RESAMPLE.get(str(config.get("interpolation")), Image.Resampling.BICUBIC),
        mean=spec.mean or tuple(config["mean"]),
        std=spec.std or tuple(config["std"]),
    )
