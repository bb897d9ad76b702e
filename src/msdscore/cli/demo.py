"""`msdscore demo`: real photographs, captions good and bad."""

from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import print_json


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of page and figures.")] = Path("demo-out"),
    overwrite: options.Overwrite = False,
    encoder: options.Encoder = "mini",
    json: options.Json = False,
) -> None:
    """Score good, omitting, inventing and wrong captions of real photographs, and draw why."""
    from msdscore.cli.tables import demo_table
    from msdscore.io.outputs.targets import check_folder
    from msdscore.report.demo import show, write
    from msdscore.scorer import Scorer

    check_folder(output)
    shown = show(Scorer(encoder))
    page = write(shown, output, overwrite=overwrite)
    if json:
        rows = [
            {"photograph": entry.photograph.name, "kind": kind, "caption": item.score.caption, **item.score.row()}
            for entry in shown
            for kind, item in entry.ranked
        ]
        print_json(rows)
        return
    demo_table(shown)
    typer.echo(f"\nOpen {page} in a browser; the figures lie beside it.")
