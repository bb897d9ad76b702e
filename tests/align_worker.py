"""A training run in a separate process, which is killed."""

import sys
import time
from pathlib import Path

from align_data import source
from msdscore_lab.align.recipe import Recipe, load_recipe
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train


def main(recipe: str, rows: str, run: str, pause: str) -> None:
    """Train from a recipe file, with a pause after every step."""

    def wait(_: object) -> None:
        time.sleep(float(pause))

    options = TrainOptions(device="cpu", workers=2, on_event=wait)
    train(load_recipe(Recipe, recipe), source(Path(rows)), run, val=source(Path(rows)), options=options)


if __name__ == "__main__":
    main(*sys.argv[1:])
