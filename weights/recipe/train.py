"""Train `mini`: the options of `msdscore align train`, with the trainer and the recipe of `mini`.

python weights/recipe/train.py --data captions.jsonl --images images/ -o runs/mini
"""

import sys
from functools import partial

from msdscore.cli import options
from msdscore.cli.app import main
from msdscore.cli.options import SPEED, option
from msdscore_lab.cli.align import Output, PairOptions, TrainingOptions, align, run_training
from train_mini.recipe import MINI, MiniRecipe


def train(
    output: Output,
    pairs: PairOptions,
    training: TrainingOptions,
    cache: str = option(SPEED, "", help="Folder for decoded images and prepared texts."),
    json: options.Json = False,
) -> None:
    """Train `mini` on one device; a killed run continues with --resume."""
    from train_mini.trainer import train as trainer

    run_training(partial(trainer, cache=cache), MiniRecipe, output, pairs, training, json=json)


if __name__ == "__main__":
    align.command("train-mini")(train)
    sys.argv[1:] = ["align", "train-mini", "--recipe", str(MINI), *sys.argv[1:]]
    main()
