"""Options of a run and its parts: towers, the trainable module, and batches."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from msdscore_lab.align.aligner import Aligner
from msdscore_lab.align.batches import (
    SampleReader,
    Towers,
    TrainingBatch,
    check_batch,
    make_batch,
    read_batches,
)
from msdscore_lab.align.language import load_language_model
from msdscore_lab.align.objective import TERMS, Parts
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.repeatable import seeded
from msdscore_lab.pairs import Pairs
from msdscore_torch.aligned.encoder import load_towers
from msdscore_torch.aligned.heads import SideDims
from msdscore_torch.aligned.lite2_images import Lite2Images
from msdscore_torch.aligned.towers import ImageTower, TextTower, TowerOptions
from msdscore_torch.tensors import Features


@dataclass(frozen=True, slots=True)
class Event:
    """Progress of a run: `kind` is step or evaluation."""

    kind: str
    done: int
    of: int
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Execution options of a run."""

    device: str = "auto"
    resume: bool = False
    workers: int = 4  # threads that read images
    on_event: Callable[[Event], None] = lambda event: None


def open_towers(recipe: Recipe, device: torch.device) -> Towers:
    """Load the frozen towers of a recipe."""
    # The trainer of mini reads captions in one window.
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


Assemble = Callable[[Recipe, Pairs, Towers, TrainOptions], Parts]


def assemble_heads(recipe: Recipe, pairs: Pairs, towers: Towers, options: TrainOptions) -> Parts:
    """Build the parts of a recipe over frozen towers: heads, a visual prefix, and batches that threads read."""
    spec = recipe.train
    language = load_language_model(recipe.lm, device=towers[0].device) if recipe.loss.reconstruction else None
    check_batch(spec.batch, len(pairs))
    reader = SampleReader(pairs, recipe)

    def batches(start: int, stop: int) -> Generator[TrainingBatch, None, None]:
        with closing(read_batches(reader, start=start, stop=stop, workers=options.workers)) as samples:
            for part in samples:
                yield make_batch(part, towers, chunk=spec.tower_batch)

    with seeded(recipe.seed, torch.device("cpu")):
        aligner = Aligner(recipe, *tower_dims(*towers), language_width=0 if language is None else language.width)
    return Parts(recipe, batches, len(pairs) // spec.batch, reader.bad, aligner, TERMS, language)


def tower_dims(image: ImageTower, text: TextTower) -> tuple[SideDims, SideDims]:
    """Return the feature sizes of both towers."""

    def dims(features: Features) -> SideDims:
        parts = (features.points, None if features.whole is None else features.whole.points, features.pooled)
        return SideDims(*(0 if part is None else part.shape[-1] for part in parts))

    grey = image.prepare(Image.new("RGB", (64, 64), "grey"))
    return dims(image.features([grey])), dims(text.features(["a photo of a dog"]))
