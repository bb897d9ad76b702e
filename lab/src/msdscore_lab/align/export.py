"""Encoders that load by their folder, exported from a run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from msdscore.encoders.checkpoints import BANK, CHECKS, SUMS, write_sums
from msdscore.errors import ConfigError, RunError
from msdscore.io.files import write_bytes
from msdscore.io.targets import refuse_existing
from msdscore.version import __version__
from msdscore_lab.align.run.folder import FinishedRun, read_run
from msdscore_torch.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore_torch.aligned.towers import plain
from msdscore_torch.tensors import packed

DTYPES = ("int8", "float16", "float32")
TRUNK = "trunk.safetensors"  # tuned tensors of the image network
BRANCHES = "trunk-*.safetensors"  # the same for each member of a joined encoder


def export(
    run: str | Path,
    folder: str | Path,
    *,
    dtype: str = "float16",
    overwrite: bool = False,
) -> Path:
    """Write an aligned encoder: heads, and references to the backbones with their hashes.

    Raises:
        RunError: If the run has no checkpoint, or the folder has other files, or an encoder without `overwrite`.
        ConfigError: If the weights overflow the dtype.
    """
    target, finished = Path(folder), read_run(Path(run))
    weights = {"model.safetensors": finished.heads.state_dict()} | ({TRUNK: finished.trunk} if finished.trunk else {})
    write_encoder(target, _config(finished), weights, dtype=dtype, overwrite=overwrite)
    return target


def write_encoder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, Tensor]],
    *,
    dtype: str,
    overwrite: bool,
) -> None:
    """Write the files of an encoder and their checksums; those of an earlier export are removed, also its bank.

    Raises:
        ConfigError: If the dtype is unknown, or the weights overflow it.
        RunError: If the folder has other files, or an encoder without `overwrite`.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    files = {"config.json": (json.dumps(config, indent=2) + "\n").encode()}
    for name, tensors in weights.items():
        if dtype == "int8":
            stored = packed(tensors)
        else:
            stored = {key: value.to(getattr(torch, dtype)).contiguous() for key, value in tensors.items()}
        if not all(bool(torch.isfinite(value).all()) for value in stored.values()):
            raise ConfigError(f"the trained weights overflow {dtype}; export them with dtype='float32'")
        files[name] = save(stored)
    own_files = {"config.json", "model.safetensors", TRUNK, BANK, SUMS, CHECKS}
    others = (path for path in folder.iterdir() if path.name not in own_files) if folder.is_dir() else iter(())
    if not all(path.match(BRANCHES) for path in others):
        raise RunError(f"{folder}: contains other files; choose an empty or new folder")
    refuse_existing([] if overwrite else [folder / "config.json"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        path.unlink()
    for name, content in files.items():
        write_bytes(folder / name, content, folder=folder)
    write_sums(folder)


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
