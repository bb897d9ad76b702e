"""Sphinx extension that replaces `<!-- commands -->` with the help of all commands."""

import re
from collections.abc import Iterator
from typing import Any

_PLACEHOLDER = "<!-- commands -->"
_MARKUP = re.compile(r"\[/?(?:bold|italic|dim|cyan|green|yellow|red|blue)\]")


def _rows(command: Any, context: Any) -> Iterator[str]:
    """Yield one line per argument and option (name, description, default), grouped by panel as in the help."""
    panels: dict[str, list[str]] = {"": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if not getattr(parameter, "hidden", False) else None
        if record is not None:
            name, description = (" ".join(_MARKUP.sub("", part).split()).replace("|", "\\|") for part in record)
            panel = getattr(parameter, "rich_help_panel", None) or ""
            panels.setdefault(panel, []).append(f"| `{name}` | {description} |")
    for panel, rows in panels.items():
        yield from ([f"| **{panel}** | |"] if panel and rows else [])
        yield from rows


def _sections(command: Any, path: str, parent: Any = None) -> Iterator[str]:
    context = command.context_class(command, info_name=path.split()[-1], parent=parent)
    nested = command.list_commands(context) if hasattr(command, "list_commands") else None
    if parent is not None:
        yield f"## {path}" if len(path.split()) == 2 else f"### {path}"
        yield (command.help or "").strip()
    if nested is None:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{path} {usage}\n```"
        yield "\n".join(["| | |", "|---|---|", *_rows(command, context)])
    for name in sorted(nested or ()):
        yield from _sections(command.get_command(context, name), f"{path} {name}", context)


def reference() -> str:
    """Return the help of all commands as Markdown, in alphabetical order."""
    from typer.main import get_command

    from msdscore.cli.app import app

    return "\n\n".join(_sections(get_command(app), "msdscore"))


def _read(app: Any, name: str, source: list[str]) -> None:
    if _PLACEHOLDER in source[0]:
        source[0] = source[0].replace(_PLACEHOLDER, reference())


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
