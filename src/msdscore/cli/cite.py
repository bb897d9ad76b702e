"""`msdscore cite`: BibTeX entries."""

from typing import Annotated

import typer

from msdscore.cli.progress import tell


def cite(
    result: Annotated[
        str, typer.Argument(help="Output of score, bench or study, or a signature; default: software and paper only.")
    ] = "",
) -> None:
    """Print BibTeX entries of the software, the paper and the encoder in the signature of a result.

    A sentence for your paper, with the signature, is printed to standard error: `msdscore cite FILE > refs.bib` shows
    it and writes the entries.
    """
    from msdscore.report.citation import bibtex, sentence, signatures_in

    signatures = signatures_in(result) if result else []
    typer.echo(bibtex(signatures))
    if signatures:
        tell(sentence(signatures))
