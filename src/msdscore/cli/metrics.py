"""`msdscore metrics`: what can be asked for by name."""

from dataclasses import fields
from typing import Annotated

import typer

from msdscore.cli import options


def metrics(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.")] = None, json: options.Json = False
) -> None:
    """List the metrics, or show one in full."""
    import json as js

    from msdscore.cli.tables import fields_table, rows_table
    from msdscore.metrics.registry import METRICS, list_metrics

    rows = [METRICS.find(name)] if name else list(list_metrics())
    facts = [{field.name: getattr(row, field.name) for field in fields(row) if field.name != "loader"} for row in rows]
    if json:
        typer.echo(js.dumps(facts[0] if name else facts, ensure_ascii=False))
    elif name:
        fields_table(facts[0])
    else:
        rows_table(facts, ("name", "title", "needs", "argument", "extra"))
