"""Where the batches of a run come from: pictures read by threads when their step comes, or all kept on the device."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.align.data.pairs import Pairs
from msdscore.align.data.samples import BatchPlan, SampleReader, read_batches
from msdscore.align.features.batch import TrainingBatch, make_batch, picture_references
from msdscore.align.features.cache import CachedFeatures, Tell, build_cache, cache_key
from msdscore.align.features.live import FeatureSource, LiveFeatures
from msdscore.align.processes import World, wait
from msdscore.align.recipe import Recipe
from msdscore.align.resident.batches import open_resident
from msdscore.align.resident.towers import device_towers
from msdscore.align.run.towers import Towers
from msdscore.errors import ConfigError


class BatchSource(Protocol):
    """All batches of a run, by number: the same number gives the same batch."""

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""

    @property
    def bad(self) -> Mapping[int, str]:
        """Pictures that could not be read so far, and why."""

    @property
    def words(self) -> int:
        """Words that have labels; 0: none."""

    @property
    def classes(self) -> int:
        """Classes of objects that have labels; 0: none."""

    def batches(self, start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        """Batches by number, from `start` to before `stop`."""


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """Batches whose pictures are read by threads, or whose features are cached."""

    reader: SampleReader
    plan: BatchPlan
    source: FeatureSource
    device: torch.device
    references: Float[Tensor, "pairs dim"] | None
    workers: int

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.plan.per_epoch

    @property
    def bad(self) -> Mapping[int, str]:
        """Pictures that could not be read so far, and why."""
        return self.reader.bad.reasons

    @property
    def words(self) -> int:
        """No word has a label."""
        return 0

    @property
    def classes(self) -> int:
        """No class has a label."""
        return 0

    def batches(self, start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        """Batches by number, from `start` to before `stop`."""
        samples = read_batches(self.reader, self.plan, start=start, stop=stop, workers=self.workers)
        try:
            for some in samples:
                yield make_batch(some, self.source, device=self.device, references=self.references)
        finally:
            samples.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How pictures are read, and where what is made of them is kept."""

    workers: int = 4
    cache: str = ""
    cache_dtype: str = "float16"
    tell: Tell | None = None


def open_batches(
    recipe: Recipe, pairs: Pairs, towers: Towers, options: ReadingOptions, *, world: World, device: torch.device
) -> BatchSource:
    """The batches that a recipe asks for.

    Raises:
        ConfigError: the recipe wants a resident run and the towers or the number of processes do not fit.
    """
    if not recipe.train.resident:
        return _read_batches(recipe, pairs, towers, options, world=world, device=device)
    if world.size > 1:
        raise ConfigError(f"train.resident is for one process, got {world.size}; set it to false for several")
    cache = Path(options.cache) if options.cache else None
    own = device_towers(*towers)
    return open_resident(recipe, pairs, own, workers=options.workers, cache=cache, tell=options.tell)


def _read_batches(
    recipe: Recipe, pairs: Pairs, towers: Towers, options: ReadingOptions, *, world: World, device: torch.device
) -> ReadBatches:
    plan = BatchPlan(len(pairs), recipe.train.batch, world.rank, world.size)
    source, reader = _sources(recipe, pairs, towers, options, world)
    wanted = recipe.loss.wants_relevance
    references = picture_references(pairs, towers[1], chunk=recipe.train.tower_batch) if wanted else None
    return ReadBatches(reader, plan, source, device, references, options.workers)


def _sources(
    recipe: Recipe, pairs: Pairs, towers: Towers, options: ReadingOptions, world: World
) -> tuple[FeatureSource, SampleReader]:
    live = LiveFeatures(towers[0], towers[1], chunk=recipe.train.tower_batch)
    reader = SampleReader(pairs, recipe)
    if not options.cache:
        return live, reader
    folder = Path(options.cache) / cache_key(recipe, pairs, live, options.cache_dtype)
    if world.is_first:
        build_cache(folder, reader, live, dtype=options.cache_dtype, workers=options.workers, tell=options.tell)
    wait(world)
    cached = CachedFeatures(folder, pairs, live)
    reader = SampleReader(pairs, recipe, cached=cached.usable())
    reader.bad.reasons.update(cached.bad)
    return cached, reader
