"""`msdscore study`: the paper's experiments and ours, one command each."""

import typer

from msdscore.cli.study import ablations, clusters, explanations, timing, transfer
from msdscore.cli.study.common import as_command

study = typer.Typer(no_args_is_help=True, help="The experiments behind the score, each with table, figure and numbers.")

for _run in (
    ablations.mixtures,
    ablations.kappa,
    ablations.alpha,
    ablations.components,
    ablations.iterations,
    ablations.direction,
    ablations.margin,
    clusters.stability,
    clusters.entropy,
    transfer.reconstruction,
    transfer.backbones,
    transfer.ood,
    explanations.faithfulness,
    explanations.localisation,
    explanations.words,
    explanations.behaviour,
    timing.timing,
    explanations.match,
):
    study.command()(as_command(_run))
