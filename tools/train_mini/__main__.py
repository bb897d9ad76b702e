"""`python tools/train_mini`: the options of `msdscore align train`, with the trainer and the recipe of `mini`."""

import sys
from pathlib import Path

from msdscore.cli import options
from msdscore.cli.align import Output, PairOptions, TrainingOptions, align, run_training
from msdscore.cli.app import main


def train(output: Output, pairs: PairOptions, training: TrainingOptions, json: options.Json = False) -> None:
    """Train `mini` on one device; a killed run continues with --resume."""
    from train_mini.recipe import MiniRecipe
    from train_mini.trainer import train as trainer

    run_training(trainer, MiniRecipe, output, pairs, training, json=json)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the package `train_mini`, not its modules
    align.command("train-mini")(train)
    sys.argv[1:] = ["align", "train-mini", "--recipe", str(Path(__file__).with_name("mini.toml")), *sys.argv[1:]]
    main()
