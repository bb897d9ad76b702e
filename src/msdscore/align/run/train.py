"""The training loop: from a recipe and captioned images to a folder with a trained aligner."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from msdscore.align.aligner import learning_rate, set_learning_rate
from msdscore.align.data.formats import DataSource, Pairs, open_pairs
from msdscore.align.evaluate import embed_pairs, retrieval_by_cosine, retrieval_by_local
from msdscore.align.features import TrainingBatch
from msdscore.align.objective import objective
from msdscore.align.processes import World, average_gradients, broadcast, joined, own_device, wait
from msdscore.align.recipe import Recipe
from msdscore.align.repeatable import draw, ordered_sums, seeded
from msdscore.align.run.checkpoint import save_best, save_checkpoint
from msdscore.align.run.folder import LOCK, CurvesFile, Logger, open_loggers, prepare_folder, write_report
from msdscore.align.run.session import Assemble, Event, Session, TrainOptions, assemble_heads, start_session
from msdscore.encoders.aligned.heads import count_parameters
from msdscore.encoders.backbone import place
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import take_lock

_DEFAULTS = TrainOptions()
_SAVE_EVERY = 100  # least steps between checkpoints, where the recipe does not say
_BAD_NAMED = 20  # unreadable images that the report names


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended; `best` is the mean R@1 that early stopping watches, None where nothing was measured."""

    run: str
    step: int
    steps: int
    stopped_early: bool
    best: float | None
    best_step: int
    pairs: int
    skipped_rows: int
    bad_pictures: int
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

    `assemble` builds what is trained; the default trains heads over frozen towers.

    Raises:
        RunError: the folder holds another run, or the loss is no longer finite.
        ConfigError, InputError, WeightsError: the recipe, the data or a backbone cannot be used.
    """
    if recipe.train.patience and val is None:
        raise ConfigError("train.patience stops on retrieval and needs validation data; give some, or set it to 0")
    if recipe.train.resident and assemble is assemble_heads:
        raise ConfigError(
            f"recipe {recipe.name!r} trains in memory, which the package alone does not: run `python tools/train_mini` "
            "(or `make train-mini`) in the source repository, with the same options"
        )
    device = own_device(place(options.device, "auto").device)
    with ordered_sums(device), joined(device) as world:
        pairs, val_pairs = open_pairs(data), None if val is None else open_pairs(val)
        with _owned(Path(out), world):
            if world.is_first:
                prepare_folder(Path(out), recipe, data=pairs.fingerprint, resume=options.resume)
            wait(world)
            session = start_session(recipe, pairs, Path(out), options, world=world, device=device, assemble=assemble)
            return _Run(session, Path(out), pairs, val_pairs, options).go()


class _Run:
    """The state of one training loop."""

    def __init__(self, session: Session, out: Path, pairs: Pairs, val: Pairs | None, options: TrainOptions) -> None:
        self._s, self._out, self._pairs, self._val, self._options = session, out, pairs, val, options
        self._progress = session.progress
        self._started = time.monotonic()
        self._world: World = session.setting.world
        first = self._world.is_first
        self._curves = CurvesFile(out, step=self._progress.step) if first else None
        self._loggers: list[Logger] = open_loggers(options.loggers, out, session.recipe) if first else []

    def go(self) -> RunReport:
        """All steps that are left, then the report."""
        spec, start = self._s.recipe.train, self._progress.step
        batches = self._s.parts.batches.batches(start * spec.accumulate, self._s.steps * spec.accumulate)
        try:
            for step in range(start, self._s.steps):
                if self._progress.stopped:
                    break
                values = self._step(step, [next(batches) for _ in range(spec.accumulate)])
                self._progress = replace(self._progress, step=step + 1)
                self._after(values)
        finally:
            batches.close()
            for logger in self._loggers:
                logger.close()
        return self._report()

    def _step(self, step: int, batches: Sequence[TrainingBatch]) -> dict[str, Tensor]:
        """One step of the optimiser over all batches that it accumulates; values stay on the device."""
        s, spec = self._s, self._s.recipe.train
        set_learning_rate(s.trained.optimiser, learning_rate(step, steps=s.steps, spec=spec))
        s.trained.module.train()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with seeded(draw(s.recipe.seed, "step", step, number, self._world.rank), s.device):
                loss, terms = objective(s.parts.aligner, batch, s.setting, s.parts.terms)
                (loss / spec.accumulate).backward()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value / spec.accumulate
        self._move()
        return sums

    def _move(self) -> None:
        aligner, trained, spec = self._s.parts.aligner, self._s.trained, self._s.recipe.train
        average_gradients(aligner.parameters(), self._world)
        if spec.clip:
            torch.nn.utils.clip_grad_norm_(aligner.parameters(), spec.clip)
        trained.optimiser.step()
        aligner.limit_scales()
        trained.optimiser.zero_grad(set_to_none=True)
        trained.average.update_parameters(aligner)

    def _after(self, terms: dict[str, Tensor]) -> None:
        """Report, evaluate and save after a step, in this order, so that a checkpoint knows its evaluation."""
        s, spec, done = self._s, self._s.recipe.train, self._progress.step
        last = done == s.steps
        evaluates = self._val is not None and (last or done % (spec.eval_every or s.steps_per_epoch) == 0)
        saves = last or done % (spec.save_every or max(_SAVE_EVERY, s.steps_per_epoch)) == 0
        if done % spec.log_every == 0 or evaluates or saves:
            self._report_values("step", self._values(terms))
        elif self._options.on_event is not None and self._world.is_first:
            self._options.on_event(Event("step", done, s.steps))
        if self._val is not None and evaluates:
            self._evaluate(self._val)
        if saves or self._progress.stopped:
            if self._world.is_first:
                save_checkpoint(self._out, s.trained, self._progress, keep=spec.keep)
            wait(self._world)

    def _values(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """The values that a step reports. Reading them waits for the device, so it is not done at every step.

        Raises:
            RunError: the loss is no longer finite.
        """
        s, step = self._s, self._progress.step - 1
        values = dict(zip(terms, torch.stack(list(terms.values())).tolist(), strict=True))
        loss = sum(getattr(s.recipe.loss, name) * value for name, value in values.items())
        if not math.isfinite(loss):
            raise RunError(f"the loss is {loss} at step {step}; lower train.lr, or train in float32")
        return {"loss": loss, **values, "lr": learning_rate(step, steps=s.steps, spec=s.recipe.train)}

    def _evaluate(self, val: Pairs) -> None:
        """Retrieval with the averaged weights; all processes get the result."""
        s, spec = self._s, self._s.recipe.train
        recall = 0.0
        if self._world.is_first:
            local = spec.stop_on == "local"
            embedded = embed_pairs(val, s.averaged_towers, s.averaged.heads, chunk=spec.tower_batch, local=local)
            cosine = retrieval_by_cosine(embedded)
            recall = (retrieval_by_local(embedded) if local else cosine).mean
            values = {"i2t_r1": cosine.image_to_text[0], "t2i_r1": cosine.text_to_image[0], "watched": recall}
            self._report_values("evaluation", values)
        recall = broadcast(recall, self._world, s.device)
        before = self._progress
        if recall > before.best:
            self._progress = replace(before, best=recall, best_step=before.step, stale=0)
            if self._world.is_first:
                save_best(self._out, s.trained.average, self._progress)
        else:
            stale = before.stale + 1
            self._progress = replace(before, stale=stale, stopped=bool(spec.patience) and stale >= spec.patience)

    def _report_values(self, kind: str, values: dict[str, float]) -> None:
        done, steps = self._progress.step, self._s.steps
        if self._curves is None:
            return
        self._curves.add({"step": done, "kind": kind, **values})
        for logger in self._loggers:
            logger.add(done, {f"{kind}/{name}": value for name, value in values.items()})
        if self._options.on_event is not None:
            self._options.on_event(Event(kind, done, steps, values))

    def _report(self) -> RunReport:
        s, progress, bad = self._s, self._progress, self._s.parts.batches.bad
        report = RunReport(
            run=str(self._out),
            step=progress.step,
            steps=s.steps,
            stopped_early=progress.stopped,
            best=progress.best if progress.best >= 0 else None,
            best_step=progress.best_step,
            pairs=len(self._pairs),
            skipped_rows=self._pairs.skipped,
            bad_pictures=len(bad),
            bad_reasons=tuple(bad[item] for item in sorted(bad)[:_BAD_NAMED]),
            parameters=count_parameters(s.parts.aligner.heads),
            seconds=time.monotonic() - self._started,
        )
        if self._world.is_first:
            write_report(self._out, s.recipe, asdict(report))
        return report


@contextmanager
def _owned(run: Path, world: World) -> Iterator[None]:
    """Lock the folder against other runs; the system releases the lock however this one ends."""
    lock = take_lock(run / LOCK) if world.is_first else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
