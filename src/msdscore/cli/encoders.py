"""`msdscore encoders`: what can be loaded by name."""

from dataclasses import fields
from typing import Annotated

import typer

from msdscore.cli import options


def encoders(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.")] = None, json: options.Json = False
) -> None:
    """List the encoders, or show one in full."""
    import json as js

    from msdscore.cli.tables import fields_table, rows_table
    from msdscore.encoders.registry import find_row, list_encoders

    rows = [find_row(name)] if name else list(list_encoders())
    facts = [{field.name: getattr(row, field.name) for field in fields(row)} for row in rows]
    facts = [fact | {"options": dict(fact["options"])} for fact in facts]
    shown = [fact | {"parameters": f"{fact['parameters']} M" if fact["parameters"] else ""} for fact in facts]
    if json:
        typer.echo(js.dumps(facts[0] if name else facts, ensure_ascii=False))
    elif name:
        fields_table(shown[0])
    else:
        rows_table(shown, ("name", "family", "parameters", "context", "licence", "trained_on"))
