"""What a run measures, step by step: JSON lines in its folder, TensorBoard and Weights & Biases where asked for."""

import json
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from msdscore.align.recipe import Recipe
from msdscore.encoders.aligned.specs import plain
from msdscore.errors import require, unknown_name
from msdscore.io.atomic import replacing

LOGGERS = ("tensorboard", "wandb")
CURVES = "curves.jsonl"


class CurvesFile:
    """One JSON line for everything that was measured; a resumed run forgets what came after its checkpoint."""

    def __init__(self, run: Path, *, step: int) -> None:
        self._path = run / CURVES
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        kept = [line for line in lines if _step_of(line) <= step]
        with replacing(self._path) as file:
            file.write("".join(f"{line}\n" for line in kept).encode())

    def add(self, values: Mapping[str, Any]) -> None:
        """Append one measurement."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_curves(run: Path) -> list[dict[str, Any]]:
    """All measurements of a run, in order."""
    return [json.loads(line) for line in (run / CURVES).read_text(encoding="utf-8").splitlines()]


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

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish writing."""
        self._writer.close()


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

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish writing."""
        self._run.finish()


def open_loggers(names: Sequence[str], run: Path, recipe: Recipe) -> list[Logger]:
    """The loggers of these names.

    Raises:
        UnknownNameError: there is no such logger.
        MissingExtraError: its library is not installed.
    """
    found: list[Logger] = []
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        found.append(TensorBoard(run) if name == "tensorboard" else WeightsAndBiases(run, recipe))
    return found


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # a line that a crash cut short
