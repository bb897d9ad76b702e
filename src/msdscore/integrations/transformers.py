"""Callback for transformers' `Trainer` that scores and logs captions of a fixed sample after every evaluation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.integrations.training import ValidationCaptions, log_captions, log_scalars

if TYPE_CHECKING:
    TrainerCallback = object
else:
    TrainerCallback = require("transformers", extra="hf").TrainerCallback


class MSDCallback(TrainerCallback):
    """Log means with intervals and the table to `loggers`, and add the means to the evaluation metrics.

    `loggers` are TensorBoard writers or Weights & Biases runs. `eval_msd`, `eval_msd_match` and others are in the
    result of `trainer.evaluate()` and in `trainer.state.log_history`, so `metric_for_best_model="eval_msd"` works. It
    runs on the first process only, with the model in evaluation mode and without gradients.
    """

    def __init__(self, captions: ValidationCaptions, *, loggers: Sequence[Any] = (), prefix: str = "msd") -> None:
        self._captions = captions
        self._loggers = tuple(loggers)
        self._prefix = prefix

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Score and log."""
        if not state.is_world_process_zero:
            return
        checked = self._captions.check_trained(given["model"])
        means = {
            "eval_msd" if name == "msd" else f"eval_msd_{name}": mean.value for name, mean in checked.means().items()
        }
        given.get("metrics", {}).update(means)
        # The trainer logs an evaluation before it calls its callbacks: the means are added to that entry.
        if not state.log_history or state.log_history[-1].get("step") != state.global_step:
            state.log_history.append({"step": state.global_step})
        state.log_history[-1].update(means)
        for place in self._loggers:
            log_scalars(place, checked.scalars(self._prefix), state.global_step)
            log_captions(place, checked, state.global_step, prefix=self._prefix)
