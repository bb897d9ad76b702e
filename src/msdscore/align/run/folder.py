"""The folder of a run: its recipe, the machine, how it ended, and a draft of a model card."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from msdscore.align.recipe import TERMS, Recipe
from msdscore.align.recipe_file import dump_recipe, load_recipe
from msdscore.errors import RunError
from msdscore.io.atomic import replacing
from msdscore.version import __version__

CONFIG, ENVIRONMENT, REPORT, CARD = "config.toml", "environment.json", "report.json", "README.md"
LOCK = ".lock"
_LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "transformers", "tokenizers", "timm", "pyarrow")


def prepare_folder(run: Path, recipe: Recipe, *, data: str, resume: bool) -> None:
    """Make the folder of a new run, or check that an old one is of the same recipe and data.

    Raises:
        RunError: the folder holds another run, or a run that was not asked to go on.
    """
    config = run / CONFIG
    if not config.is_file():
        # A run that was killed at its very start leaves no more than these.
        if run.is_dir() and any(path.name not in (LOCK, ENVIRONMENT) for path in run.iterdir()):
            raise RunError(f"{run}: holds other files; choose an empty or new folder for a run")
        run.mkdir(parents=True, exist_ok=True)
        _write(run / ENVIRONMENT, json.dumps(environment(data), indent=2) + "\n")
        _write(config, dump_recipe(recipe))
        return
    if not resume:
        raise RunError(f"{run}: holds a run already; go on with it by --resume, or choose another folder")
    if load_recipe(config) != recipe:
        raise RunError(f"{run}: was started with another recipe; resume it with its own {CONFIG}")
    if json.loads((run / ENVIRONMENT).read_text(encoding="utf-8")).get("data") != data:
        raise RunError(f"{run}: was started with other data; resume it with the same files")


def environment(data: str) -> dict[str, Any]:
    """What a run depends on beside its recipe."""
    return {
        "msdscore": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "data": data,
    }


def write_report(run: Path, values: Mapping[str, Any]) -> None:
    """Write how a run ended, as JSON."""
    _write(run / REPORT, json.dumps(values, indent=2) + "\n")


def write_card(run: Path, recipe: Recipe, values: Mapping[str, Any]) -> None:
    """A draft of a model card; what only a person can know is marked."""
    loss = {name: getattr(recipe.loss, name) for name in TERMS}
    terms = ", ".join(f"{name} {weight:g}" for name, weight in loss.items() if weight)
    best = values.get("best")
    lines = [
        f"# {recipe.name}",
        "",
        recipe.description or "TODO: one sentence on what this encoder is for.",
        "",
        f"- Image backbone (frozen): `{recipe.image.source}` ({recipe.image.kind})",
        f"- Text backbone (frozen): `{recipe.text.source}` ({recipe.text.kind})",
        f"- Heads: image {recipe.heads.image.kind}, text {recipe.heads.text.kind}, {recipe.heads.dim} dimensions, "
        f"pool {recipe.heads.pool}, {values.get('parameters', 0):,} trained parameters",
        f"- Loss: {terms}",
        f"- Language model, in training only: `{recipe.lm.source}`"
        if recipe.loss.reconstruction
        else "- Language model: none",
        f"- Pairs: {values.get('pairs', 0):,} pictures, {values.get('bad_pictures', 0):,} of them unreadable",
        f"- Steps: {values.get('step', 0):,} of {values.get('steps', 0):,}, batch {recipe.train.batch}",
        f"- Seed: {recipe.seed}",
        f"- Retrieval on validation data, mean R@1: {best:.1f} %" if best is not None else "- Retrieval: not measured",
        "",
        "## To be written by a person",
        "",
        "- Training data: name, licence, overlap with any benchmark.",
        "- Figures on benchmarks, with intervals and the wrong-image control.",
        "- Limits, licences of the backbones, intended use.",
        "",
    ]
    _write(run / CARD, "\n".join(lines))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
