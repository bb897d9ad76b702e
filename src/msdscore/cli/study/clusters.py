"""Studies of the fitted mixtures themselves: how stable clusterings are, and how soft."""

from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli.study.ablations import PAPER
from msdscore.cli.study.common import StudyOptions, shown

if TYPE_CHECKING:
    from msdscore.studies.outcome import Outcome

Name = Annotated[str, typer.Option("--benchmark", "-b", help="Whose captions; see `msdscore benchmarks`.")]


def stability(
    asked: StudyOptions,
    benchmark: Name = "sugarcrepe",
    seeds: Annotated[int, typer.Option(min=2, help="Drawn starts.")] = 5,
) -> "Outcome":
    """Clusterings and scores over drawn starts: vMF against Gaussians, `sample` against `spread`."""
    from msdscore.benchmarks.base import Pair
    from msdscore.errors import InputError
    from msdscore.studies.clustering import stability as study
    from msdscore.studies.clustering.assignments import distinct_captions
    from msdscore.studies.explanations.masking import drawn_pairs
    from msdscore.studies.outcome import Outcome

    items = asked.items(benchmark)
    pairs = drawn_pairs([item for item in items if isinstance(item, Pair)], asked.limit, asked.seed)
    if not pairs:
        raise InputError(f"stability needs a benchmark of pairs; {benchmark} has none")
    pipeline, captions = asked.pipeline(PAPER), distinct_captions(pairs, asked.limit)
    work = {"benchmark": benchmark, "seeds": seeds}
    with asked.steps("clusterings", pipeline, **work) as steps, shown("clusterings") as show:
        found = study.cluster_stability(pipeline, captions, seeds=seeds, steps=steps, progress=show)
    with asked.steps("scores", pipeline, **work) as steps, shown("scores") as show:
        spread = study.score_spread(pipeline, pairs, seeds=seeds, steps=steps, progress=show)
    numbers = {"benchmark": benchmark, "seeds": seeds, "signature": pipeline.signature, **study.to_dict(found, spread)}
    text = study.section(found, spread, pipeline.signature)
    return Outcome("stability", numbers, text, study.charts(found))


def entropy(
    asked: StudyOptions,
    benchmark: Name = "sugarcrepe",
    bins: Annotated[int, typer.Option(min=1, help="Quantiles of the caption length.")] = 5,
) -> "Outcome":
    """Entropy of responsibilities against caption length: adaptive against fixed kappa."""
    from msdscore.studies.clustering import entropy as study
    from msdscore.studies.clustering.assignments import distinct_captions
    from msdscore.studies.outcome import Outcome

    pipeline, captions = asked.pipeline(PAPER), distinct_captions(asked.items(benchmark), asked.limit)
    with asked.steps("entropy", pipeline, benchmark=benchmark) as steps, shown("captions") as show:
        result = study.entropy_study(pipeline, captions, bins=bins, steps=steps, progress=show)
    numbers = {"benchmark": benchmark, **result.to_dict()}
    return Outcome("entropy", numbers, study.section(result), study.charts(result))
