"""`python -m msdscore_lab.train_mini`: options of `msdscore align train`, with trainer and recipe of `mini`."""

import sys
from pathlib import Path

from msdscore.cli import options
from msdscore.cli.app import main
from msdscore_lab.cli.align import Output, PairOptions, TrainingOptions, align, run_training


def train(output: Output, pairs: PairOptions, training: TrainingOptions, json: options.Json = False) -> None:
    """Train `mini` on one device; a killed run continues with --resume."""
    from msdscore_lab.train_mini.recipe import MiniRecipe
    from msdscore_lab.train_mini.trainer import train as trainer

    run_training(trainer, MiniRecipe, output, pairs, training, json=json)


if __name__ == "__main__":
    align.command("train-mini")(train)
    sys.argv[1:] = ["align", "train-mini", "--recipe", str(Path(__file__).with_name("mini.toml")), *sys.argv[1:]]
    main()
