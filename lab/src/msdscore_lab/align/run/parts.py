"""Options of a run and its parts: towers, the trainable module, and batches."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from msdscore.encoders.base import Features
from msdscore_lab.align.aligner import Aligner
from msdscore_lab.align.data.samples import SampleReader, check_batch, read_batches
from msdscore_lab.align.features import CachedFeatures, TowerFeatures, TrainingBatch, build_cache, cache_key, make_batch
from msdscore_lab.align.language import load_language_model
from msdscore_lab.align.objective import TERMS, Parts
from msdscore_lab.align.processes import World, wait
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.repeatable import seeded
from msdscore_lab.pairs import Pairs
from msdscore_torch.aligned.encoder import load_towers
from msdscore_torch.aligned.heads import SideDims
from msdscore_torch.aligned.lite2 import Lite2Images
from msdscore_torch.aligned.towers import ImageTower, TextTower, TowerOptions

Towers = tuple[ImageTower, TextTower]


@dataclass(frozen=True, slots=True)
class Event:
    """Progress of a run: `kind` is cache, step or evaluation."""

    kind: str
    done: int
    of: int
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Execution options of a run; only `cache_dtype` changes the result."""

    device: str = "auto"
    resume: bool = False
    workers: int = 4  # threads that read images
    cache: str = ""  # folder of cached features; empty: none
    cache_dtype: str = "float16"
    loggers: tuple[str, ...] = ()
    on_event: Callable[[Event], None] = lambda event: None

    def on_cached(self, done: int, of: int) -> None:
        """Report the progress of a cache as an event."""
        self.on_event(Event("cache", done, of))


def open_towers(recipe: Recipe, device: torch.device) -> Towers:
    """Load the frozen towers of a recipe."""
    # One window per caption, so that the features of mini can be cached by caption.
    long_text = "cut" if recipe.text.kind == "mini" else "window"
    options = TowerOptions(device=str(device), whole=recipe.heads.pool == "own", long_text=long_text)
    return load_towers(recipe.image, recipe.text, options)


def tune_towers(towers: Towers, tensors: Mapping[str, Tensor]) -> Towers:
    """Replace tensors of the image network; without tensors the towers are unchanged."""
    if not tensors:
        return towers
    image, text = towers
    if not isinstance(image, Lite2Images):
        raise AssertionError("only the image network of mini can be tuned")
    return image.tuned(tensors), text


Assemble = Callable[[Recipe, Pairs, Towers, TrainOptions, World], Parts]


def assemble_heads(recipe: Recipe, pairs: Pairs, towers: Towers, options: TrainOptions, world: World) -> Parts:
    """Build the parts of a recipe over frozen towers: heads, and trainable parts of the loss.

    Images are read by threads; with `options.cache` the frozen features are computed first.
    """
    spec = recipe.train
    language = load_language_model(recipe.lm, device=towers[0].device) if recipe.loss.reconstruction else None
    check_batch(spec.batch, len(pairs), world)
    source, reader = TowerFeatures(*towers, spec.tower_batch), SampleReader(pairs, recipe)
    if options.cache:
        dtype = options.cache_dtype
        folder = Path(options.cache) / cache_key(recipe, pairs, source, dtype)
        if world.is_first:
            build_cache(folder, reader, source, dtype=dtype, workers=options.workers, on_progress=options.on_cached)
        wait(world)
        source = cached = CachedFeatures(folder, pairs, source)
        reader = SampleReader(pairs, recipe, cached=frozenset(range(len(pairs))) - cached.bad.keys())
        reader.bad.update(cached.bad)

    def batches(start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        with closing(read_batches(reader, start=start, stop=stop, workers=options.workers, world=world)) as samples:
            for part in samples:
                yield make_batch(part, source, device=source.image.device)

    with seeded(recipe.seed, torch.device("cpu")):
        aligner = Aligner(recipe, *tower_dims(*towers), language_width=0 if language is None else language.width)
    return Parts(recipe, world, batches, len(pairs) // spec.batch, reader.bad, aligner, TERMS, language)


def tower_dims(image: ImageTower, text: TextTower) -> tuple[SideDims, SideDims]:
    """Return the feature sizes of both towers."""

    def dims(features: Features) -> SideDims:
        parts = (features.points, None if features.whole is None else features.whole.points, features.pooled)
        return SideDims(*(0 if part is None else part.shape[-1] for part in parts))

    grey = image.prepare(Image.new("RGB", (64, 64), "grey"))
    return dims(image.features([grey])), dims(text.features(["a photo of a dog"]))
