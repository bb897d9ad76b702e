"""Resident training of `mini`: the training loop of `msdscore_lab.align` over batches that never leave the device."""

from functools import partial
from pathlib import Path
from typing import cast

import torch

from msdscore_lab.align.batches import Towers
from msdscore_lab.align.objective import Parts
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.repeatable import seeded
from msdscore_lab.align.run.parts import Event, TrainOptions, tower_dims
from msdscore_lab.align.run.train import RunReport
from msdscore_lab.align.run.train import train as train_heads
from msdscore_lab.pairs import DataSource, Pairs
from train_mini.batches import MiniTowers, open_resident
from train_mini.model import MiniAligner, TunedTrunk
from train_mini.recipe import MiniRecipe
from train_mini.terms import TERMS, MiniStep

_DEFAULTS = TrainOptions()


def train(
    recipe: Recipe,
    data: DataSource,
    out: str | Path,
    *,
    cache: str | Path = "",
    val: DataSource | None = None,
    options: TrainOptions = _DEFAULTS,
) -> RunReport:
    """Train `mini` into the folder `out`, see `train_heads`; `cache` has decoded images and prepared texts."""
    parts = partial(assemble, cache=Path(cache) if cache else None)
    return train_heads(recipe, data, out, val=val, options=options, assemble=parts)


def assemble(
    recipe: Recipe, pairs: Pairs, towers: Towers, options: TrainOptions, *, cache: Path | None = None
) -> Parts:
    """Build the parts of a recipe of `mini`: batches on the device, heads with zeros of log-odds, all loss terms."""
    assert isinstance(recipe, MiniRecipe), "passed by `train`"
    image, text = cast(MiniTowers, towers)
    batches = open_resident(
        recipe, pairs, (image, text), workers=options.workers, cache=cache,
        on_progress=lambda done, of: options.on_event(Event("images", done, of)),
    )  # fmt: skip
    tune = recipe.train.tune
    trunk = TunedTrunk(image.network, tune, grid=image.grid) if tune else None
    words, classes = batches.labels.shape[1], batches.objects.shape[1]
    with seeded(recipe.seed, torch.device("cpu")):
        aligner = MiniAligner(recipe, *tower_dims(*towers), words=words, classes=classes, trunk=trunk)
    resident = (batches.batches, batches.per_epoch, batches.bad)
    return Parts(recipe, *resident, aligner, TERMS, step_type=MiniStep)
