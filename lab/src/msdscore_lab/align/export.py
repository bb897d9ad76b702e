"""Encoders that load by their folder: exported from a run, or joined from several exports."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from safetensors.torch import save
from torch import Tensor

from msdscore.encoders.banks import bank_bytes
from msdscore.encoders.checkpoints import BANK
from msdscore.encoders.hashing import CHECKS, SUMS, write_sums
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, RunError
from msdscore.io.files import write_bytes
from msdscore.io.targets import refuse_existing
from msdscore.scoring.bank import build_bank
from msdscore.scoring.pipeline import recommended_form
from msdscore.version import __version__
from msdscore_lab.align.run.folder import CARD, FinishedRun, read_run
from msdscore_torch.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore_torch.aligned.towers import plain
from msdscore_torch.tensors import packed, read_tensors, widened

DTYPES = ("int8", "float16", "float32")
TRUNK = "trunk.safetensors"  # tuned tensors of the image network
BRANCHES = "trunk-*.safetensors"  # the same for each member of a joined encoder
# Settings for a bank of background images only, which calibrates support but has no word weights.
# `msdscore bank --pairs` builds a bank with word weights; the evidence form is then the default.
RECOMMENDED = {"form": "short", "components": (8, 2), "calibration": "background", "gate": "support"}
_MINIMUM = 2  # background images, or members of a joined encoder
_SHARED_SETTINGS = ("text", "image_dims", "text_dims")  # must be equal in all members, like the image tower


def export(
    run: str | Path,
    folder: str | Path,
    *,
    dtype: str = "float16",
    background: Sequence[Image] = (),
    overwrite: bool = False,
) -> Path:
    """Write an aligned encoder: heads, and references to the backbones with their hashes.

    With background images (about a hundred), the folder includes a bank that calibrates
    support, and recommends the paper's form.

    Raises:
        RunError: If the run has no checkpoint, or the folder has other files, or an encoder without `overwrite`.
        ConfigError: If the weights overflow the dtype, or there are too few images.
    """
    if background and len(background) < _MINIMUM:
        raise ConfigError(f"expected at least {_MINIMUM} background images, got {len(background)}; 128 are typical")
    source, target = Path(run), Path(folder)
    finished = read_run(source)
    weights = {"model.safetensors": finished.heads.state_dict()} | ({TRUNK: finished.trunk} if finished.trunk else {})
    config = _config(finished) | ({"recommended": RECOMMENDED} if background else {})
    card = (source / CARD).read_bytes() if (source / CARD).is_file() else None
    _write(target, config, weights, card, dtype=dtype, overwrite=overwrite)
    if background:
        # Load the stored heads, so that the bank is fitted with the same weights as at scoring time.
        encoder = load_encoder(str(target), device="cpu")
        bank = build_bank(encoder, recommended_form(encoder), background).bank
        write_bytes(target / BANK, bank_bytes(bank, half=True), folder=target)
    write_sums(target)
    return target


def _write(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, Tensor]],
    card: bytes | None = None,
    *,
    dtype: str,
    overwrite: bool,
) -> None:
    """Write the files of an encoder; files of an earlier export are removed, in particular its bank and checksums.

    Raises:
        ConfigError: If the dtype is unknown, or the weights overflow it.
        RunError: If the folder has other files, or an encoder without `overwrite`.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    files = {"config.json": (json.dumps(config, indent=2) + "\n").encode()} | ({} if card is None else {CARD: card})
    for name, tensors in weights.items():
        if dtype == "int8":
            stored = packed(tensors)
        else:
            stored = {key: value.to(getattr(torch, dtype)).contiguous() for key, value in tensors.items()}
        if not all(bool(torch.isfinite(value).all()) for value in stored.values()):
            raise ConfigError(f"the trained weights overflow {dtype}; export them with dtype='float32'")
        files[name] = save(stored)
    own_files = {"config.json", "model.safetensors", TRUNK, BANK, CARD, SUMS, CHECKS}
    others = (path for path in folder.iterdir() if path.name not in own_files) if folder.is_dir() else iter(())
    if not all(path.match(BRANCHES) for path in others):
        raise RunError(f"{folder}: contains other files; choose an empty or new folder")
    refuse_existing([] if overwrite else [folder / "config.json"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        path.unlink()
    for name, content in files.items():
        write_bytes(folder / name, content, folder=folder)


def _config(finished: FinishedRun) -> dict[str, Any]:
    towers, recipe = finished.towers, finished.recipe
    weights = TRUNK if finished.trunk else _absolute(recipe.image.weights)
    image = replace(recipe.image, source=_absolute(recipe.image.source), weights=weights)
    text = replace(recipe.text, source=_absolute(recipe.text.source))
    return {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "msdscore": __version__,
        "recipe": recipe.name,
        "seed": recipe.seed,
        "step": finished.step,
        # The image network of `mini` is identified by its weights, independent of the file.
        "image": plain(replace(image, sha256="" if image.kind == "mini" else towers.image_sha256)),
        "text": plain(replace(text, sha256=towers.text_sha256)),
        "heads": plain(recipe.heads),
        "image_dims": plain(towers.image),
        "text_dims": plain(towers.text),
    } | ({"dtype": "float32"} if image.kind == "mini" else {})


def _absolute(source: str) -> str:
    """Return a local path that does not depend on the working directory; names are unchanged."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


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
    _write(out, config, {"model.safetensors": heads} | trunks, dtype=dtype, overwrite=overwrite)
    write_sums(out)
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
