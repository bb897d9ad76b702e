"""The training loop: from a recipe and captioned images to a folder with a trained aligner."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from msdscore.encoders.backbone import place
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import take_lock
from msdscore.lab.align.aligner import Aligner, learning_rate, set_learning_rate
from msdscore.lab.align.data.formats import DataSource, Pairs, open_pairs
from msdscore.lab.align.evaluate import measure_retrieval
from msdscore.lab.align.features import TrainingBatch
from msdscore.lab.align.objective import objective
from msdscore.lab.align.processes import average_gradients, broadcast, joined, own_device, wait
from msdscore.lab.align.recipe import Recipe
from msdscore.lab.align.repeatable import draw, ordered_sums, seeded
from msdscore.lab.align.run.folder import (
    LOCK,
    open_curves,
    open_logger,
    prepare_folder,
    save_best,
    save_checkpoint,
    tensors_of,
    write_report,
)
from msdscore.lab.align.run.session import (
    Assemble,
    Event,
    Session,
    TrainOptions,
    assemble_heads,
    start_session,
    tune_towers,
)

_DEFAULTS = TrainOptions()
_SAVE_EVERY = 100  # least steps between checkpoints, unless set in the recipe
_BAD_NAMED = 20  # unreadable images that the report names


@dataclass(frozen=True, slots=True)
class RunReport:
    """Outcome of a run; `best` is the best mean R@1, the criterion of early stopping, or None without evaluation."""

    run: str
    step: int
    steps: int
    stopped_early: bool
    best: float | None
    best_step: int
    pairs: int
    skipped_rows: int
    bad_images: int
    bad_reasons: tuple[str, ...]
    parameters: int
    seconds: float


def train(
    recipe: Recipe,
    data: DataSource,
    out: str | Path,
    *,
    val: DataSource | None = None,
    options: TrainOptions = _DEFAULTS,
    assemble: Assemble = assemble_heads,
) -> RunReport:
    """Train an aligner into the folder `out`; a killed run resumes with `options.resume` to the same weights.

    `assemble` builds the trainable parts; the default trains heads over frozen towers.

    Raises:
        RunError: If the folder has another run, or the loss is no longer finite.
        ConfigError, InputError, WeightsError: If the recipe, the data or a backbone cannot be used.
    """
    if recipe.train.patience and val is None:
        raise ConfigError("train.patience needs validation data for early stopping; pass it, or set train.patience=0")
    device = own_device(place(options.device, "auto").device)
    with ordered_sums(device), joined(device) as world, ExitStack() as stack:
        pairs, val_pairs = open_pairs(data), None if val is None else open_pairs(val)
        if world.is_first:  # locks the folder against other runs; the system releases it however this one ends
            stack.callback(take_lock(Path(out) / LOCK).release)
            prepare_folder(Path(out), recipe, data=pairs.fingerprint, resume=options.resume)
        wait(world)
        session = start_session(recipe, pairs, Path(out), options, world=world, device=device, assemble=assemble)
        return _Run(session, Path(out), pairs, val_pairs, options).go()


class _Run:
    """The state of one training loop."""

    def __init__(self, session: Session, out: Path, pairs: Pairs, val: Pairs | None, options: TrainOptions) -> None:
        self._s, self._out, self._pairs, self._val, self._options = session, out, pairs, val, options
        self._progress, self._world = session.progress, session.setting.world
        self._started = time.monotonic()
        self._curves = open_curves(out, step=self._progress.step) if self._world.is_first else None
        self._loggers: list[Callable[[Mapping[str, float], int], None]] = []

    def go(self) -> RunReport:
        """Run the remaining steps, then return the report."""
        s, each, start = self._s, self._s.recipe.train.accumulate, self._progress.step
        with ExitStack() as stack:
            if self._world.is_first:
                self._loggers += [open_logger(name, self._out, s.recipe, stack) for name in self._options.loggers]
            batches = stack.enter_context(closing(s.parts.batches(start * each, s.steps * each)))
            for step in range(start, s.steps):
                if self._progress.stopped:
                    break
                terms = self._step(step, [next(batches) for _ in range(each)])
                self._progress = replace(self._progress, step=step + 1)
                self._after(terms)
        return self._report()

    def _step(self, step: int, batches: Sequence[TrainingBatch]) -> dict[str, Tensor]:
        """Run one step of the optimiser over all accumulated batches; values stay on the device."""
        s, spec, aligner, optimiser = self._s, self._s.recipe.train, self._s.parts.aligner, self._s.optimiser
        set_learning_rate(optimiser, learning_rate(step, steps=s.steps, spec=spec))
        aligner.train()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with seeded(draw(s.recipe.seed, "step", step, number, self._world.rank), s.device):
                loss, terms = objective(aligner, batch, s.setting, s.parts.terms, s.parts.step_type)
                (loss / spec.accumulate).backward()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value / spec.accumulate
        average_gradients(aligner.parameters(), self._world)
        if spec.clip:
            torch.nn.utils.clip_grad_norm_(aligner.parameters(), spec.clip)
        optimiser.step()
        aligner.limit_scales()
        optimiser.zero_grad(set_to_none=True)
        s.average.update_parameters(aligner)
        return sums

    def _after(self, terms: dict[str, Tensor]) -> None:
        """Report, evaluate and save after a step, in this order, so that a checkpoint knows its evaluation.

        Reading the values of a step waits for the device, so it is not done at every step.

        Raises:
            RunError: If the loss is no longer finite.
        """
        s, spec, done = self._s, self._s.recipe.train, self._progress.step
        last = done == s.steps
        evaluates = self._val is not None and (last or done % (spec.eval_every or s.steps_per_epoch) == 0)
        saves = last or done % (spec.save_every or max(_SAVE_EVERY, s.steps_per_epoch)) == 0
        if done % spec.log_every == 0 or evaluates or saves:
            values = dict(zip(terms, torch.stack(list(terms.values())).tolist(), strict=True))
            loss = sum(s.recipe.loss.weights[name] * value for name, value in values.items())
            if not math.isfinite(loss):
                raise RunError(f"the loss is {loss} at step {done - 1}; lower train.lr, or train in float32")
            rate = learning_rate(done - 1, steps=s.steps, spec=spec)
            self._tell("step", {"loss": loss, **values, "lr": rate})
        elif self._options.on_event is not None and self._world.is_first:
            self._options.on_event(Event("step", done, s.steps))
        if self._val is not None and evaluates:
            self._evaluate(self._val)
        if saves or self._progress.stopped:
            if self._world.is_first:
                save_checkpoint(self._out, s.average, s.parts.aligner, s.optimiser, self._progress, keep=spec.keep)
            wait(self._world)

    def _evaluate(self, val: Pairs) -> None:
        """Measure retrieval with the averaged weights; all processes get the result."""
        s, spec, before, recall = self._s, self._s.recipe.train, self._progress, 0.0
        if self._world.is_first:
            averaged = cast(Aligner, s.average.module)
            towers = tune_towers(s.towers, tensors_of("trunk", averaged.state_dict()))
            cosine, local = measure_retrieval(
                val, towers, averaged.heads, chunk=spec.tower_batch, local=spec.stop_on == "local"
            )
            recall = (local or cosine).mean
            values = {"i2t_r1": cosine.image_to_text[0], "t2i_r1": cosine.text_to_image[0], "watched": recall}
            self._tell("evaluation", values)
        recall = broadcast(recall, self._world, s.device)
        if recall > before.best:
            self._progress = replace(before, best=recall, best_step=before.step, stale=0)
            if self._world.is_first:
                save_best(self._out, s.average, self._progress)
        else:
            stale = before.stale + 1
            self._progress = replace(before, stale=stale, stopped=bool(spec.patience) and stale >= spec.patience)

    def _tell(self, kind: str, values: dict[str, float]) -> None:
        if self._curves is None:
            return
        done = self._progress.step
        self._curves({"step": done, "kind": kind, **values})
        for add in self._loggers:
            add({f"{kind}/{name}": value for name, value in values.items()}, done)
        if self._options.on_event is not None:
            self._options.on_event(Event(kind, done, self._s.steps, values))

    def _report(self) -> RunReport:
        s, progress, bad = self._s, self._progress, self._s.parts.bad
        report = RunReport(
            run=str(self._out),
            step=progress.step,
            steps=s.steps,
            stopped_early=progress.stopped,
            best=progress.best if progress.best >= 0 else None,
            best_step=progress.best_step,
            pairs=len(self._pairs),
            skipped_rows=self._pairs.skipped,
            bad_images=len(bad),
            bad_reasons=tuple(bad[item] for item in sorted(bad)[:_BAD_NAMED]),
            parameters=sum(own.numel() for own in s.parts.aligner.heads.parameters() if own.requires_grad),
            seconds=time.monotonic() - self._started,
        )
        if self._world.is_first:
            write_report(self._out, s.recipe, asdict(report))
        return report
