"""The paper's ablation of the aligner: trained twice, with and without the reconstruction of the caption."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msdscore.align.data.formats import DataSource
from msdscore.align.export import export
from msdscore.align.recipe import Recipe
from msdscore.align.run.session import TrainOptions
from msdscore.align.run.train import RunReport, train
from msdscore.errors import ConfigError
from msdscore.studies.ablations.sweep import slug

WITH, WITHOUT = "with reconstruction", "without reconstruction"


def train_both(
    recipe: Recipe,
    data: DataSource,
    folder: Path,
    *,
    val: DataSource | None = None,
    options: TrainOptions,
    tell: Callable[[str], None] = lambda name: None,
) -> dict[str, tuple[Path, RunReport]]:
    """Train and export both aligners, same data, seed and steps: by name the encoder's folder and how training ended.

    A run that was stopped goes on, a finished one is only exported again.
    """
    if not recipe.loss.reconstruction:
        raise ConfigError("the recipe has no reconstruction to leave out; set loss.reconstruction=1 and lm.source")
    found = {}
    for name, one in ((WITH, recipe), (WITHOUT, recipe.without_reconstruction())):
        tell(name)
        run, encoder = folder / slug(name) / "run", folder / slug(name) / "encoder"
        report = train(one, data, run, val=val, options=replace(options, resume=True))
        found[name] = export(run, encoder, dtype="float32", overwrite=True), report
    return found
