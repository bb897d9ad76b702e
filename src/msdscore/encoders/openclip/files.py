"""Where an open_clip model comes from: its architecture, its weights, its preprocessing.

A source is a built-in architecture with a tag or a file (`ViT-B-32/laion2b_s34b_b79k`, `ViT-L-14/./mine.pt`), a
folder or hub name with an `open_clip_config.json`, or, with the options `model` and `file`, a single file of a
folder or hub name.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL.Image import Resampling

from msdscore.encoders.loading.checkpoints import OPEN_CLIP, Checkpoint, find_checkpoint, find_file
from msdscore.encoders.vision.preprocessing import Preprocessing
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
