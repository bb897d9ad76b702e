"""The training loop: from a recipe and captioned images to a folder with a trained aligner."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from msdscore.errors import ConfigError, RunError
from msdscore.io.runs import take_lock
from msdscore_lab.align.aligner import Aligner, learning_rate, make_optimiser, moving_average
from msdscore_lab.align.batches import TrainingBatch
from msdscore_lab.align.evaluate import measure_retrieval
from msdscore_lab.align.objective import objective
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.repeatable import deterministic_kernels, draw, seeded
from msdscore_lab.align.run.folder import (
    LOCK,
    REPORT,
    TOWERS,
    KnownTowers,
    Progress,
    checkpoints,
    open_curves,
    prepare_folder,
    read_known_towers,
    restore,
    save_best,
    save_checkpoint,
    tensors_of,
    write_text,
)
from msdscore_lab.align.run.parts import (
    Assemble,
    Event,
    TrainOptions,
    assemble_heads,
    open_towers,
    tower_dims,
    tune_towers,
)
from msdscore_lab.pairs import DataSource, Pairs, open_pairs
from msdscore_torch.aligned.towers import plain
from msdscore_torch.backbone import place
from msdscore_torch.hub import files_sha256

_DEFAULTS = TrainOptions()
_SAVE_EVERY = 100  # minimum number of steps between checkpoints, unless set in the recipe
_MAX_BAD_IMAGES = 20  # unreadable images listed in the report


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
    device = place(options.device, "auto").device
    with deterministic_kernels(device), ExitStack() as stack:
        pairs, val_pairs = open_pairs(data), None if val is None else open_pairs(val)
        # Lock the folder against other runs; released by the operating system if this one is killed.
        stack.callback(take_lock(Path(out) / LOCK).release)
        prepare_folder(Path(out), recipe, data=pairs.fingerprint, resume=options.resume)
        return Session(recipe, pairs, Path(out), options, device=device, assemble=assemble).run(val_pairs)


class Session:
    """A training run: frozen and trainable parts, and the loop from `progress` to the last step."""

    def __init__(
        self,
        recipe: Recipe,
        pairs: Pairs,
        out: Path,
        options: TrainOptions,
        *,
        device: torch.device,
        assemble: Assemble = assemble_heads,
    ) -> None:
        """Load the frozen parts, create or restore the trainable ones, and open the data."""
        self.recipe, self.pairs, self.out, self.options = recipe, pairs, out, options
        self.device, self.towers = device, open_towers(recipe, device)
        hashes = (files_sha256(tower.files) for tower in self.towers)
        towers = KnownTowers(*tower_dims(*self.towers), *hashes)
        if (out / TOWERS).is_file() and read_known_towers(out) != towers:
            raise RunError(f"{out}: was started with other backbones; resume it with the same weights")
        write_text(out / TOWERS, json.dumps(plain(towers), indent=2))
        spec, self.parts = recipe.train, assemble(recipe, pairs, self.towers, options)
        aligner = self.parts.aligner.to(device)
        self.average, self.optimiser = moving_average(aligner, spec.average), make_optimiser(aligner, spec)
        saved = checkpoints(out) if options.resume else []
        self.progress = restore(saved[-1], self.average, aligner, self.optimiser) if saved else Progress()
        self.steps = spec.steps or max(1, round(spec.epochs * self.parts.per_epoch / spec.accumulate))
        self._add_to_curves = open_curves(out, step=self.progress.step)

    def run(self, val: Pairs | None) -> RunReport:
        """Run the remaining steps with evaluations on `val`, then return the report."""
        started, accumulate, start = time.monotonic(), self.recipe.train.accumulate, self.progress.step
        with closing(self.parts.batches(start * accumulate, self.steps * accumulate)) as batches:
            for step in range(start, self.steps):
                if self.progress.stopped:
                    break
                terms = self._step(step, [next(batches) for _ in range(accumulate)])
                self.progress = replace(self.progress, step=step + 1)
                self._after_step(terms, val)
        return self._report(time.monotonic() - started)

    def _step(self, step: int, batches: Sequence[TrainingBatch]) -> dict[str, Tensor]:
        """Run one optimiser step over the accumulated batches; the returned loss terms stay on the device."""
        spec, aligner, optimiser = self.recipe.train, self.parts.aligner, self.optimiser
        rate = learning_rate(step, steps=self.steps, spec=spec)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["lr_factor"]
        aligner.train()
        sums: dict[str, Tensor] = {}
        for index, batch in enumerate(batches):
            # The last number was the rank of a process: with it, a recipe trains the same weights as before.
            with seeded(draw(self.recipe.seed, "step", step, index, 0), self.device):
                loss, terms = objective(self.parts, batch)
                (loss / spec.accumulate).backward()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value / spec.accumulate
        if spec.clip:
            torch.nn.utils.clip_grad_norm_(aligner.parameters(), spec.clip)
        optimiser.step()
        aligner.limit_scales()
        optimiser.zero_grad(set_to_none=True)
        self.average.update_parameters(aligner)
        return sums

    def _after_step(self, terms: dict[str, Tensor], val: Pairs | None) -> None:
        """Report, evaluate and save after a step, in this order, so that a checkpoint includes its evaluation.

        Reading the loss synchronises with the device, so it is not read at every step.

        Raises:
            RunError: If the loss is no longer finite.
        """
        spec, done = self.recipe.train, self.progress.step
        last, epoch = done == self.steps, max(1, self.parts.per_epoch // spec.accumulate)
        evaluates = val is not None and (last or done % (spec.eval_every or epoch) == 0)
        saves = last or done % (spec.save_every or max(_SAVE_EVERY, epoch)) == 0
        if done % spec.log_every == 0 or evaluates or saves:
            values = dict(zip(terms, torch.stack(list(terms.values())).tolist(), strict=True))
            loss = sum(self.recipe.loss.weights[name] * value for name, value in values.items())
            if not math.isfinite(loss):
                raise RunError(f"the loss is {loss} at step {done - 1}; lower train.lr, or train in float32")
            rate = learning_rate(done - 1, steps=self.steps, spec=spec)
            self._log("step", {"loss": loss, **values, "lr": rate})
        else:
            self.options.on_event(Event("step", done, self.steps))
        if val is not None and evaluates:
            self._evaluate(val)
        if saves or self.progress.stopped:
            aligner = self.parts.aligner
            save_checkpoint(self.out, self.average, aligner, self.optimiser, self.progress, keep=spec.keep)

    def _evaluate(self, val: Pairs) -> None:
        """Measure retrieval with the averaged weights."""
        spec, previous, averaged = self.recipe.train, self.progress, cast(Aligner, self.average.module)
        towers = tune_towers(self.towers, tensors_of("trunk", averaged.state_dict()))
        found = measure_retrieval(val, towers, averaged.heads, chunk=spec.tower_batch)
        self._log("evaluation", {"i2t_r1": found.image_to_text[0], "t2i_r1": found.text_to_image[0]})
        if found.mean > previous.best:
            self.progress = replace(previous, best=found.mean, best_step=previous.step, stale=0)
            save_best(self.out, self.average, self.progress)
        else:
            stale = previous.stale + 1
            self.progress = replace(previous, stale=stale, stopped=bool(spec.patience) and stale >= spec.patience)

    def _log(self, kind: str, values: dict[str, float]) -> None:
        done = self.progress.step
        self._add_to_curves({"step": done, "kind": kind, **values})
        self.options.on_event(Event(kind, done, self.steps, values))

    def _report(self, seconds: float) -> RunReport:
        progress, bad = self.progress, self.parts.bad
        report = RunReport(
            run=str(self.out),
            step=progress.step,
            steps=self.steps,
            stopped_early=progress.stopped,
            best=progress.best if progress.best >= 0 else None,
            best_step=progress.best_step,
            pairs=len(self.pairs),
            skipped_rows=self.pairs.skipped,
            bad_images=len(bad),
            bad_reasons=tuple(bad[item] for item in sorted(bad)[:_MAX_BAD_IMAGES]),
            parameters=sum(weight.numel() for weight in self.parts.aligner.heads.parameters() if weight.requires_grad),
            seconds=seconds,
        )
        write_text(self.out / REPORT, json.dumps(asdict(report), indent=2) + "\n")
        return report
