"""Options shared by several commands of the laboratory."""

from typing import Annotated

from msdscore.cli.options import INPUT, OUTPUT, option_in

STATISTICS = "Statistics"
ReaderOption = Annotated[
    list[str], option_in(INPUT, "--option", help="Option of the benchmark's reader, e.g. split=valid. Repeatable.")
]
TableStyle = Annotated[
    str, option_in(OUTPUT, "--format", "-f", help="markdown or latex; default: by the suffix of --output.")
]
Samples = Annotated[int, option_in(STATISTICS, min=1, help="Number of resamples for intervals.")]
Draws = Annotated[
    int | None,
    option_in(STATISTICS, "--samples", min=1, help="Number of random draws; default: 20,000 to 200,000, by images."),
]
Percentile = Annotated[
    bool, option_in(STATISTICS, "--percentile", help="Plain percentile intervals, as in the paper; default: expanded.")
]
Control = Annotated[
    bool, option_in(STATISTICS, "--control/--no-control", help="Also score captions with wrong images.")
]
Seed = Annotated[int, option_in(STATISTICS, min=0, help="Random seed for wrong images, changes and resampling.")]


def names_in(text: str) -> list[str]:
    """Return the names in a list that is separated by commas.

    >>> names_in("msd, rank"), names_in("")
    (['msd', 'rank'], [])
    """
    return [name.strip() for name in text.split(",") if name.strip()]
