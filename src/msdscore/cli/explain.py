"""`msdscore explain`: which words a picture does not support, and which regions a caption leaves out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.grouped import grouped

if TYPE_CHECKING:
    from msdscore.explain.explanation import Explanations

Why = Annotated[Path | None, typer.Option("--output", "-o", help="File to write: .png, .svg, .pdf, .html or .json.")]


@grouped
def explain(
    image: Annotated[str, typer.Argument(help="A picture.")],
    caption: Annotated[str, typer.Argument(help="Its caption.")],
    output: Why = None,
    against: Annotated[
        list[str], typer.Option("--against", help="Another caption of the picture, shown beside the first. Repeatable.")
    ] = [],  # noqa: B006, typer copies it
    words: Annotated[
        Path | None, typer.Option("--words", help="A second figure: where each word looks (.png, .svg, .pdf).")
    ] = None,
    overwrite: options.Overwrite = False,
    *,
    scorer: options.ScorerOptions,
    max_pixels: options.MaxPixels = None,
    json: options.Json = False,
) -> None:
    """Show why a caption scores as it does: the score's own terms for every word and region."""
    from msdscore.errors import ConfigError
    from msdscore.explain.save import FIGURES, encoded, known_kinds, words_content
    from msdscore.io.outputs.targets import check_target, is_standard_output, put_all

    if output is not None and is_standard_output(output):
        output, json = None, True
    if output is not None:
        check_target(output, known_kinds(), inputs=[image, scorer.bank])
    if words is not None:
        check_target(words, FIGURES, inputs=[image, scorer.bank])
        if output is not None and words.resolve() == output.resolve():
            raise ConfigError(f"{words}: is the file of -o too; give two names")
    explained = scorer.scorer(max_pixels=max_pixels).contrast(image, [caption, *against])
    made = {} if output is None else {output: encoded(explained.items, output.suffix)}
    made |= {} if words is None else {words: words_content(explained[0], words.suffix)}
    put_all(made, overwrite=overwrite)
    show(explained, as_json=json)


def show(explained: "Explanations", *, as_json: bool) -> None:
    """The numbers on standard output, for people or machines."""
    from msdscore.explain.save import to_json

    if as_json:
        typer.echo(to_json(explained.items).decode(), nl=False)
        return
    for item in explained:
        typer.echo(f"{item.score.caption}\n  {item.score}")
        for unit in item.ranked[:5]:
            typer.echo(f"  {unit.gap:+7.2f} nats  {unit.text}")
    typer.echo(explained[0].score.signature)
