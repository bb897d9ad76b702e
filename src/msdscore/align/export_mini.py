"""From a run of the recipe `mini` to a folder that loads as `mini` does: heads, settings, background pictures."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL.Image import Image
from safetensors.torch import save_file
from torch import Tensor

from msdscore.align.export import read_run, refuse_other_files
from msdscore.align.recipe import Recipe
from msdscore.align.session import Towers, open_towers, read_known_towers
from msdscore.core.divergence import PointSet, fit_all
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.encoders.heads import AlignedHeads
from msdscore.encoders.mini import read_config, shipped_folder
from msdscore.encoders.mini_heads import HeadSizes, MiniHeads
from msdscore.encoders.specs import plain
from msdscore.encoders.tower_files import verify_files
from msdscore.encoders.tower_mini import GRID, SIZE
from msdscore.errors import ConfigError
from msdscore.io.atomic import replacing

_HEADS = {"image": "li", "text": "lt", "global_image": "gi", "global_text": "gt", "global_mean": "gt2"}
_LAYERS = {"norm": "ln", "line": "lin", "rise": "up", "fall": "down"}
MODEL_TYPE = "msdscore-mini"
_FEWEST = 2  # background pictures


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
    bank = _bank(_towers(recipe, source), heads, background, config)
    refuse_other_files(target)
    target.mkdir(parents=True, exist_ok=True)
    bank_weights = {"bank.means": bank.means, "bank.log_weights": bank.log_weights}
    save_file(
        weights | {name: value.half().contiguous() for name, value in bank_weights.items()},
        target / "model.safetensors",
    )
    config |= {"model_type": MODEL_TYPE, "checkpoint": f"{recipe.name}-s{recipe.seed}-{step}", "heads": plain(sizes)}
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
    inner = rest if layer == "pool" else [_LAYERS.get(layer, layer), *rest]
    return ".".join([_HEADS.get(head, head), *inner])


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


def _towers(recipe: Recipe, run: Path) -> Towers:
    towers, known = open_towers(recipe, torch.device("cpu")), read_known_towers(run)
    verify_files(towers[0].files, known.image_sha256, source=recipe.image.source)
    return towers


@torch.no_grad()
def _bank(towers: Towers, heads: AlignedHeads, pictures: Sequence[Image], config: dict[str, object]) -> Mixture:
    """One mixture a background picture, fitted as the score fits any picture."""
    recommended = config["recommended"]
    if not isinstance(recommended, dict):
        raise AssertionError("config.json of mini without recommended settings")
    settings = FitSettings(components=recommended["components"][0], kappa=recommended["kappa"])
    chunk, parts = 16, []
    for start in range(0, len(pictures), chunk):
        seen = heads.project_images(towers[0].features(pictures[start : start + chunk]))
        # A farthest-first start draws nothing, so the keys decide nothing.
        keys = torch.zeros(len(seen), dtype=torch.int64)
        parts.append(fit_all(PointSet(seen.points, seen.mask, keys), settings))
    means, weights = torch.cat([part.means for part in parts]), torch.cat([part.log_weights for part in parts])
    return Mixture(means, weights, settings.kappa)
