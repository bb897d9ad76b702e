"""The folder of a run: recipe, environment, towers, curves, checkpoints and report.

A checkpoint has weights, averages and the optimiser in safetensors, the rest in JSON, never a pickle. The checkpoints
of `accelerate` are not used, because they pickle the optimiser and the states of random number generators. A run has no
such state, since every random draw is a function of the seed and its purpose.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from msdscore.errors import RunError
from msdscore.io.files import replacing
from msdscore.version import __version__
from msdscore_lab.align.recipe import Recipe, dump_recipe, load_recipe, load_trained
from msdscore_torch.aligned.heads import AlignedHeads, SideDims
from msdscore_torch.aligned.towers import read_spec

CONFIG, ENVIRONMENT, TOWERS = "config.toml", "environment.json", "towers.json"
CURVES, REPORT, LOCK = "curves.jsonl", "report.json", ".lock"
CHECKPOINTS, BEST = "checkpoints", "best"
_STATE, _WEIGHTS = "state.json", "weights.safetensors"
_AVERAGE, _OPTIMISER = "average.safetensors", "optimizer.safetensors"
_LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "transformers", "tokenizers", "timm", "pyarrow")


def prepare_folder(run: Path, recipe: Recipe, *, data: str, resume: bool) -> None:
    """Create the folder of a new run, or check that an existing one is of the same recipe and data.

    Raises:
        RunError: If the folder has another run, or a run and `resume` is False.
    """
    config = run / CONFIG
    if not config.is_file():
        # A run killed during start-up leaves only these files.
        if run.is_dir() and any(path.name not in (LOCK, ENVIRONMENT) for path in run.iterdir()):
            raise RunError(f"{run}: contains other files; choose an empty or new folder for a run")
        run.mkdir(parents=True, exist_ok=True)
        write_text(run / ENVIRONMENT, json.dumps(_environment(data), indent=2) + "\n")
        write_text(config, dump_recipe(recipe))
        return
    if not resume:
        raise RunError(f"{run}: contains a run; continue it with --resume, or choose another folder")
    if load_recipe(type(recipe), config) != recipe:
        raise RunError(f"{run}: was started with another recipe; resume it with its {CONFIG}")
    if json.loads((run / ENVIRONMENT).read_text(encoding="utf-8")).get("data") != data:
        raise RunError(f"{run}: was started with other data; resume it with the same files")


def _environment(data: str) -> dict[str, Any]:
    """Return versions, hardware and data: everything besides the recipe that a run depends on."""
    libraries: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return {
        "msdscore": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "libraries": libraries,
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "data": data,
    }


@dataclass(frozen=True, slots=True)
class KnownTowers:
    """Feature sizes and weight hashes of the towers of a run; its heads only work with these."""

    image: SideDims
    text: SideDims
    image_sha256: str
    text_sha256: str


def read_known_towers(run: Path) -> KnownTowers:
    """Read the sizes and hashes of a run's towers.

    Raises:
        RunError: If it is not the folder of a run.
    """
    try:
        return read_spec(KnownTowers, json.loads((run / TOWERS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{run}: has no readable {TOWERS}; pass the folder of a run") from error


def open_curves(run: Path, *, step: int) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that appends a measurement to the curves; a resumed run first drops those after `step`."""
    path = run / CURVES
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    write_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def add(values: Mapping[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    return add


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # truncated by a crash


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: finished steps, and the state of early stopping."""

    step: int = 0
    best: float = -1.0  # of the monitored retrieval
    best_step: int = 0
    stale: int = 0  # evaluations since the best one
    stopped: bool = False


def save_checkpoint(
    run: Path, average: AveragedModel, module: nn.Module, optimiser: Optimizer, progress: Progress, *, keep: int
) -> None:
    """Write a checkpoint atomically, and remove old ones."""
    moments = {  # the state of the optimiser, by parameter name and key
        f"{name}:{key}": torch.as_tensor(value)
        for name, parameter in module.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }
    tensors = {_WEIGHTS: module.state_dict(), _AVERAGE: average.module.state_dict(), _OPTIMISER: moments}
    _write_folder(run / CHECKPOINTS / f"step-{progress.step:08d}", tensors, progress)
    for old in checkpoints(run)[:-keep]:
        shutil.rmtree(old)


def save_best(run: Path, average: AveragedModel, progress: Progress) -> None:
    """Save the averaged weights of the best evaluation."""
    _write_folder(run / CHECKPOINTS / BEST, {_AVERAGE: average.module.state_dict()}, progress)


def _write_folder(folder: Path, files: Mapping[str, dict[str, torch.Tensor]], progress: Progress) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, tensors in files.items():
        copies = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        save_file(copies, temporary / name)
    (temporary / _STATE).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    for path in temporary.iterdir():
        _sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    _sync(folder.parent)


def checkpoints(run: Path) -> list[Path]:
    """Return all complete checkpoints of a run, oldest first."""
    return sorted(path for path in (run / CHECKPOINTS).glob("step-*") if (path / _STATE).is_file())


def restore(folder: Path, average: AveragedModel, module: nn.Module, optimiser: Optimizer) -> Progress:
    """Restore weights, average, optimiser and progress from a checkpoint.

    Raises:
        RunError: If the checkpoint is damaged or of another model.
    """
    try:
        module.load_state_dict(load_file(folder / _WEIGHTS))
        average.module.load_state_dict(load_file(folder / _AVERAGE))
        parameters = dict(module.named_parameters())
        for entry, value in load_file(folder / _OPTIMISER).items():
            name, _, key = entry.rpartition(":")
            # The step count is on the CPU, as in the optimiser.
            parameter = parameters[name]
            optimiser.state[parameter][key] = value if key == "step" else value.to(parameter.device)
        progress = Progress(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
        average.n_averaged.fill_(progress.step)
        return progress
    except Exception as error:  # damaged files raise various errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{folder}: cannot be resumed ({reason}); delete this checkpoint to resume from the previous one"
        ) from error


def averaged_weights(run: Path) -> tuple[dict[str, torch.Tensor], Progress]:
    """Return the weights for evaluation and export: of the best evaluation, else of the newest checkpoint.

    Raises:
        RunError: If there are none.
    """
    best = run / CHECKPOINTS / BEST
    folder = best if (best / _STATE).is_file() else next(iter(reversed(checkpoints(run))), None)
    if folder is None:
        raise RunError(f"{run}: no checkpoint here; train first, or pass the folder of a run")
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return load_file(folder / _AVERAGE), Progress(**state)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run for evaluation and export: recipe, towers, averaged heads, their step, tuned tensors of the image tower."""

    recipe: Recipe
    towers: KnownTowers
    heads: AlignedHeads
    step: int
    trunk: dict[str, torch.Tensor]


def read_run(run: Path) -> FinishedRun:
    """Load the averaged weights of a run with its recipe.

    Raises:
        RunError: If the folder has no run with a checkpoint.
    """
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: has no {CONFIG}; pass the folder of a run")
    recipe = load_trained(run / CONFIG)
    weights, progress = averaged_weights(run)
    towers = read_known_towers(run)
    heads = AlignedHeads(recipe.heads, towers.image, towers.text)
    heads.load_state_dict(tensors_of("heads", weights))
    return FinishedRun(recipe, towers, heads.eval().requires_grad_(False), progress.step, tensors_of("trunk", weights))


def tensors_of(part: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of the `heads`, or of a tuned image network (`trunk`), among all trained ones."""
    return {name.removeprefix(f"{part}."): value for name, value in weights.items() if name.startswith(f"{part}.")}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
