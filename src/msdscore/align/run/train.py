"""The training loop: from a recipe and captioned pictures to a folder with a trained aligner."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from msdscore.align.aligner import learning_rate, set_learning_rate
from msdscore.align.data.formats import DataSource, open_pairs
from msdscore.align.data.pairs import Pairs
from msdscore.align.features.batch import TrainingBatch
from msdscore.align.losses.objective import objective
from msdscore.align.processes import World, average_gradients, joined, own_device, tell_all, wait
from msdscore.align.recipe import Recipe
from msdscore.align.repeatable import draw, ordered_sums, seeded
from msdscore.align.retrieval import embed_pairs, retrieval_by_cosine, retrieval_by_local
from msdscore.align.run.checkpoint import save_best, save_checkpoint
from msdscore.align.run.curves import CurvesFile, Logger, open_loggers
from msdscore.align.run.folder import LOCK, prepare_folder, write_card, write_report
from msdscore.align.run.session import Event, Session, TrainOptions, start_session
from msdscore.encoders.aligned.heads import count_parameters
from msdscore.encoders.placement import place
from msdscore.errors import ConfigError, RunError
from msdscore.io.atomic import take_lock

_DEFAULTS = TrainOptions()
_RARELY = 100  # steps between checkpoints at least, where the recipe does not say
_BAD_NAMED = 20  # unreadable pictures that the report names


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
) -> RunReport:
    """Train an aligner into the folder `out`; a killed run goes on with `options.resume` as if nothing had happened.

    Raises:
        RunError: the folder holds another run, or the loss is no number any more.
        ConfigError, InputError, WeightsError: the recipe, the data or a backbone cannot be used.
    """
    if recipe.train.patience and val is None:
        raise ConfigError("train.patience stops on retrieval and needs validation data; give some, or set it to 0")
    device = own_device(place(options.device, "auto").device)
    with ordered_sums(device), joined(device) as world:
        pairs, val_pairs = open_pairs(data), None if val is None else open_pairs(val)
        with _owned(Path(out), world):
            if world.is_first:
                prepare_folder(Path(out), recipe, data=pairs.fingerprint, resume=options.resume)
            wait(world)
            session = start_session(recipe, pairs, Path(out), options, world=world, device=device)
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
        batches = self._s.batches.batches(start * spec.accumulate, self._s.steps * spec.accumulate)
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
        s.aligner.train()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with seeded(draw(s.recipe.seed, "step", step, number, self._world.rank), s.device):
                loss, terms = objective(s.aligner, batch, s.setting)
                (loss / spec.accumulate).backward()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value / spec.accumulate
        self._move()
        return sums

    def _move(self) -> None:
        s, spec = self._s, self._s.recipe.train
        average_gradients(s.aligner.parameters(), self._world)
        if spec.clip:
            torch.nn.utils.clip_grad_norm_(s.aligner.parameters(), spec.clip)
        s.trained.optimiser.step()
        s.aligner.limit_scales()
        s.trained.optimiser.zero_grad(set_to_none=True)
        s.trained.average.update_parameters(s.aligner)

    def _after(self, terms: dict[str, Tensor]) -> None:
        """Tell, evaluate and save after a step, in this order, so that a checkpoint knows its evaluation."""
        s, spec, done = self._s, self._s.recipe.train, self._progress.step
        last = done == s.steps
        judged = self._val is not None and (last or done % (spec.eval_every or s.steps_per_epoch) == 0)
        saved = last or done % (spec.save_every or max(_RARELY, s.steps_per_epoch)) == 0
        if done % spec.log_every == 0 or judged or saved:
            self._tell("step", self._values(terms))
        elif self._options.on_event is not None and self._world.is_first:
            self._options.on_event(Event("step", done, s.steps))
        if self._val is not None and judged:
            self._evaluate(self._val)
        if saved or self._progress.stopped:
            if self._world.is_first:
                save_checkpoint(self._out, s.trained, self._progress, keep=spec.keep)
            wait(self._world)

    def _values(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """What a step is told by. Reading numbers waits for the device, so it is not done at every step.

        Raises:
            RunError: the loss is no number any more.
        """
        s, step = self._s, self._progress.step - 1
        values = dict(zip(terms, torch.stack(list(terms.values())).tolist(), strict=True))
        loss = sum(getattr(s.recipe.loss, name) * value for name, value in values.items())
        if not math.isfinite(loss):
            raise RunError(f"the loss is {loss} at step {step}; lower train.lr, or train in float32")
        return {"loss": loss, **values, "lr": learning_rate(step, steps=s.steps, spec=s.recipe.train)}

    def _evaluate(self, val: Pairs) -> None:
        """Retrieval with the averaged weights; all processes learn the outcome."""
        s, spec = self._s, self._s.recipe.train
        found = 0.0
        if self._world.is_first:
            local = spec.stop_on == "local"
            judged = embed_pairs(val, s.averaged_towers, s.averaged.heads, chunk=spec.tower_batch, local=local)
            cosine = retrieval_by_cosine(judged)
            watched = retrieval_by_local(judged) if local else cosine
            found = watched.mean
            values = {"i2t_r1": cosine.image_to_text[0], "t2i_r1": cosine.text_to_image[0], "watched": found}
            self._tell("evaluation", values)
        found = tell_all(found, self._world, s.device)
        done, before = self._progress.step, self._progress
        if found > before.best:
            self._progress = replace(before, best=found, best_step=done, stale=0)
            if self._world.is_first:
                save_best(self._out, s.trained.average, self._progress)
        else:
            stale = before.stale + 1
            self._progress = replace(before, stale=stale, stopped=bool(spec.patience) and stale >= spec.patience)

    def _tell(self, kind: str, values: dict[str, float]) -> None:
        done, steps = self._progress.step, self._s.steps
        if self._curves is None:
            return
        self._curves.add({"step": done, "kind": kind, **values})
        for logger in self._loggers:
            logger.add(done, {f"{kind}/{name}": value for name, value in values.items()})
        if self._options.on_event is not None:
            self._options.on_event(Event(kind, done, steps, values))

    def _report(self) -> RunReport:
        s, progress, bad = self._s, self._progress, self._s.batches.bad
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
            parameters=count_parameters(s.aligner.heads),
            seconds=time.monotonic() - self._started,
        )
        if self._world.is_first:
            write_report(self._out, asdict(report))
            write_card(self._out, s.recipe, asdict(report))
        return report


@contextmanager
def _owned(run: Path, world: World) -> Iterator[None]:
    """Keep other runs out of the folder; the system lets go of it however this one ends."""
    lock = take_lock(run / LOCK) if world.is_first else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
