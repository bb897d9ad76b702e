"""Join encoders of one recipe, such as runs with several seeds, into one that averages their similarities.

python weights/recipe/join_mini.py seed0 seed1 -o joined
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from msdscore.errors import ConfigError
from msdscore.version import __version__
from msdscore_lab.align.export import DTYPES, write_encoder
from msdscore_torch.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore_torch.tensors import read_tensors, widened

_MINIMUM = 2  # members
_SHARED_SETTINGS = ("text", "image_dims", "text_dims")  # must be equal in all members, like the image tower


def join(folders: Sequence[str | Path], target: str | Path, *, dtype: str = "int8", overwrite: bool = False) -> Path:
    """Write an encoder whose similarities are the means over several exported encoders.

    The errors of separately trained heads are partly independent, so the mean has a smaller error. The members must
    have the same backbones; tuned stages of the image network are stored for each of them, shared stages are computed
    once. A bank is not copied: build one with `msdscore bank`.

    Raises:
        ConfigError: If there are fewer than two, they have different backbones, or the target is one of them.
        RunError: If the target has other files, or an encoder without `overwrite`.
    """
    members = [Path(folder) for folder in folders]
    if len(members) < _MINIMUM:
        raise ConfigError(f"expected at least {_MINIMUM} exported encoders to join, got {len(members)}")
    configs = [_read_member(folder) for folder in members]
    _check_compatible(configs, members)
    out = Path(target)
    if out.resolve() in [folder.resolve() for folder in members]:
        raise ConfigError(f"{out}: is one of the encoders to join; choose another folder")
    # Read all members before removing files, so that a damaged member does not destroy an earlier export.
    heads, trunks = dict[str, Tensor](), dict[str, Mapping[str, Tensor]]()
    for index, (folder, config) in enumerate(zip(members, configs, strict=True)):
        tensors = widened(read_tensors([folder / "model.safetensors"]))
        heads |= {f"members.{index}.{name}": tensor for name, tensor in tensors.items()}
        if tuned := _tuned_weights(config):
            trunks[f"trunk-{index}.safetensors"] = widened(read_tensors([folder / tuned]))
    first = configs[0]
    config = {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "msdscore": __version__,
        # A member's checkpoint, or its recipe with seed and step.
        "joined": [str(c.get("checkpoint") or f"{c.get('recipe')}-s{c.get('seed')}-{c.get('step')}") for c in configs],
        **{key: first[key] for key in ("dtype", *_SHARED_SETTINGS) if key in first},
        "image": _backbone(first) | ({"branches": list(trunks)} if trunks else {}),
        "heads": [member["heads"] for member in configs],
    }
    write_encoder(out, config, {"model.safetensors": heads} | trunks, dtype=dtype, overwrite=overwrite)
    return out


def _read_member(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: expected the folder of an exported encoder ({error})") from error
    if not isinstance(config, dict) or (config.get("model_type"), config.get("format")) != (MODEL_TYPE, FORMAT):
        raise ConfigError(f"{folder}: expected an exported encoder of this version; export it again")
    if isinstance(config["heads"], list):
        raise ConfigError(f"{folder}: is already a joined encoder; pass its members instead")
    return config


def _tuned_weights(config: Mapping[str, Any]) -> str:
    """Return the file name of tuned image stages, or an empty string; for other towers `weights` is the backbone."""
    image = config["image"]
    return str(image.get("weights", "")) if image.get("kind") == "mini" else ""


def _backbone(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the image tower without settings that differ between members."""
    return {key: value for key, value in config["image"].items() if key != "weights" or not _tuned_weights(config)}


def _check_compatible(configs: Sequence[Mapping[str, Any]], folders: Sequence[Path]) -> None:
    first = configs[0]
    tuned = [_tuned_weights(config) for config in configs]
    for config, folder in zip(configs[1:], folders[1:], strict=True):
        different = [key for key in _SHARED_SETTINGS if config[key] != first[key]]
        if {"weights": ""} | _backbone(config) != {"weights": ""} | _backbone(first):
            different.append("image")
        if different:
            raise ConfigError(
                f"{folder} differs from {folders[0]} in {', '.join(different)}; join encoders of one recipe"
            )
    if any(tuned) and not all(tuned):
        raise ConfigError("either all or none of the encoders to join can have a tuned image network")


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the exported encoders of a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", help="folders of exported encoders on the same backbones")
    parser.add_argument("-o", "--output", required=True, help="folder for the encoder")
    parser.add_argument("--dtype", default="int8", choices=DTYPES, help="data type of the weights")
    parser.add_argument("--overwrite", action="store_true", help="replace an encoder")
    args = parser.parse_args(arguments)
    print(join(args.folders, args.output, dtype=args.dtype, overwrite=args.overwrite))  # noqa: T201


if __name__ == "__main__":
    main()
