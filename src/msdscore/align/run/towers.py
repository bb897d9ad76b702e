"""The frozen towers of a run: how they are opened, what is written down of them, and that they stay the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from msdscore.align.processes import World, wait
from msdscore.align.recipe import Recipe
from msdscore.encoders.aligned.heads import SideDims
from msdscore.encoders.aligned.specs import plain, read_spec
from msdscore.encoders.aligned.towers.base import ImageTower, TextTower, TowerPlace
from msdscore.encoders.aligned.towers.load import load_towers, tower_dims
from msdscore.encoders.aligned.towers.mini import Lite2Images
from msdscore.encoders.loading.hashing import files_sha256, verify_files
from msdscore.errors import RunError
from msdscore.io.atomic import replacing

TOWERS = "towers.json"
Towers = tuple[ImageTower, TextTower]


@dataclass(frozen=True, slots=True)
class KnownTowers:
    """Sizes and weights of the towers that a run was started with; heads fit no others."""

    image: SideDims
    text: SideDims
    image_sha256: str
    text_sha256: str


def open_towers(recipe: Recipe, device: torch.device) -> Towers:
    """The frozen towers of a recipe."""
    # Rows of the global path of mini are windows: one per caption, so that features can be kept by caption.
    long_text = "cut" if recipe.text.kind == "mini" else "window"
    where = TowerPlace(device=str(device), whole=recipe.heads.pool == "own", long_text=long_text)
    return load_towers(recipe.image, recipe.text, where)


def reopen_towers(run: Path, recipe: Recipe, device: torch.device) -> Towers:
    """The frozen towers of a run that exists already, refused where their weights are others than at its start."""
    towers, known = open_towers(recipe, device), read_known_towers(run)
    verify_files(towers[0].files, known.image_sha256, source=recipe.image.source)
    verify_files(towers[1].files, known.text_sha256, source=recipe.text.source)
    return towers


def tune_towers(towers: Towers, tensors: Mapping[str, Tensor]) -> Towers:
    """The towers with some tensors of the image network replaced; without tensors they stay as they are."""
    if not tensors:
        return towers
    image, text = towers
    if not isinstance(image, Lite2Images):
        raise AssertionError("only the image network of mini can be tuned")
    return image.tuned(tensors), text


def read_known_towers(run: Path) -> KnownTowers:
    """What a run knows of its towers.

    Raises:
        RunError: the folder is not that of a run.
    """
    try:
        return read_spec(KnownTowers, json.loads((run / TOWERS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{run}: has no readable {TOWERS}; give the folder of a run") from error


def remember_towers(run: Path, towers: Towers, world: World) -> KnownTowers:
    """Write the towers' sizes and hashes at the start of a run, and insist on them later.

    Raises:
        RunError: the run was started with other weights.
    """
    image, text = tower_dims(*towers)
    known = KnownTowers(image, text, files_sha256(towers[0].files), files_sha256(towers[1].files))
    if (run / TOWERS).is_file() and read_known_towers(run) != known:
        raise RunError(f"{run}: was started with other backbones; resume it with the same weights")
    wait(world)
    if world.is_first:
        with replacing(run / TOWERS) as file:
            file.write(json.dumps(plain(known), indent=2).encode())
    return known
