"""Renew the stable names: `python tools/stable.py` writes `tests/stable.json` and the lists of `docs/stable.md`.

`tests/test_stable.py` compares both with the code: a new name is a promise, a removed one needs a deprecation.
"""

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msdscore
from msdscore import ScorerSpec
from msdscore.cli.app import app
from msdscore.forms.registry import COLUMNS, find_form
from msdscore_serve.app import create_app
from msdscore_serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE, API = ROOT / "tests" / "stable.json", ROOT / "docs" / "stable.md", ROOT / "docs" / "api.md"
_FORMS = ("evidence", "paper", "paper-long", "short", "long", "authors")
_RESEARCH = "msdscore-lab"  # whose commands are not covered


def stable() -> dict[str, Any]:
    """Return all stable names as plain values: Python, commands, columns of files, HTTP and signatures."""
    return {
        "python": {name: _members(name, getattr(msdscore, name)) for name in msdscore.__all__},
        "commands": _commands(),
        "columns": {column.name: column.kind for column in COLUMNS.values()},
        "http": _http(),
        "signature": {name: ["enc", *find_form(name).facts("bank"), "v"] for name in _FORMS},
    }


def lists(names: dict[str, Any]) -> dict[str, str]:
    """Return the lists of the page by their names, as Markdown."""
    return {
        "python": _code(names["python"]),
        "commands": _code(names["commands"]),
        "columns": _code(names["columns"]),
        "http": _code(names["http"]["routes"]),
        "signature": "\n".join(f"- form `{name}`: {_code(keys)}" for name, keys in names["signature"].items()),
    }


def filled(page: str, names: dict[str, Any]) -> str:
    """Return the page with its lists replaced."""
    for name, text in lists(names).items():
        marks = re.compile(rf"(<!-- list: {name} -->\n).*?(<!-- end -->)", re.S)
        page = marks.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)  # type: ignore[misc]
    return page


def main() -> None:
    """Write both files."""
    names = stable()
    STORED.write_text(json.dumps(names, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), names), encoding="utf-8")


def _members(name: str, value: Any) -> list[str]:
    """Return the parameters of a function, or the fields of a class and its members in the reference."""
    if inspect.isfunction(value):
        return _parameters(value)
    if not inspect.isclass(value):
        return []
    if value is msdscore.Scorer:
        found = [f"({', '.join(_parameters(value.__init__))})"]
    else:
        found = [field.name for field in fields(value) if field.name[0] != "_"] if is_dataclass(value) else []
    for member_name in _documented(name, value):
        member = getattr(value, member_name)
        is_method = inspect.isfunction(member) or inspect.ismethod(member)
        found.append(f"{member_name}({', '.join(_parameters(member))})" if is_method else member_name)
    return list(dict.fromkeys(found))


def _documented(name: str, value: Any) -> list[str]:
    """Return the members of a class that the reference lists: all public ones, those that it names, or none."""
    entry = re.search(rf":: msdscore\.{name}\n(?:   :members:(.*))?", API.read_text(encoding="utf-8"))
    if entry is None or entry[1] is None:
        return []
    if entry[1].strip():
        return sorted(member.strip() for member in entry[1].split(","))
    parts = [vars(part) for part in value.__mro__ if part.__module__.startswith("msdscore")]
    return sorted({member for part in parts for member in part if member[0] != "_"})


def _parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def _commands() -> dict[str, list[str]]:
    """Return the options and arguments of every command that is not one of the laboratory."""
    from typer.main import get_command

    program: Any = get_command(app)
    context = program.context_class(program, info_name="msdscore")
    research = {
        entry.name for entry in entry_points(group="msdscore.commands") if entry.dist and entry.dist.name == _RESEARCH
    }
    found = {"msdscore": _options(program)}
    for name in sorted(set(program.list_commands(context)) - research):
        found[name] = _options(program.get_command(context, name))
    return found


def _options(command: Any) -> list[str]:
    parts = [part for part in command.params if not getattr(part, "hidden", False)]
    names = [max(part.opts, key=len) if part.param_type_name == "option" else part.name.upper() for part in parts]
    return sorted(names, key=lambda name: (name.startswith("-"), name))


def _http() -> dict[str, Any]:
    """Return the routes of the service, and the fields of every body and answer."""
    spec = ScorerSpec(encoder="toy")
    document = create_app(spec.build(), ServeSettings(), spec=spec).openapi()
    routes, queries = [], dict[str, list[str]]()
    for path, ways in document["paths"].items():
        for method, way in ways.items():
            routes.append(f"{method.upper()} {path}")
            if names := sorted(part["name"] for part in way.get("parameters", ()) if part["in"] == "query"):
                queries[path] = names
    models = {
        name: sorted(model["properties"])
        for name, model in document["components"]["schemas"].items()
        if "properties" in model
    }
    return {"routes": sorted(routes), "queries": queries, "fields": dict(sorted(models.items()))}


def _code(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    main()
