"""Lightning callback that scores and logs captions of a fixed sample after every validation."""

from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.integrations.training import ValidationCaptions, log_captions

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    Callback = require("pytorch_lightning", extra="lightning").Callback


class MSDCallback(Callback):
    """Log `msd/msd` and others with `log_dict`, so that checkpoints can monitor them, and the table to each logger.

    It runs on the first process only, with the module in evaluation mode and without gradients.
    """

    def __init__(self, captions: ValidationCaptions, *, prefix: str = "msd") -> None:
        self._captions = captions
        self._prefix = prefix

    def on_validation_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Score and log, except in the sanity check before training."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        checked = self._captions.check_trained(pl_module)
        pl_module.log_dict(checked.scalars(self._prefix), rank_zero_only=True)
        for logger in trainer.loggers:
            place: Any = getattr(logger, "experiment", None)  # every logger has one, their base class does not
            if hasattr(place, "add_image") or type(place).__module__.startswith("wandb"):
                log_captions(place, checked, trainer.global_step, prefix=self._prefix)
