"""Everything that one process of a run holds: towers, trainable parts, data, and where it stands."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from msdscore.align.aligner import Aligner, seeded_aligner
from msdscore.align.cache import CachedFeatures, build_cache, cache_key
from msdscore.align.checkpoint import Progress, Trained, checkpoints, restore
from msdscore.align.features import FeatureSource, LiveFeatures
from msdscore.align.objective import Setting
from msdscore.align.optimise import MovingAverage, make_optimiser
from msdscore.align.pairs import Pairs
from msdscore.align.prefix import load_language_model
from msdscore.align.recipe import Recipe
from msdscore.align.samples import Plan, SampleReader
from msdscore.align.teacher import picture_references
from msdscore.align.world import World, wait
from msdscore.encoders.heads import SideDims
from msdscore.encoders.specs import plain, read_spec
from msdscore.encoders.tower_files import files_sha256
from msdscore.encoders.tower_load import load_towers, tower_dims
from msdscore.encoders.towers import ImageTower, TextTower, TowerPlace
from msdscore.errors import RunError
from msdscore.io.atomic import replacing

TOWERS = "towers.json"
Towers = tuple[ImageTower, TextTower]


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
class KnownTowers:
    """Sizes and weights of the towers that a run was started with; heads fit no others."""

    image: SideDims
    text: SideDims
    image_sha256: str
    text_sha256: str


@dataclass(frozen=True, slots=True)
class Session:
    """One process of a run, ready to go on from `progress`."""

    recipe: Recipe
    setting: Setting
    device: torch.device
    towers: Towers
    aligner: Aligner
    trained: Trained
    source: FeatureSource
    reader: SampleReader
    plan: Plan
    steps: int
    progress: Progress

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch, at least one."""
        return max(1, self.plan.per_epoch // self.recipe.train.accumulate)


def start_session(
    recipe: Recipe, pairs: Pairs, run: Path, options: TrainOptions, *, world: World, device: torch.device
) -> Session:
    """Load the frozen parts, make or restore the trainable ones, cache features where asked."""
    plan = Plan(len(pairs), recipe.train.batch, world.rank, world.size)
    towers = open_towers(recipe, device)
    known = _remember(run, towers, world)
    language = load_language_model(recipe.lm, device=device) if recipe.loss.reconstruction else None
    width = 0 if language is None else language.width
    aligner = seeded_aligner(recipe, known.image, known.text, language_width=width).to(device)
    trained = Trained(aligner, MovingAverage(aligner, recipe.train.average), make_optimiser(aligner, recipe.train))
    found = checkpoints(run) if options.resume else []
    progress = restore(found[-1], trained) if found else Progress()
    source, reader = _sources(recipe, pairs, towers, options, world)
    half = recipe.train.precision == "bfloat16" or (recipe.train.precision == "auto" and device.type == "cuda")
    steps = recipe.train.steps or max(1, round(recipe.train.epochs * plan.per_epoch / recipe.train.accumulate))
    wanted = recipe.loss.wants_relevance
    references = picture_references(pairs, towers[1], chunk=recipe.train.tower_batch) if wanted else None
    setting = Setting(recipe.loss, world, language, half, references)
    return Session(recipe, setting, device, towers, aligner, trained, source, reader, plan, steps, progress)


def open_towers(recipe: Recipe, device: torch.device) -> Towers:
    """The frozen towers of a recipe."""
    where = TowerPlace(device=str(device), whole=recipe.heads.pool == "own")
    return load_towers(recipe.image, recipe.text, where)


def read_known_towers(run: Path) -> KnownTowers:
    """What a run knows of its towers.

    Raises:
        RunError: the folder is not that of a run.
    """
    try:
        return read_spec(KnownTowers, json.loads((run / TOWERS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{run}: has no readable {TOWERS}; give the folder of a run") from error


def _remember(run: Path, towers: Towers, world: World) -> KnownTowers:
    """Write the towers' sizes and hashes at the start of a run, and insist on them later."""
    image, text = tower_dims(*towers)
    known = KnownTowers(image, text, files_sha256(towers[0].files), files_sha256(towers[1].files))
    if (run / TOWERS).is_file() and read_known_towers(run) != known:
        raise RunError(f"{run}: was started with other backbones; resume it with the same weights")
    wait(world)
    if world.is_first:
        with replacing(run / TOWERS) as file:
            file.write(json.dumps(plain(known), indent=2).encode())
    return known


def _sources(
    recipe: Recipe, pairs: Pairs, towers: Towers, options: TrainOptions, world: World
) -> tuple[FeatureSource, SampleReader]:
    live = LiveFeatures(*towers, chunk=recipe.train.tower_batch)
    reader = SampleReader(pairs, recipe)
    if not options.cache:
        return live, reader
    folder = Path(options.cache) / cache_key(recipe, pairs, live, options.cache_dtype)
    if world.is_first:
        tell = _cache_teller(options)
        build_cache(folder, reader, live, dtype=options.cache_dtype, workers=options.workers, tell=tell)
    wait(world)
    cached = CachedFeatures(folder, pairs, live)
    reader = SampleReader(pairs, recipe, cached=cached.usable())
    reader.bad.reasons.update(cached.bad)
    return cached, reader


def _cache_teller(options: TrainOptions) -> Callable[[int, int], None] | None:
    if options.on_event is None:
        return None
    tell = options.on_event
    return lambda done, of: tell(Event("cache", done, of))
