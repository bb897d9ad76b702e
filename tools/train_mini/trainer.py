"""Resident training of `mini`: the training loop of `msdscore.lab.align` over batches that never leave the device."""

from pathlib import Path

import torch

from msdscore.encoders.mini.lite2 import STAGES
from msdscore.encoders.mini.towers import Lite2Images, MiniLMTexts
from msdscore.errors import ConfigError
from msdscore.lab.align.data.formats import DataSource, Pairs
from msdscore.lab.align.processes import World
from msdscore.lab.align.recipe import Recipe
from msdscore.lab.align.repeatable import seeded
from msdscore.lab.align.run.session import Parts, Towers, TrainOptions, tower_dims
from msdscore.lab.align.run.train import RunReport
from msdscore.lab.align.run.train import train as train_heads
from train_mini.batches import MiniTowers, open_resident
from train_mini.model import MiniAligner, TunedTrunk
from train_mini.terms import TERMS

_DEFAULTS = TrainOptions()


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that resident training cannot carry out.

    Raises:
        ConfigError: with the setting to change.
    """
    loss, spec, sample = recipe.loss, recipe.train, recipe.sample
    if not spec.resident:
        raise ConfigError("expected a recipe with train.resident = true; train others with `msdscore align train`")
    if loss.reconstruction:
        raise ConfigError("train.resident has no reconstruction; set loss.reconstruction=0 or train.resident=false")
    if spec.tune > len(STAGES):
        raise ConfigError(f"train.tune must lie between 0 and {len(STAGES)} stages, got {spec.tune}")
    if loss.objects and not loss.evidence:
        raise ConfigError("loss.objects shares the line of loss.evidence; set loss.evidence too")
    if sample.captions != 2:
        raise ConfigError(f"train.resident shows two captions of each image, got {sample.captions}")
    if spec.batch % sample.group:
        raise ConfigError(f"train.batch {spec.batch} must be a multiple of sample.group {sample.group}")


def mini_towers(towers: Towers) -> MiniTowers:
    """The same towers, if they can read from the device.

    Raises:
        ConfigError: one of them cannot.
    """
    image, text = towers
    if not isinstance(image, Lite2Images) or not isinstance(text, MiniLMTexts):
        raise ConfigError("train.resident needs towers of kind 'mini'; set it to false for others")
    return image, text


def assemble(recipe: Recipe, pairs: Pairs, towers: Towers, options: TrainOptions, world: World) -> Parts:
    """The parts of a resident recipe: batches on the device, heads with zeros of log-odds, all terms of the loss."""
    if world.size > 1:
        raise ConfigError(f"train.resident is for one process, got {world.size}; set it to false for several")
    own = mini_towers(towers)
    cache = Path(options.cache) if options.cache else None
    batches = open_resident(recipe, pairs, own, workers=options.workers, cache=cache, on_progress=options.on_cached)
    tune = recipe.train.tune
    trunk = TunedTrunk(own[0].network, tune, grid=own[0].grid) if tune else None
    words, classes = batches.labels.shape[1], batches.objects.shape[1]
    with seeded(recipe.seed, torch.device("cpu")):
        aligner = MiniAligner(recipe, *tower_dims(*towers), words=words, classes=classes, trunk=trunk)
    return Parts(batches.batches, batches.per_epoch, batches.bad, aligner, TERMS)


def train(
    recipe: Recipe,
    data: DataSource,
    out: str | Path,
    *,
    val: DataSource | None = None,
    options: TrainOptions = _DEFAULTS,
) -> RunReport:
    """Train `mini` into the folder `out`, as `msdscore.lab.align.run.train.train` does with other recipes."""
    check_recipe(recipe)
    return train_heads(recipe, data, out, val=val, options=options, assemble=assemble)
