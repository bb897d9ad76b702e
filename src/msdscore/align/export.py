"""From a run to an encoder that loads by its folder, and figures of a run on any data."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from msdscore.align.checkpoint import averaged_weights
from msdscore.align.data import DataSource, open_pairs
from msdscore.align.folder import CARD, CONFIG
from msdscore.align.recipe import Recipe
from msdscore.align.recipe_file import load_recipe
from msdscore.align.retrieval import Retrieval, Tell, embed_pairs, retrieval_by_cosine, retrieval_by_local
from msdscore.align.session import open_towers, read_known_towers
from msdscore.encoders.aligned import FORMAT, MODEL_TYPE
from msdscore.encoders.heads import AlignedHeads
from msdscore.encoders.placement import place
from msdscore.encoders.specs import plain
from msdscore.encoders.tower_files import verify_files
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import replacing
from msdscore.version import __version__

_DTYPES = {"float16": torch.float16, "float32": torch.float32}
_HEADS = "heads."


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Retrieval of a run by pooled vectors and by local max-similarity."""

    run: str
    step: int
    cosine: Retrieval
    local: Retrieval


def evaluate(run: str | Path, data: DataSource, *, device: str = "auto", tell: Tell | None = None) -> Evaluation:
    """Judge a run by retrieval on captioned pictures.

    Raises:
        RunError: the folder holds no run with a checkpoint.
    """
    recipe, where = _recipe(Path(run)), place(device, "auto").device
    heads, step = _heads(Path(run), recipe)
    towers, known = open_towers(recipe, where), read_known_towers(Path(run))
    verify_files(towers[0].files, known.image_sha256, source=recipe.image.source)
    verify_files(towers[1].files, known.text_sha256, source=recipe.text.source)
    pairs, chunk = open_pairs(data), recipe.train.tower_batch
    judged = embed_pairs(pairs, towers, heads.to(where), chunk=chunk, tell=tell)
    return Evaluation(str(run), step, retrieval_by_cosine(judged), retrieval_by_local(judged))


def export(run: str | Path, folder: str | Path, *, dtype: str = "float16") -> Path:
    """Write an aligned encoder: heads and a reference to the backbones with their hashes, no backbone inside.

    Raises:
        RunError: the run has no checkpoint, or the folder holds other files.
        ConfigError: the heads do not fit the dtype.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    source, target = Path(run), Path(folder)
    recipe, heads, step = read_run(source)
    refuse_other_files(target)
    target.mkdir(parents=True, exist_ok=True)
    weights = {name: value.to(_DTYPES[dtype]).contiguous() for name, value in heads.state_dict().items()}
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ConfigError(f"the heads do not fit {dtype}; export them with dtype='float32'")
    save_file(weights, target / "model.safetensors")
    if (source / CARD).is_file():
        _write(target / CARD, (source / CARD).read_text(encoding="utf-8"))
    _write(target / "config.json", json.dumps(_config(source, recipe, step), indent=2) + "\n")
    return target


def read_run(run: Path) -> tuple[Recipe, AlignedHeads, int]:
    """The recipe of a run, its heads as they are judged and exported, and the step that they are of.

    Raises:
        RunError: the folder holds no run with a checkpoint.
    """
    recipe = _recipe(run)
    return recipe, *_heads(run, recipe)


def refuse_other_files(folder: Path) -> None:
    """Stop before an export mixes with something else.

    Raises:
        RunError: the folder holds other files than those of an export.
    """
    known = ("config.json", "model.safetensors", CARD)
    if folder.is_dir() and any(path.name not in known for path in folder.iterdir()):
        raise RunError(f"{folder}: holds other files; choose an empty or new folder")


def _config(run: Path, recipe: Recipe, step: int) -> dict[str, Any]:
    known = read_known_towers(run)
    image = replace(recipe.image, source=_lasting(recipe.image.source), weights=_lasting(recipe.image.weights))
    text = replace(recipe.text, source=_lasting(recipe.text.source))
    return {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "msdscore": __version__,
        "recipe": recipe.name,
        "seed": recipe.seed,
        "step": step,
        "image": plain(replace(image, sha256=known.image_sha256)),
        "text": plain(replace(text, sha256=known.text_sha256)),
        "heads": plain(recipe.heads),
        "image_dims": plain(known.image),
        "text_dims": plain(known.text),
    }


def _lasting(source: str) -> str:
    """A local path that holds wherever the encoder is loaded from; names stay as they are."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


def _recipe(run: Path) -> Recipe:
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: has no {CONFIG}; give the folder of a run")
    return load_recipe(run / CONFIG)


def _heads(run: Path, recipe: Recipe) -> tuple[AlignedHeads, int]:
    weights, progress = averaged_weights(run)
    known = read_known_towers(run)
    heads = AlignedHeads(recipe.heads, known.image, known.text)
    heads.load_state_dict(
        {name.removeprefix(_HEADS): value for name, value in weights.items() if name.startswith(_HEADS)}
    )
    return heads.eval().requires_grad_(False), progress.step


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
