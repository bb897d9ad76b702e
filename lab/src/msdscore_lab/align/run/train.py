"""The training loop: from a recipe and captioned images to a folder with a trained aligner."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from msdscore.errors import ConfigError, RunError
from msdscore.io.runs import take_lock
from msdscore_lab.align.aligner import Aligner, learning_rate, make_optimiser, moving_average
from msdscore_lab.align.batches import TrainingBatch
from msdscore_lab.align.evaluate import measure_retrieval
from msdscore_lab.align.objective import objective
from msdscore_lab.align.processes import World, average_gradients, broadcast, local_device, process_group, wait
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
    device = local_device(place(options.device, "auto").device)
    with deterministic_kernels(device), process_group(device) as world, ExitStack() as stack:
        pairs, val_pairs = open_pairs(data), None if val is None else open_pairs(val)
        if world.is_first:  # lock the folder against other runs; released by the operating system if this one is killed
            stack.callback(take_lock(Path(out) / LOCK).release)
            prepare_folder(Path(out), recipe, data=pairs.fingerprint, resume=options.resume)
        wait(world)
        session = Session(recipe, pairs, Path(out), options, world=world, device=device, assemble=assemble)
        return session.run(val_pairs)


class Session:
    """One process of a training run: frozen and trainable parts, and the loop from `progress` to the last step."""

    def __init__(
        self,
        recipe: Recipe,
        pairs: Pairs,
        out: Path,
        options: TrainOptions,
        *,
        world: World,
        device: torch.device,
        assemble: Assemble = assemble_heads,
    ) -> None:
        """Load the frozen parts, create or restore the trainable ones, and open the data."""
        self.recipe, self.pairs, self.out, self.options = recipe, pairs, out, options
        self.world, self.device, self.towers = world, device, open_towers(recipe, device)
        hashes = (files_sha256(tower.files) for tower in self.towers)
        towers = KnownTowers(*tower_dims(*self.towers), *hashes)
        if (out / TOWERS).is_file() and read_known_towers(out) != towers:
            raise RunError(f"{out}: was started with other backbones; resume it with the same weights")
        wait(world)
        if world.is_first:
            write_text(out / TOWERS, json.dumps(plain(towers), indent=2))
        spec, self.parts = recipe.train, assemble(recipe, pairs, self.towers, options, world)
        aligner = self.parts.aligner.to(device)
        self.average, self.optimiser = moving_average(aligner, spec.average), make_optimiser(aligner, spec)
        saved = checkpoints(out) if options.resume else []
        self.progress = restore(saved[-1], self.average, aligner, self.optimiser) if saved else Progress()
        self.steps = spec.steps or max(1, round(spec.epochs * self.parts.per_epoch / spec.accumulate))
        # Only the first process reports.
        self._curves: Callable[[Mapping[str, Any]], None] | None = None

    def run(self, val: Pairs | None) -> RunReport:
        """Run the remaining steps with evaluations on `val`, then return the report."""
        started, accumulate, start = time.monotonic(), self.recipe.train.accumulate, self.progress.step
        if self.world.is_first:
            self._curves = open_curves(self.out, step=start)
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
            with seeded(draw(self.recipe.seed, "step", step, index, self.world.rank), self.device):
                loss, terms = objective(self.parts, batch)
                (loss / spec.accumulate).backward()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value / spec.accumulate
        average_gradients(aligner.parameters(), self.world)
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
        elif self.world.is_first:
            self.options.on_event(Event("step", done, self.steps))
        if val is not None and evaluates:
            self._evaluate(val)
        if saves or self.progress.stopped:
            if self.world.is_first:
                aligner = self.parts.aligner
                save_checkpoint(self.out, self.average, aligner, self.optimiser, self.progress, keep=spec.keep)
            wait(self.world)

    def _evaluate(self, val: Pairs) -> None:
        """Measure retrieval with the averaged weights; all processes get the result."""
        spec, previous, recall = self.recipe.train, self.progress, 0.0
        if self.world.is_first:
            averaged = cast(Aligner, self.average.module)
            towers = tune_towers(self.towers, tensors_of("trunk", averaged.state_dict()))
            found = measure_retrieval(val, towers, averaged.heads, chunk=spec.tower_batch)
            recall, values = found.mean, {"i2t_r1": found.image_to_text[0], "t2i_r1": found.text_to_image[0]}
            self._log("evaluation", values)
        recall = broadcast(recall, self.world, self.device)
        if recall > previous.best:
            self.progress = replace(previous, best=recall, best_step=previous.step, stale=0)
            if self.world.is_first:
                save_best(self.out, self.average, self.progress)
        else:
            stale = previous.stale + 1
            self.progress = replace(previous, stale=stale, stopped=bool(spec.patience) and stale >= spec.patience)

    def _log(self, kind: str, values: dict[str, float]) -> None:
        if self._curves is None:
            return
        done = self.progress.step
        self._curves({"step": done, "kind": kind, **values})
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
        if self.world.is_first:
            write_text(self.out / REPORT, json.dumps(asdict(report), indent=2) + "\n")
        return report
