"""The folder of a run: recipe, environment, towers, curves, report, and a draft of a model card."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from msdscore.align.recipe import TERMS, Recipe, dump_recipe, load_recipe
from msdscore.encoders.aligned.heads import SideDims
from msdscore.encoders.aligned.towers import plain, read_spec
from msdscore.errors import RunError, require, unknown_name
from msdscore.io.atomic import replacing
from msdscore.version import __version__

CONFIG, ENVIRONMENT, TOWERS = "config.toml", "environment.json", "towers.json"
CURVES, REPORT, CARD, LOCK = "curves.jsonl", "report.json", "README.md", ".lock"
LOGGERS = ("tensorboard", "wandb")
_LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "transformers", "tokenizers", "timm", "pyarrow")


def prepare_folder(run: Path, recipe: Recipe, *, data: str, resume: bool) -> None:
    """Create the folder of a new run, or check that an existing one is of the same recipe and data.

    Raises:
        RunError: the folder holds another run, or a run that was not asked to go on.
    """
    config = run / CONFIG
    if not config.is_file():
        # A run that was killed at its very start leaves no more than these.
        if run.is_dir() and any(path.name not in (LOCK, ENVIRONMENT) for path in run.iterdir()):
            raise RunError(f"{run}: holds other files; choose an empty or new folder for a run")
        run.mkdir(parents=True, exist_ok=True)
        _write(run / ENVIRONMENT, json.dumps(_environment(data), indent=2) + "\n")
        _write(config, dump_recipe(recipe))
        return
    if not resume:
        raise RunError(f"{run}: holds a run already; go on with it by --resume, or choose another folder")
    if load_recipe(config) != recipe:
        raise RunError(f"{run}: was started with another recipe; resume it with its own {CONFIG}")
    if json.loads((run / ENVIRONMENT).read_text(encoding="utf-8")).get("data") != data:
        raise RunError(f"{run}: was started with other data; resume it with the same files")


def _environment(data: str) -> dict[str, Any]:
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


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class KnownTowers:
    """Sizes and weights of the towers that a run was started with; heads fit no others."""

    image: SideDims
    text: SideDims
    image_sha256: str
    text_sha256: str


def read_known_towers(run: Path) -> KnownTowers:
    """Read the sizes and hashes of a run's towers.

    Raises:
        RunError: the folder is not that of a run.
    """
    try:
        return read_spec(KnownTowers, json.loads((run / TOWERS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{run}: has no readable {TOWERS}; give the folder of a run") from error


def check_known_towers(run: Path, known: KnownTowers) -> None:
    """Compare with the towers that the run was started with, if it was.

    Raises:
        RunError: they are others.
    """
    if (run / TOWERS).is_file() and read_known_towers(run) != known:
        raise RunError(f"{run}: was started with other backbones; resume it with the same weights")


def write_known_towers(run: Path, known: KnownTowers) -> None:
    """Write the sizes and hashes of a run's towers."""
    _write(run / TOWERS, json.dumps(plain(known), indent=2))


class CurvesFile:
    """One JSON line per measurement; a resumed run drops what came after its checkpoint."""

    def __init__(self, run: Path, *, step: int) -> None:
        self._path = run / CURVES
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        _write(self._path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def add(self, values: Mapping[str, Any]) -> None:
        """Append one measurement."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_curves(run: Path) -> list[dict[str, Any]]:
    """All measurements of a run, in order."""
    return [json.loads(line) for line in (run / CURVES).read_text(encoding="utf-8").splitlines()]


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # a line that a crash cut short


class Logger(Protocol):
    """Something that draws curves."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve."""

    def close(self) -> None:
        """Finish writing."""


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, run: Path) -> None:
        require("tensorboard", extra="train")
        self._writer: Any = require("torch.utils.tensorboard", extra="train").SummaryWriter(str(run / "tensorboard"))
        self.close = self._writer.close

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


class WeightsAndBiases:
    """A run of the user's project on W&B; a resumed run goes on where it stopped."""

    def __init__(self, run: Path, recipe: Recipe) -> None:
        wandb = require("wandb", extra="wandb")
        self._run: Any = wandb.init(
            project="msdscore-align",
            name=run.resolve().name,
            id=blake2b(str(run.resolve()).encode(), digest_size=8).hexdigest(),
            resume="allow",
            dir=str(run),
            config=plain(recipe),
        )
        self.close = self._run.finish

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve."""
        self._run.log(dict(values), step=step)


def open_loggers(names: Sequence[str], run: Path, recipe: Recipe) -> list[Logger]:
    """Open the loggers of these names.

    Raises:
        UnknownNameError: there is no such logger.
        MissingExtraError: its library is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
    return [TensorBoard(run) if name == "tensorboard" else WeightsAndBiases(run, recipe) for name in names]


def write_report(run: Path, recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Write how a run ended as JSON, and a draft of a model card; what only a person can know is marked there."""
    _write(run / REPORT, json.dumps(values, indent=2) + "\n")
    weights = {name: getattr(recipe.loss, name) for name in TERMS}
    terms = ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight)
    heads, best = recipe.heads, values["best"]
    lines = [
        f"# {recipe.name}",
        "",
        recipe.description or "TODO: one sentence on what this encoder is for.",
        "",
        f"- Image backbone (frozen): `{recipe.image.source}` ({recipe.image.kind})",
        f"- Text backbone (frozen): `{recipe.text.source}` ({recipe.text.kind})",
        f"- Heads: image {heads.image.kind}, text {heads.text.kind}, {heads.dim} dimensions, pool {heads.pool}, "
        f"{values['parameters']:,} trained parameters",
        f"- Loss: {terms}",
        f"- Language model, in training only: `{recipe.lm.source}`"
        if recipe.loss.reconstruction
        else "- Language model: none",
        f"- Pairs: {values['pairs']:,} images, {values['bad_pictures']:,} of them unreadable",
        f"- Steps: {values['step']:,} of {values['steps']:,}, batch {recipe.train.batch}",
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


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
