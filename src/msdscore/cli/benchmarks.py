"""`msdscore benchmarks`: what can be run, where it comes from, and how to get it."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options

benchmarks = typer.Typer(help="List the benchmarks, show one in full, or get its files.")
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
    hidden = ("reader", "figures", "credits")
    if json:
        typer.echo(js.dumps(facts, ensure_ascii=False))
    else:
        fields_table({name: value for name, value in facts.items() if name not in hidden})


@benchmarks.command()
def get(
    name: Name, root: Annotated[Path, typer.Option("--root", help="Folder to put the files in.")] = Path("data")
) -> None:
    """Fetch files whose hash is known, and say how to get the others."""
    from msdscore.benchmarks.fetch import fetch, instructions
    from msdscore.benchmarks.registry import benchmark

    row = benchmark(name)
    if row.downloads:
        fetch(row, root, tell=lambda line: typer.echo(line, err=True))
    else:
        typer.echo(f"no checksum is known for the files of {row.name}, so they are not fetched; by hand:", err=True)
    typer.echo(instructions(row, root))
