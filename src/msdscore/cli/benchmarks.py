"""`msdscore benchmarks`: what can be run, where it comes from, and how it is counted."""

from dataclasses import fields
from typing import Annotated

import typer

from msdscore.cli import options

benchmarks = typer.Typer(help="List the benchmarks, or show one in full.")
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
