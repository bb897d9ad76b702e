"""`msdscore select`: the rows of scored files that are worth keeping, in the form that curation tools take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, print_json, stoppable

if TYPE_CHECKING:
    from msdscore.select.run import Selected


def select(
    scores: Annotated[list[str], typer.Argument(help="Score shards, folders of them, or outputs of `msdscore score`.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="keep.npy: DataComp's sorted uids; keys.txt; kept.parquet; or a folder of new tars. - prints keys.",
        ),
    ],
    keep: Annotated[
        str | None, typer.Option("--keep", help="Share (0.3, 30%) or number (1000) of rows: the best ones.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Number that says which rows are best.")] = "msd",
    minimum: Annotated[list[str], typer.Option("--min", help="Least value, e.g. match=0.7. Repeatable.")] = [],
    maximum: Annotated[list[str], typer.Option("--max", help="Largest value, e.g. support=2. Repeatable.")] = [],
    per: Annotated[str | None, typer.Option("--per", help="Column: --keep is taken of every group apart.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Page (.html): histograms, rows at the cut, agreement with cosine.")
    ] = None,
    show: Annotated[int, typer.Option(min=1, help="Rows of each kind on the page.")] = 8,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Keep the best rows of scored files; only the scores are read.

    Bounds (--min, --max) come first; --keep takes the best of what is within them, exactly, over any number of
    files. Rows that could not be scored are dropped. Of equal rows the first ones are kept.
    """
    from msdscore.io.outputs.targets import check_target, is_standard_output, put, refuse_existing, with_images
    from msdscore.select.rule import Quota, Rule
    from msdscore.select.run import select as run

    quota = None if keep is None else Quota.parse(keep)
    rule = Rule(by=by, keep=quota, minima=_bounds(minimum), maxima=_bounds(maximum), per=per)
    if report is not None:
        check_target(report, (".html", ".htm"), inputs=with_images([*scores, output]))
        refuse_existing([] if overwrite else [report])
    with stoppable("stopped; finished tars are kept, and nothing else is written"), bar("selecting") as bar_of:
        selected = run(scores, rule, output, overwrite=overwrite, show=show if report else 0, progress=bar_of)
    if report is not None and selected.survey is not None:
        from msdscore.io.stores import base_name
        from msdscore.report.selection import page

        put(report, page(selected, rule, title=base_name(output)).encode(), overwrite=True)
    if not is_standard_output(output):
        _show(selected, _spelled(by, keep, minimum, maximum, per), as_json=json)


def _show(selected: "Selected", rule: str, *, as_json: bool) -> None:
    """What was kept, on standard output; JSON leaves out what the page shows."""
    from dataclasses import asdict, fields

    agreement = None if selected.survey is None else selected.survey.agreement
    if as_json:
        values = {field.name: getattr(selected, field.name) for field in fields(selected) if field.name != "survey"}
        values |= {} if agreement is None else {"cosine": asdict(agreement)}
        print_json({"rule": rule, **values})
        return
    share = 100 * selected.kept / selected.rows if selected.rows else 0.0
    lines = [f"{selected.kept:,} of {selected.rows:,} rows ({share:.1f} %) -> {selected.output}",
             f"{rule}; {selected.valid:,} rows have a number and are within the bounds"]  # fmt: skip
    lines += [] if selected.threshold is None else [f"the last row kept has {selected.threshold:.6g}"]
    lines += [f"{selected.duplicates:,} uids or keys came twice and were written once"] if selected.duplicates else []
    if agreement is not None:
        shares = 100 * agreement.share, 100 * agreement.expected
        lines.append("cosine keeps {:.1f} % of them too (chance: {:.1f} %)".format(*shares))
    typer.echo("\n".join([*lines, selected.signature]))


def _bounds(texts: list[str]) -> tuple[tuple[str, float], ...]:
    from msdscore.errors import ConfigError

    bounds = []
    for text in texts:
        name, value = options.setting(text)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"a bound looks like match=0.7, got {text!r}")
        bounds.append((name, float(value)))
    return tuple(bounds)


def _spelled(by: str, keep: str | None, minima: list[str], maxima: list[str], per: str | None) -> str:
    """The rule in words, as the options gave it."""
    parts = [f"{text.replace('=', ' at least ')}" for text in minima]
    parts += [f"{text.replace('=', ' at most ')}" for text in maxima]
    parts += [] if keep is None else [f"best {keep} by {by}"]
    return ", ".join(parts) + (f" of every {per}" if per else "")
