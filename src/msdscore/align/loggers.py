"""TensorBoard and Weights & Biases, where a run asks for them."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from msdscore.align.recipe import Recipe
from msdscore.encoders.specs import plain
from msdscore.errors import require, unknown_name

LOGGERS = ("tensorboard", "wandb")


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
