"""From a run to an encoder that loads by its folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from safetensors.torch import save
from torch import Tensor

from msdscore.align.run.checkpoint import FinishedRun, read_run
from msdscore.align.run.folder import CARD
from msdscore.align.run.towers import read_known_towers
from msdscore.encoders.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore.encoders.aligned.specs import plain
from msdscore.encoders.loading.banks import bank_bytes
from msdscore.encoders.loading.checkpoints import BANK
from msdscore.encoders.loading.hashing import SUMS, write_sums
from msdscore.encoders.loading.packages import locate
from msdscore.encoders.loading.tensors import packed
from msdscore.encoders.registry import load_encoder
from msdscore.encoders.table import MINI_FOLDER
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import replacing, write_bytes
from msdscore.io.outputs.targets import refuse_existing
from msdscore.scoring.bank import build_bank
from msdscore.scoring.config import MSDConfig
from msdscore.version import __version__

DTYPES = ("int8", "float16", "float32")
TRUNK = "trunk.safetensors"  # tuned tensors of the image network
BRANCHES = "trunk-*.safetensors"  # the same of joined encoders, one for each
_FEWEST = 2  # background pictures


def export(
    run: str | Path,
    folder: str | Path,
    *,
    dtype: str = "float16",
    background: Sequence[Image] = (),
    overwrite: bool = False,
) -> Path:
    """Write an aligned encoder: heads and a reference to the backbones with their hashes, no backbone inside.

    With background pictures, of which some hundred serve well, it brings its own bank and recommends the settings that
    `mini` does.

    Raises:
        RunError: the run has no checkpoint, or the folder holds other files, or an encoder and no `overwrite`.
        ConfigError: the heads do not fit the dtype, or there are too few pictures.
    """
    check_dtype(dtype)
    if background and len(background) < _FEWEST:
        raise ConfigError(f"expected at least {_FEWEST} background pictures, got {len(background)}; 128 serve well")
    source, target = Path(run), Path(folder)
    found = read_run(source)
    clear_for_export(target, overwrite=overwrite)
    save_weights(found.heads.state_dict(), target / "model.safetensors", dtype)
    if found.trunk:
        save_weights(found.trunk, target / TRUNK, dtype)
    if (source / CARD).is_file():
        write_text(target / CARD, (source / CARD).read_text(encoding="utf-8"))
    config = _config(source, found) | ({"recommended": _recommended()} if background else {})
    write_text(target / "config.json", json.dumps(config, indent=2) + "\n")
    if background:
        _add_bank(target, background)
    write_sums(target)
    return target


def _recommended() -> dict[str, Any]:
    config = json.loads(Path(locate(MINI_FOLDER), "config.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = config["recommended"]
    # A bank of pictures alone cannot weigh words; `msdscore bank --pairs` makes one that can.
    plain = {"calibration": "background", "gate": "support", "information": 0.0, "tail": 0.0}
    return found | plain


def _add_bank(folder: Path, background: Sequence[Image]) -> None:
    """Fit the background pictures as the score would, with the heads as they are stored."""
    encoder = load_encoder(str(folder), device="cpu")
    named = build_bank(encoder, MSDConfig.preset("short", **(encoder.recommended or {})), background)
    write_bytes(folder / BANK, bank_bytes(named.bank, half=True), folder=folder)


def clear_for_export(folder: Path, *, overwrite: bool) -> None:
    """Make the folder of an export; what an earlier one has left there is removed, above all its bank and its sums.

    Raises:
        RunError: the folder holds other files, or an encoder and no `overwrite`.
    """
    refuse_other_files(folder)
    refuse_existing([] if overwrite else [folder / "config.json"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        path.unlink()


def refuse_other_files(folder: Path) -> None:
    """Stop before an export mixes with something else.

    Raises:
        RunError: the folder holds other files than those of an export.
    """
    known = {"config.json", "model.safetensors", TRUNK, BANK, CARD, SUMS}
    others = (path for path in folder.iterdir() if path.name not in known) if folder.is_dir() else iter(())
    if not all(path.match(BRANCHES) for path in others):
        raise RunError(f"{folder}: holds other files; choose an empty or new folder")


def check_dtype(dtype: str) -> None:
    """Refuse a form of weights that is not known.

    Raises:
        ConfigError: it is none of those that a weight folder may have.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def save_weights(tensors: Mapping[str, Tensor], path: Path, dtype: str) -> None:
    """Write tensors in one of the forms that a weight folder may have.

    Raises:
        ConfigError: the numbers do not fit it.
    """
    if dtype == "int8":
        weights = packed(tensors)
    else:
        weights = {name: value.to(getattr(torch, dtype)).contiguous() for name, value in tensors.items()}
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ConfigError(f"the trained weights do not fit {dtype}; export them with dtype='float32'")
    write_bytes(path, save(weights), folder=path.parent)


def _config(run: Path, found: FinishedRun) -> dict[str, Any]:
    known, recipe = read_known_towers(run), found.recipe
    weights = TRUNK if found.trunk else _lasting(recipe.image.weights)
    image = replace(recipe.image, source=_lasting(recipe.image.source), weights=weights)
    text = replace(recipe.text, source=_lasting(recipe.text.source))
    return {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "msdscore": __version__,
        "recipe": recipe.name,
        "seed": recipe.seed,
        "step": found.step,
        # The image network of `mini` is known by its numbers, whatever file they come in.
        "image": plain(replace(image, sha256="" if image.kind == "mini" else known.image_sha256)),
        "text": plain(replace(text, sha256=known.text_sha256)),
        "heads": plain(recipe.heads),
        "image_dims": plain(known.image),
        "text_dims": plain(known.text),
    } | ({"dtype": "float32"} if image.kind == "mini" else {})


def _lasting(source: str) -> str:
    """A local path that holds wherever the encoder is loaded from; names stay as they are."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


def write_text(path: Path, text: str) -> None:
    """Write a small file in one step."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
