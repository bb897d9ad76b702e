"""Several exported encoders as one: trained apart, read side by side."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msdscore.align.export import check_dtype, clear_for_export, save_weights, write_text
from msdscore.encoders.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore.encoders.loading.hashing import write_sums
from msdscore.encoders.loading.tensors import read_tensors, widened
from msdscore.errors import ConfigError
from msdscore.version import __version__

_SAME = ("text", "image_dims", "text_dims")  # what members must have in common, beside the image tower
_LEAST = 2


def join(folders: Sequence[str | Path], target: str | Path, *, dtype: str = "int8", overwrite: bool = False) -> Path:
    """Write an encoder whose similarities are the means of those of several exported ones.

    Errors of heads that were trained apart are partly their own, so the mean has fewer. The members must stand on the
    same backbones; tuned stages of the image network are kept for each of them, what they share is computed once. A
    bank is not taken over: make one with `msdscore bank`.

    Raises:
        ConfigError: there are fewer than two, they stand on different backbones, or the target is one of them.
        RunError: the target holds other files, or an encoder and no `overwrite`.
    """
    members = [Path(folder) for folder in folders]
    if len(members) < _LEAST:
        raise ConfigError(f"expected at least {_LEAST} exported encoders to join, got {len(members)}")
    configs = [_read(folder) for folder in members]
    _refuse_different(configs, members)
    out = Path(target)
    if out.resolve() in [folder.resolve() for folder in members]:
        raise ConfigError(f"{out}: is one of the encoders to join; choose another folder")
    check_dtype(dtype)
    # Everything is read before anything is removed: a damaged member leaves an earlier export as it is.
    parts = {"model.safetensors": _heads(members)} | {
        f"trunk-{number}.safetensors": widened(read_tensors([folder / tuned]))
        for number, (folder, config) in enumerate(zip(members, configs, strict=True))
        if (tuned := _tuned(config))
    }
    clear_for_export(out, overwrite=overwrite)
    for name, tensors in parts.items():
        save_weights(tensors, out / name, dtype)
    branches = [name for name in parts if name != "model.safetensors"]
    config = _config(configs, branches)
    write_text(out / "config.json", json.dumps(config, indent=2) + "\n")
    write_sums(out)
    return out


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: expected the folder of an exported encoder ({error})") from error
    if not isinstance(config, dict) or (config.get("model_type"), config.get("format")) != (MODEL_TYPE, FORMAT):
        raise ConfigError(f"{folder}: expected an exported encoder of this version; export it again")
    if isinstance(config["heads"], list):
        raise ConfigError(f"{folder}: is joined already; name its members instead")
    return config


def _tuned(config: Mapping[str, Any]) -> str:
    """The file of tuned stages, which every member has for itself; of other towers `weights` is the backbone."""
    image = config["image"]
    return str(image.get("weights", "")) if image.get("kind") == "mini" else ""


def _backbone(config: Mapping[str, Any]) -> dict[str, Any]:
    """The image tower without what is a member's own."""
    return {key: value for key, value in config["image"].items() if key != "weights" or not _tuned(config)}


def _refuse_different(configs: Sequence[Mapping[str, Any]], folders: Sequence[Path]) -> None:
    first = configs[0]
    tuned = [_tuned(config) for config in configs]
    for config, folder in zip(configs[1:], folders[1:], strict=True):
        different = [key for key in _SAME if config[key] != first[key]]
        if {"weights": ""} | _backbone(config) != {"weights": ""} | _backbone(first):
            different.append("image")
        if different:
            raise ConfigError(f"{folder} differs from {folders[0]} in {', '.join(different)}; join those of one recipe")
    if any(tuned) and not all(tuned):
        raise ConfigError("either all or none of the encoders to join can have a tuned image network")


def _heads(members: Sequence[Path]) -> dict[str, Any]:
    return {
        f"members.{number}.{name}": tensor
        for number, folder in enumerate(members)
        for name, tensor in widened(read_tensors([folder / "model.safetensors"])).items()
    }


def _config(configs: Sequence[Mapping[str, Any]], branches: Sequence[str]) -> dict[str, Any]:
    first = configs[0]
    kept = {key: first[key] for key in ("dtype", *_SAME) if key in first}
    return {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "msdscore": __version__,
        "joined": [_name(config) for config in configs],
        **kept,
        "image": _backbone(first) | ({"branches": list(branches)} if branches else {}),
        "heads": [config["heads"] for config in configs],
    }


def _name(config: Mapping[str, Any]) -> str:
    """What a member was: its checkpoint, or its recipe with seed and step."""
    return str(config.get("checkpoint") or f"{config.get('recipe')}-s{config.get('seed')}-{config.get('step')}")
