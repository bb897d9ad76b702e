"""Pages from templates: everything that is put into one is escaped, and a page runs no script but its own."""

import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from msdscore.explain.colours import css

_HOMES = ("msdscore.explain", "msdscore.report")


def render(name: str, values: Mapping[str, Any]) -> Markup:
    """A template of `explain/assets` or `report/assets`, filled in."""
    return Markup(_environment().get_template(name).render(values))


def asset(home: str, name: str) -> Markup:
    """A style or a script of the package, put into a page unchanged."""
    return Markup(files(home).joinpath("assets", name).read_text(encoding="utf-8"))


def script_json(value: Any) -> Markup:
    r"""JSON that cannot end the script element it stands in.

    >>> str(script_json("</script>"))
    '"\\u003c/script>"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader(home, "assets") for home in _HOMES])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["script_json"] = script_json
    made.filters["script_hash"] = lambda script: b64encode(sha256(str(script).encode()).digest()).decode()
    made.globals["css"] = css
    return made
