"""From a run to an encoder that loads by its folder."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from safetensors.torch import save_file
from torch import Tensor

from msdscore.align.recipe import Recipe
from msdscore.align.run.checkpoint import read_run
from msdscore.align.run.folder import CARD
from msdscore.align.run.towers import Towers, read_known_towers, reopen_towers
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.core.schedule import PointSet, fit_all
from msdscore.encoders.aligned.encoder import FORMAT, MODEL_TYPE
from msdscore.encoders.aligned.heads import AlignedHeads
from msdscore.encoders.aligned.specs import plain
from msdscore.encoders.aligned.towers.mini import GRID, SIZE
from msdscore.encoders.base import prepare_all
from msdscore.encoders.mini.encoder import read_config, shipped_folder
from msdscore.encoders.mini.heads import HeadSizes, MiniHeads
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import replacing
from msdscore.version import __version__

_DTYPES = {"float16": torch.float16, "float32": torch.float32}
_MINI_HEADS = {"image": "li", "text": "lt", "global_image": "gi", "global_text": "gt", "global_mean": "gt2"}
_MINI_LAYERS = {"norm": "ln", "line": "lin", "rise": "up", "fall": "down"}
MINI_TYPE = "msdscore-mini"
_FEWEST = 2  # background pictures


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


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def export_mini(run: str | Path, folder: str | Path, background: Sequence[Image]) -> Path:
    """Write a run as `mini` is shipped; it is calibrated against the background pictures, of which 128 serve well.

    Raises:
        RunError: the run has no checkpoint, or the folder holds other files.
        ConfigError: the recipe makes another encoder, or there are too few pictures.
    """
    if len(background) < _FEWEST:
        raise ConfigError(f"expected at least {_FEWEST} background pictures, got {len(background)}; 128 serve well")
    source, target = Path(run), Path(folder)
    recipe, heads, step = read_run(source)
    weights = {_renamed(name): value.half().contiguous() for name, value in heads.state_dict().items()}
    sizes = _sizes(recipe)
    _require_fit(sizes, weights)
    # The bank is made by the heads as they are stored, rounded to half precision.
    heads.load_state_dict({name: value.half().float() for name, value in heads.state_dict().items()})
    config = read_config(shipped_folder())
    bank = _bank(reopen_towers(source, recipe, torch.device("cpu")), heads, background, config)
    refuse_other_files(target)
    target.mkdir(parents=True, exist_ok=True)
    bank_weights = {"bank.means": bank.means, "bank.log_weights": bank.log_weights}
    save_file(
        weights | {name: value.half().contiguous() for name, value in bank_weights.items()},
        target / "model.safetensors",
    )
    config |= {"model_type": MINI_TYPE, "checkpoint": f"{recipe.name}-s{recipe.seed}-{step}", "heads": plain(sizes)}
    config["image_size"] = recipe.image.size or SIZE
    with replacing(target / "config.json") as file:
        file.write((json.dumps(config, indent=2) + "\n").encode())
    return target


def _renamed(name: str) -> str:
    """The name that a tensor of aligned heads has in `mini`.

    >>> _renamed("image.rise.weight"), _renamed("global_text.pool.inp.0.bias")
    ('li.up.weight', 'gt.inp.0.bias')
    """
    head, layer, *rest = name.split(".")
    inner = rest if layer == "pool" else [_MINI_LAYERS.get(layer, layer), *rest]
    return ".".join([_MINI_HEADS.get(head, head), *inner])


def _sizes(recipe: Recipe) -> HeadSizes:
    heads = recipe.heads
    if (recipe.image.kind, recipe.text.kind, heads.global_text.kind) != ("mini", "mini", "pool"):
        raise ConfigError("only a run of the recipe mini can be written as mini; use align export without background")
    return HeadSizes(
        grid=recipe.image.grid or GRID,
        pooled=heads.global_dim or heads.dim,
        local=heads.dim,
        pooled_hidden=heads.global_image.hidden,
        local_hidden=heads.image.hidden,
        pooled_layers=tuple(map(int, recipe.text.global_levels or recipe.text.levels)),
        local_layers=tuple(map(int, recipe.text.levels)),
        attention_inner=heads.global_text.inner or 2 * heads.global_text.hidden,
    )


def _require_fit(sizes: HeadSizes, weights: dict[str, Tensor]) -> None:
    """Refuse heads of another build than the shipped one, and numbers that half precision cannot hold."""
    with torch.device("meta"):
        wanted = {name: value.shape for name, value in MiniHeads(sizes).state_dict().items()}
    if wanted != {name: value.shape for name, value in weights.items()}:
        odd = sorted(wanted.keys() ^ weights.keys()) or ["other sizes"]
        raise ConfigError(
            f"the heads of this run are not built as those of mini ({odd[0]}); use the recipe's own heads"
        )
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ConfigError("the heads do not fit float16; train with a smaller learning rate")


@torch.no_grad()
def _bank(towers: Towers, heads: AlignedHeads, pictures: Sequence[Image], config: dict[str, object]) -> Mixture:
    """One mixture a background picture, fitted as the score fits any picture."""
    recommended = config["recommended"]
    if not isinstance(recommended, dict):
        raise AssertionError("config.json of mini without recommended settings")
    settings = FitSettings(components=recommended["components"][0], kappa=recommended["kappa"])
    chunk, parts = 16, []
    for start in range(0, len(pictures), chunk):
        prepared = prepare_all(towers[0], pictures[start : start + chunk])
        seen = heads.project_images(towers[0].features(prepared))
        # A farthest-first start draws nothing, so the keys decide nothing.
        keys = torch.zeros(len(seen), dtype=torch.int64)
        parts.append(fit_all(PointSet(seen.points, seen.mask, keys), settings))
    means, weights = torch.cat([part.means for part in parts]), torch.cat([part.log_weights for part in parts])
    return Mixture(means, weights, settings.kappa)
