"""`msdscore benchmarks`: what can be run, where it comes from, and how it is counted."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options

benchmarks = typer.Typer(help="List the benchmarks, show one in full, or list its items.")
Name = Annotated[str, typer.Argument(help="A benchmark's name.")]


@benchmarks.callback(invoke_without_command=True)
def listing(context: typer.Context, json: options.Json = False) -> None:
    """List the benchmarks."""
    import json as js

    from msdscore.benchmarks.registry import benchmarks as known
    from msdscore.cli.tables import rows_table

    if context.invoked_subcommand is not None:
        return
    facts = [{field.name: getattr(row, field.name) for field in fields(row)} for row in known()]
    if json:
        typer.echo(js.dumps(facts, ensure_ascii=False))
    else:
        rows_table(facts, ("name", "kind", "size", "licence", "protocols", "source"))


@benchmarks.command()
def show(name: Name, json: options.Json = False) -> None:
    """Show one in full: what must lie where, how it is counted, whom to cite."""
    import json as js

    from msdscore.benchmarks.registry import benchmark
    from msdscore.cli.tables import fields_table

    row = benchmark(name)
    facts = {field.name: getattr(row, field.name) for field in fields(row)}
    hidden = ("reader", "rows", "rows_name", "figures", "credits", "statistics")
    if json:
        typer.echo(js.dumps(facts, ensure_ascii=False))
    else:
        fields_table({name: value for name, value in facts.items() if name not in hidden})


@benchmarks.command()
def items(
    name: Name,
    root: Annotated[Path, typer.Option("--root", help="As for `msdscore bench`.")],
    option: Annotated[list[str], typer.Option("--option", help="Of the reader, e.g. split=valid.")] = [],  # noqa: B006
) -> None:
    """List the items as JSON lines: id, picture and captions in the order in which a score file gives their scores."""
    import json as js

    from msdscore.benchmarks.base import picture_key, picture_names
    from msdscore.benchmarks.registry import load

    place = root / name if (root / name).is_dir() else root
    found = load(name, place, **dict(map(options.setting, option))).items
    names = picture_names(item.image for item in found)
    for item in found:
        row = {"id": item.id, "image": names[picture_key(item.image)], "captions": item.captions}
        typer.echo(js.dumps(row, ensure_ascii=False))
