"""Checkpoints of a run: weights, averages and the optimiser in safetensors, the rest in JSON, never a pickle.

This is why `accelerate`'s own checkpoints do not serve here: they pickle the optimiser and the states of random number
generators. No such state exists in a run, since every draw is a function of the seed and its purpose.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from msdscore.align.recipe import Recipe, load_recipe
from msdscore.align.run.folder import CONFIG, read_known_towers
from msdscore.encoders.aligned.heads import AlignedHeads
from msdscore.errors import RunError

FOLDER = "checkpoints"
BEST = "best"
_STATE = "state.json"
_HEADS, _TRUNK = "heads.", "trunk."  # how the names of their tensors begin among all trained ones
_WEIGHTS, _AVERAGE, _OPTIMISER = "weights.safetensors", "average.safetensors", "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: finished steps, and what early stopping remembers."""

    step: int = 0
    best: float = -1.0  # of the retrieval that is watched
    best_step: int = 0
    stale: int = 0  # evaluations since the best one
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """The parts of a run that a checkpoint holds."""

    module: nn.Module
    average: AveragedModel
    optimiser: torch.optim.Optimizer


def save_checkpoint(run: Path, parts: Trained, progress: Progress, *, keep: int) -> Path:
    """Write a checkpoint atomically, and remove old ones."""
    folder = run / FOLDER / f"step-{progress.step:08d}"
    tensors = {
        _WEIGHTS: parts.module.state_dict(),
        _AVERAGE: parts.average.module.state_dict(),
        _OPTIMISER: _moments(parts),
    }
    _write_folder(folder, tensors, progress)
    for old in checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def save_best(run: Path, average: AveragedModel, progress: Progress) -> None:
    """Keep the averaged weights of the best evaluation."""
    _write_folder(run / FOLDER / BEST, {_AVERAGE: average.module.state_dict()}, progress)


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
    """All whole checkpoints of a run, oldest first."""
    return sorted(path for path in (run / FOLDER).glob("step-*") if (path / _STATE).is_file())


def restore(folder: Path, parts: Trained) -> Progress:
    """Load everything as it was after the checkpoint's last step.

    Raises:
        RunError: the checkpoint is damaged or of another model.
    """
    try:
        parts.module.load_state_dict(load_file(folder / _WEIGHTS))
        parts.average.module.load_state_dict(load_file(folder / _AVERAGE))
        _restore_moments(parts, load_file(folder / _OPTIMISER))
        progress = Progress(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
        parts.average.n_averaged.fill_(progress.step)
        return progress
    except Exception as error:  # damaged files raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{folder}: cannot be resumed ({reason}); delete this checkpoint to go on from the one before"
        ) from error


def averaged_weights(run: Path) -> tuple[dict[str, torch.Tensor], Progress]:
    """The weights that a run is evaluated and exported by: of its best evaluation, else of its newest checkpoint.

    Raises:
        RunError: there are none.
    """
    best = run / FOLDER / BEST
    folder = best if (best / _STATE).is_file() else next(iter(reversed(checkpoints(run))), None)
    if folder is None:
        raise RunError(f"{run}: no checkpoint here; train first, or give the folder of a run")
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return load_file(folder / _AVERAGE), Progress(**state)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run as it is evaluated and exported: recipe, averaged heads, their step, tuned tensors of the image network."""

    recipe: Recipe
    heads: AlignedHeads
    step: int
    trunk: dict[str, torch.Tensor]


def read_run(run: Path) -> FinishedRun:
    """The averaged weights of a run with its recipe.

    Raises:
        RunError: the folder holds no run with a checkpoint.
    """
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: has no {CONFIG}; give the folder of a run")
    recipe = load_recipe(run / CONFIG)
    weights, progress = averaged_weights(run)
    known = read_known_towers(run)
    heads = AlignedHeads(recipe.heads, known.image, known.text)
    heads.load_state_dict(_under(_HEADS, weights))
    return FinishedRun(recipe, heads.eval().requires_grad_(False), progress.step, tuned_tensors(weights))


def tuned_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a tuned image network among all trained ones, by their names in the whole network."""
    return _under(_TRUNK, weights)


def _under(prefix: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _moments(parts: Trained) -> dict[str, torch.Tensor]:
    """The state of the optimiser, by parameter name and key."""
    return {
        f"{name}:{key}": torch.as_tensor(value)
        for name, parameter in parts.module.named_parameters()
        for key, value in parts.optimiser.state.get(parameter, {}).items()
    }


def _restore_moments(parts: Trained, moments: dict[str, torch.Tensor]) -> None:
    for name, parameter in parts.module.named_parameters():
        known: dict[str, Any] = {
            full.rpartition(":")[2]: value for full, value in moments.items() if full.rpartition(":")[0] == name
        }
        if known:
            # The count of steps stays on the CPU, where the optimiser keeps it.
            parts.optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in known.items()
            }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
