"""Studies of the explanations: do maps show what moves the score, and do terms find the wrong word?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli.study.common import StudyOptions, shown

if TYPE_CHECKING:
    from msdscore.studies.outcome import Outcome

BENCHMARK = "sugarcrepe"
CHECKED_METRICS = ["cosine", "max-sim", "msd"]


def faithfulness(
    asked: StudyOptions,
    share: Annotated[float, typer.Option(help="Share of the regions that is masked.")] = 0.1,
    every_projection: Annotated[bool, typer.Option("--every-projection", help="Try all projections.")] = False,
) -> "Outcome":
    """Mask top, random and bottom regions, and delete and insert them in the order of the maps."""
    from msdscore.explain.maps import PROJECTIONS
    from msdscore.explain.terms import PROJECTION
    from msdscore.studies.explanations import curves as curve_study
    from msdscore.studies.explanations import faithfulness as masking_study
    from msdscore.studies.outcome import Outcome

    pipeline, pairs = asked.pipeline(), list(asked.items(BENCHMARK))
    tables = []
    for projection in PROJECTIONS if every_projection else (PROJECTION,):
        settings = masking_study.MaskingSettings(share=share, projection=projection, limit=asked.limit, seed=asked.seed)
        with (
            asked.steps(f"masking-{projection}", pipeline, share=share) as steps,
            shown(f"masking, {projection}") as show,
        ):
            tables.append(masking_study.faithfulness(pipeline, pairs, settings, steps=steps, progress=show))
    settings = masking_study.MaskingSettings(share=share, limit=asked.limit, seed=asked.seed)
    with asked.steps("curves", pipeline) as steps, shown("curves") as show:
        lines = curve_study.curves(pipeline, pairs, settings, steps=steps, progress=show)
    text = f"{masking_study.section(tables)}\n{curve_study.section(lines)}"
    numbers = {"masking": [table.to_dict() for table in tables], "curves": lines.to_dict()}
    return Outcome("faithfulness", numbers, text, (*masking_study.charts(tables[0]), *curve_study.charts(lines)))


def localisation(asked: StudyOptions) -> "Outcome":
    """How often the changed word of a wrong caption is the least supported one."""
    from msdscore.studies.explanations import localisation as word_study
    from msdscore.studies.outcome import Outcome

    pipeline = asked.pipeline()
    with asked.steps("localisation", pipeline) as steps, shown("localising") as show:
        result = word_study.localisation(
            pipeline, list(asked.items(BENCHMARK)), limit=asked.limit, seed=asked.seed, steps=steps, progress=show
        )
    return Outcome("localisation", result.to_dict(), word_study.section(result), word_study.charts(result))


def words(
    asked: StudyOptions,
    marks: Annotated[str, typer.Option(help="hat: words marked by people; chair: absent objects by name.")] = "hat",
    synonyms: Annotated[
        Path | None, typer.Option(help="With chair: names of the object classes, a line each, separated by commas.")
    ] = None,
) -> "Outcome":
    """How well the terms of words tell what a caption invents from what is there (HAT, or CHAIR's marks)."""
    from msdscore.benchmarks.readers.hallucinations import read_hat_words, read_long_words
    from msdscore.errors import unknown_name
    from msdscore.studies.explanations import words as word_study
    from msdscore.studies.outcome import Outcome

    readers = {"hat": read_hat_words, "chair": read_long_words}
    if marks not in readers:
        raise unknown_name("kind of marks", marks, readers)
    captions = readers[marks](asked.root)
    captions = captions if asked.limit is None else captions[:: max(1, len(captions) // asked.limit)][: asked.limit]
    known = word_study.read_synonyms(synonyms) if synonyms else None
    pipeline = asked.pipeline()
    with asked.steps("words", pipeline, marks=marks, synonyms=known) as steps, shown("words") as show:
        result = word_study.word_study(pipeline, captions, synonyms=known, seed=asked.seed, steps=steps, progress=show)
    return Outcome("words", result.to_dict(), word_study.section(result), word_study.charts(result))


def behaviour(
    asked: StudyOptions,
    metric: Annotated[
        list[str], typer.Option("--metric", "-m", help="NAME; see `msdscore metrics`. Repeatable.")
    ] = CHECKED_METRICS,
) -> "Outcome":
    """Small generated tests on real pictures (rows of {image, captions}): what a metric can see, and what it cannot."""
    from msdscore.benchmarks.readers.rows import captioned_pictures
    from msdscore.metrics.registry import load_metrics
    from msdscore.studies import behaviour as behaviour_study
    from msdscore.studies.outcome import Outcome

    entries, most = captioned_pictures(asked.root), asked.limit or behaviour_study.MOST_PICTURES
    entries = entries[:: max(1, len(entries) // most)][:most]
    pipeline = asked.pipeline()
    with asked.steps("behaviour", pipeline, metrics=metric) as steps, shown("behaviour") as show:
        result = behaviour_study.behaviour(
            pipeline, load_metrics(metric), entries, seed=asked.seed, steps=steps, progress=show
        )
    return Outcome("behaviour", result.to_dict(), behaviour_study.section(result), behaviour_study.charts(result))


def match(asked: StudyOptions) -> "Outcome":
    """Reliability diagram of `match` on captioned pictures (rows of {image, captions}) that the bank does not know."""
    from msdscore.benchmarks.readers.rows import captioned_pictures
    from msdscore.studies import matching
    from msdscore.studies.outcome import Outcome

    entries, pipeline = captioned_pictures(asked.root), asked.pipeline()
    with asked.steps("match", pipeline) as steps, shown("match") as show:
        result = matching.reliability(pipeline, entries, limit=asked.limit, steps=steps, progress=show)
    return Outcome("match", result.to_dict(), matching.section(result), matching.charts(result))
