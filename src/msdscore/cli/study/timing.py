"""The study of time: what one pair costs, stage by stage."""

from typing import TYPE_CHECKING

from msdscore.cli.study.common import StudyOptions, shown

if TYPE_CHECKING:
    from msdscore.studies.outcome import Outcome


def timing(asked: StudyOptions) -> "Outcome":
    """Milliseconds per pair by the length of the caption, on rows of {image, captions}: one caption, and all as one."""
    from msdscore.benchmarks.base import picture
    from msdscore.benchmarks.readers.rows import captioned_pictures
    from msdscore.studies import timing as study
    from msdscore.studies.outcome import Outcome

    entries, most = captioned_pictures(asked.root), asked.limit or study.MOST_PICTURES
    entries = entries[:: max(1, len(entries) // most)][:most]
    pairs = [
        (picture(one.image), text)
        for one in entries
        for text in dict.fromkeys((one.captions[0], " ".join(one.captions)))
    ]
    pipeline = asked.spec().build()  # one that remembers nothing
    with shown("timing") as show:
        result = study.timing(pipeline, pairs, progress=show)
    return Outcome("timing", result.to_dict(), study.section(result), study.charts(result))
