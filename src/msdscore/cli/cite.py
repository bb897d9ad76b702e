"""`msdscore cite`: BibTeX for a paper that reports scores."""

from pathlib import Path
from typing import Annotated

import typer


def cite(
    result: Annotated[
        Path | None, typer.Argument(help="A result of score, bench or study; default: software and paper only.")
    ] = None,
) -> None:
    """Print BibTeX entries of the software, the paper and the encoder that a result file names in its signature."""
    from msdscore.report.citation import bibtex

    typer.echo(bibtex(result))
