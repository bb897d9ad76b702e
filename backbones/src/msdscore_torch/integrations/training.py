"""Score captions of a fixed sample of images during training: means with intervals, coloured words.

`LightningCallback` and `TransformersCallback` do so after every validation; their base classes are imported on first
use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from msdscore.errors import ConfigError, require
from msdscore.explain.explanation import Explanation, explain
from msdscore.explain.figure import figure_pixels
from msdscore.explain.html import THUMB_PIXELS, words_html
from msdscore.explain.look import word_limit
from msdscore.explain.maps import thumbnail
from msdscore.forms.registry import columns_logged
from msdscore.intervals import Interval, bootstrap_mean
from msdscore.io.images import ImageSource
from msdscore.scoring.results import Scores, known
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore_torch.integrations.shared import ScorerLike, described, shared_scorer

Generate = Callable[[Any, Sequence[ImageSource]], Sequence[str]]
_TABLE = ("image", "caption", "msd", "match", "least supported")
_NAMED = 3  # words per row


@dataclass(frozen=True, slots=True)
class CheckedCaptions:
    """Captions of the sample: the scores of all, and explanations of those that are shown."""

    scores: Scores
    shown: tuple[Explanation, ...]

    def means(self) -> dict[str, Interval]:
        """Return the mean of each score over the captions that have it, with a 95 % bootstrap interval."""
        columns = {name: self.scores.columns[name] for name in columns_logged() if name in self.scores.columns}
        known = {name: values[~np.isnan(values)] for name, values in columns.items()}
        return {name: bootstrap_mean(values) for name, values in known.items() if len(values)}

    def scalars(self, prefix: str) -> dict[str, float]:
        """Return scalars to log: means and interval bounds, words per caption, share of scored captions."""
        values: dict[str, float] = {}
        for name, mean in self.means().items():
            values |= {f"{prefix}/{name}": mean.value}
            if not np.isnan(mean.low):  # one caption has no interval
                values |= {f"{prefix}/{name}_low": mean.low, f"{prefix}/{name}_high": mean.high}
        words = [len(caption.split()) for caption in self.scores.captions]
        judged = 1 - self.scores.failed / len(self.scores)
        return values | {f"{prefix}/words": float(np.mean(words)), f"{prefix}/judged": judged}


class ValidationCaptions:
    """A fixed sample of images, and a function that captions them.

    `generate(model, images)` returns one caption per image; the first `shown` of them are logged with their words in
    colour.

    >>> from PIL import Image
    >>> images = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    >>> sample = ValidationCaptions(images, lambda model, some: ["a red square"] * len(some), scorer="toy")
    >>> {"msd", "similarity"} <= set(sample.check(None).means())
    True
    """

    def __init__(
        self,
        images: Sequence[ImageSource],
        generate: Generate,
        *,
        scorer: ScorerLike = DEFAULT_ENCODER,
        shown: int = 8,
    ) -> None:
        self._images = list(images)
        if not self._images:
            raise ConfigError("expected at least one image to caption")
        self._generate, self._scorer, self._shown = generate, described(scorer), shown

    def check_trained(self, model: Any) -> CheckedCaptions:
        """Call `check` on a torch module during training, in evaluation mode and without gradients."""
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return self.check(model)
        finally:
            model.train(training)

    def check(self, model: Any) -> CheckedCaptions:
        """Caption the sample with the model, and score the captions."""
        captions = [caption if isinstance(caption, str) else "" for caption in self._generate(model, self._images)]
        if len(captions) != len(self._images):
            raise ConfigError(f"generate returned {len(captions)} captions for {len(self._images)} images")
        scorer = shared_scorer(self._scorer)
        scores = scorer.score_batch(self._images, captions)
        chosen = [number for number in range(min(self._shown, len(captions))) if scores.errors[number] is None]
        pipeline = scorer.pipeline
        shown = [explain(pipeline, self._images[number], [captions[number]])[0] for number in chosen]
        return CheckedCaptions(scores, tuple(shown))


def log_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Log scalars to a TensorBoard writer or a Weights & Biases run."""
    if not _is_tensorboard(writer):
        writer.log(dict(values), step=step)
        return
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def log_captions(writer: Any, checked: CheckedCaptions, step: int, *, prefix: str) -> None:
    """Log the table of images and coloured words to a TensorBoard writer or a Weights & Biases run."""
    if not checked.shown:
        return
    if not _is_tensorboard(writer):
        wandb: Any = require("wandb", extra="wandb")
        limit, table = word_limit(checked.shown), wandb.Table(columns=list(_TABLE))
        for item in checked.shown:
            table.add_data(
                wandb.Image(thumbnail(item.image, THUMB_PIXELS)),
                wandb.Html(str(words_html(item, limit)), inject=False),
                item.score.msd,
                known(item.score.match),
                ", ".join(unit.text for unit in item.ranked[:_NAMED]),
            )
        writer.log({f"{prefix}/captions": table}, step=step)
        return
    writer.add_image(f"{prefix}/captions", figure_pixels(checked.shown), step, dataformats="HWC")
    writer.add_text(f"{prefix}/signature", f"`{checked.scores.signature}`", step)


class _LightningHooks:
    """Log `msd/msd` and others with `log_dict`, so that checkpoints can monitor them, and the table to each logger.

    It runs on the first process only, with the module in evaluation mode and without gradients.
    """

    def __init__(self, captions: ValidationCaptions, *, prefix: str = "msd") -> None:
        self._captions, self._prefix = captions, prefix

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Score and log, except in the sanity check before training."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        checked = self._captions.check_trained(pl_module)
        pl_module.log_dict(checked.scalars(self._prefix), rank_zero_only=True)
        for logger in trainer.loggers:
            writer = getattr(logger, "experiment", None)  # every logger has one, their base class does not
            if hasattr(writer, "add_image") or type(writer).__module__.startswith("wandb"):
                log_captions(writer, checked, trainer.global_step, prefix=self._prefix)


class _TransformersHooks:
    """Log means with intervals and the table to `loggers`, and add the means to the evaluation metrics.

    `loggers` are TensorBoard writers or Weights & Biases runs. `eval_msd`, `eval_msd_match` and others are in the
    result of `trainer.evaluate()` and in `trainer.state.log_history`, so `metric_for_best_model="eval_msd"` works. It
    runs on the first process only, with the model in evaluation mode and without gradients.
    """

    def __init__(self, captions: ValidationCaptions, *, loggers: Sequence[Any] = (), prefix: str = "msd") -> None:
        self._captions, self._loggers, self._prefix = captions, tuple(loggers), prefix

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
        for writer in self._loggers:
            log_scalars(writer, checked.scalars(self._prefix), state.global_step)
            log_captions(writer, checked, state.global_step, prefix=self._prefix)


# By name: the hooks, and module, name and extra of the base class.
_CALLBACKS = {
    "LightningCallback": (_LightningHooks, "pytorch_lightning", "Callback", "lightning"),
    "TransformersCallback": (_TransformersHooks, "transformers", "TrainerCallback", "hf"),
}


def __getattr__(name: str) -> Any:
    """Create a callback class on first use."""
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    hooks, library, base, extra = _CALLBACKS[name]
    bases = (hooks, getattr(require(library, extra=extra), base))
    # Stored under its name, so that it can be pickled.
    return globals().setdefault(name, type(name, bases, {"__doc__": hooks.__doc__, "__module__": __name__}))


def _is_tensorboard(writer: Any) -> bool:
    if not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
        raise ConfigError(f"expected a TensorBoard SummaryWriter or a W&B run, got {type(writer).__name__}")
    return hasattr(writer, "add_scalar")
