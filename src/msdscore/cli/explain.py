"""`msdscore explain`: show unsupported words and suggestions; `msdscore demo`: the same for sample photographs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SCORING, option
from msdscore.cli.progress import console, print_json, visible

if TYPE_CHECKING:
    from msdscore.explain.explanation import Explanation, Explanations
    from msdscore.report.demo import Photograph


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureOptions:
    """Maps and output files of an explanation."""

    output: Path | None = option(OUTPUT, None, "--output", "-o", help="Output file: .png, .svg, .pdf, .html or .json.")
    maps: str | None = option(
        OUTPUT,
        None,
        "--map",
        help="carried: terms of words, assigned to their regions (default); influence: change of the score "
        "without a region (default of the paper's forms).",
    )
    also: list[str] = option(SCORING, [], help="Another encoder, shown next to the first. Repeatable.")
    overwrite: options.Overwrite = False
    json: options.Json = False


def explain(
    image: Annotated[str, typer.Argument(help="An image.")],
    captions: Annotated[list[str], typer.Argument(help="Its caption; several are shown next to each other.")],
    scorer: options.ScorerOptions,
    target: FigureOptions,
    doubt_threshold: float = option(
        SCORING, 0.1, min=0.0001, max=0.9999, help="p-value below which a word is in doubt (orange)."
    ),
    reference: list[str] = option(INPUT, [], help="Reference caption of the image. Repeatable."),
) -> None:
    """Explain the scores of captions: the terms of every word and region."""
    from msdscore.explain.explanation import KINDS, encoded, joined_explanations
    from msdscore.explain.projections import check_projection
    from msdscore.io.targets import check_target, is_standard_output, put_all
    from msdscore.scorer import Scorer

    if target.maps is not None:
        check_projection(target.maps)
    output, as_json = target.output, target.json
    if output is not None and is_standard_output(output):
        output, as_json = None, True
    if output is not None:
        check_target(output, KINDS, inputs=[image, scorer.bank])
    specs = [replace(scorer.spec(), encoder=encoder) for encoder in (scorer.encoder, *target.also)]
    explained = joined_explanations(
        Scorer.from_spec(spec).explain(image, captions, reference or None, doubt=doubt_threshold) for spec in specs
    )
    if target.maps is not None:
        explained = explained.with_maps(target.maps)
    files = {} if output is None else {output: encoded(explained.items, output.suffix)}
    put_all(files, overwrite=target.overwrite)
    show(explained, as_json=as_json)


def show(explained: "Explanations", *, as_json: bool) -> None:
    """Print the explanation, as text or as JSON; words are coloured on a terminal."""
    from msdscore.explain.explanation import to_json
    from msdscore.explain.look import legend, remarks, signatures, sum_lines, word_limit

    if as_json:
        typer.echo(to_json(explained.items).decode(), nl=False)
        return
    screen, limit = console(), word_limit(explained)
    for item in explained:
        lines = (*sum_lines(item), *remarks(item, explained.items))
        screen.print(coloured(item, limit), *(Text(f"  {visible(line)}") for line in lines), sep="\n", soft_wrap=True)
    if screen.is_terminal:
        screen.print(*(Text(f" {text} ", style=on_screen(back, ink)) for text, back, ink in legend(explained)))
    screen.print(Text(signatures(explained.items)), soft_wrap=True)


def demo(
    output: Path = option(None, Path("demo-out"), "--output", "-o", help="Folder for the page and the figures."),
    overwrite: options.Overwrite = False,
    encoder: options.EncoderName = "mini",
    json: options.Json = False,
) -> None:
    """Score and explain good, incomplete, hallucinated and wrong captions of sample photographs."""
    from msdscore.io.targets import check_folder
    from msdscore.report.demo import best_first, write
    from msdscore.report.demo import show as explained_photographs
    from msdscore.scorer import Scorer

    check_folder(output)
    shown = explained_photographs(Scorer(encoder))
    page = write(shown, output, overwrite=overwrite)
    if json:
        rows = [
            {"photograph": photograph.name, "kind": kind, "caption": item.score.caption, **item.score.row()}
            for photograph, explained in shown
            for kind, item in best_first(explained)
        ]
        print_json(rows)
        return
    demo_table(shown)
    typer.echo(f"\nOpen {page} in a browser; the figures are next to it.")


def demo_table(shown: "Sequence[tuple[Photograph, Explanations]]") -> None:
    """Print the demo captions of each photograph from best to worst, with coloured words."""
    from msdscore.explain.look import word_limit
    from msdscore.report.demo import best_first

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("photograph", "", "caption", "Soft-MSD", "result"):
        table.add_column(name)
    for photograph, explained in shown:
        limit = word_limit(explained)
        for kind, item in best_first(explained):
            soft_msd = f"{item.score.soft_msd:+.3f}"
            table.add_row(photograph.name, kind, coloured(item, limit), soft_msd, item.score.headline)
        table.add_row()
    console().print(table)


def coloured(item: "Explanation", limit: float) -> Text:
    """Return the caption with coloured words."""
    from msdscore.explain.look import spans

    text = Text()
    for span in spans(item, limit):
        text.append(visible(span.text), style=on_screen(span.back, span.ink) if span.back else "")
    return text


def on_screen(back: str, ink: str) -> str:
    """Return a Rich style; Rich only supports six-digit colours.

    >>> on_screen("#c44800", "#fff")
    '#ffffff on #c44800'
    """
    return f"#{ink[1:] * 2} on {back}"
