"""Everything that one process of a run holds: towers, trainable parts, data, and where it stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch

from msdscore.align.aligner import Aligner, LabelCounts, make_optimiser, moving_average, seeded_aligner
from msdscore.align.data.pairs import Pairs
from msdscore.align.losses.objective import Setting
from msdscore.align.losses.reconstruction import load_language_model
from msdscore.align.processes import World
from msdscore.align.recipe import Recipe
from msdscore.align.resident.towers import device_towers
from msdscore.align.resident.trunk import TunedTrunk
from msdscore.align.run.batches import BatchSource, ReadingOptions, open_batches
from msdscore.align.run.checkpoint import Progress, Trained, checkpoints, restore
from msdscore.align.run.towers import Towers, open_towers, remember_towers, tune_towers


@dataclass(frozen=True, slots=True)
class Event:
    """What a run tells while it works: `kind` is cache, step or evaluation."""

    kind: str
    done: int
    of: int
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How a run is carried out; nothing here changes what it learns, but for `cache_dtype`."""

    device: str = "auto"
    resume: bool = False
    workers: int = 4  # threads that read pictures
    cache: str = ""  # folder of cached features; empty: none
    cache_dtype: str = "float16"
    loggers: tuple[str, ...] = ()
    on_event: Callable[[Event], None] | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One process of a run, ready to go on from `progress`."""

    recipe: Recipe
    setting: Setting
    device: torch.device
    towers: Towers
    aligner: Aligner
    trained: Trained
    batches: BatchSource
    steps: int
    progress: Progress

    @property
    def averaged(self) -> Aligner:
        """The trainable parts with their averaged weights: what is judged and exported."""
        return cast(Aligner, self.trained.average.module)

    @property
    def averaged_towers(self) -> Towers:
        """The towers as they are judged: with averaged weights where the image network is trained too."""
        if self.averaged.trunk is None:
            return self.towers
        return tune_towers(self.towers, self.averaged.trunk.state_dict())

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch, at least one."""
        return max(1, self.batches.per_epoch // self.recipe.train.accumulate)


def start_session(
    recipe: Recipe, pairs: Pairs, run: Path, options: TrainOptions, *, world: World, device: torch.device
) -> Session:
    """Load the frozen parts, make or restore the trainable ones, and make ready to read the data."""
    towers = open_towers(recipe, device)
    known = remember_towers(run, towers, world)
    language = load_language_model(recipe.lm, device=device) if recipe.loss.reconstruction else None
    reading = ReadingOptions(
        workers=options.workers, cache=options.cache, cache_dtype=options.cache_dtype, tell=_teller(options)
    )
    batches = open_batches(recipe, pairs, towers, reading, world=world, device=device)
    width = 0 if language is None else language.width
    labelled = LabelCounts(batches.words, batches.classes)
    aligner = seeded_aligner(recipe, known.image, known.text, language_width=width, labelled=labelled)
    if recipe.train.tune:
        image = device_towers(*towers)[0]
        aligner.trunk = TunedTrunk(image.network, recipe.train.tune, grid=image.grid)
    aligner.to(device)
    trained = Trained(aligner, moving_average(aligner, recipe.train.average), make_optimiser(aligner, recipe.train))
    found = checkpoints(run) if options.resume else []
    progress = restore(found[-1], trained) if found else Progress()
    half = recipe.train.precision == "bfloat16" or (recipe.train.precision == "auto" and device.type == "cuda")
    steps = recipe.train.steps or max(1, round(recipe.train.epochs * batches.per_epoch / recipe.train.accumulate))
    setting = Setting(recipe.loss, world, language, half)
    return Session(recipe, setting, device, towers, aligner, trained, batches, steps, progress)


def _teller(options: TrainOptions) -> Callable[[int, int], None] | None:
    if options.on_event is None:
        return None
    tell = options.on_event
    return lambda done, of: tell(Event("cache", done, of))
