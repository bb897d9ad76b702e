"""Explanations as HTML: a page of its own, a part of a notebook, and the templates that reports use too.

Everything that is put into a template is escaped, and a page runs no script but its own and fetches nothing.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL.Image import Image

from msdscore.explain import look
from msdscore.explain.terms import Attribution
from msdscore.forms.base import Role

THUMB_PIXELS, IMAGE_PIXELS = 240, 560
MOST_WORDS = 60  # words with an image of their own, so that a page stays under a few megabytes
_HOMES = ("msdscore.explain", "msdscore.report")


def render(name: str, values: Mapping[str, Any]) -> Markup:
    """A template of `explain/assets` or `report/assets`, filled in."""
    return Markup(_environment().get_template(name).render(values))


def whole_page(
    home: str, template: str, values: Mapping[str, Any], *, styles: Sequence[str], script: str | None = None
) -> str:
    """A document that fetches nothing: a template with styles and a script of its package put in unchanged."""

    def asset(name: str) -> Markup:
        return Markup(files(home).joinpath("assets", name).read_text(encoding="utf-8"))

    given = {"style": Markup("").join(map(asset, styles)), "script": asset(script) if script else ""}
    return str(render(template, {**given, **values})) + "\n"


def script_json(value: Any) -> Markup:
    r"""JSON that cannot end the script element it stands in.

    >>> str(script_json("</script>"))
    '"\\u003c/script>"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def data_uri(image: Image) -> str:
    """An image inside the page."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode()


def snippet(items: Sequence[Attribution]) -> str:
    """One block per caption on shared scales, without a script: words, small maps, the sum."""
    blocks = []
    for item, maps in zip(items, look.maps_of(items), strict=True):
        small = look.thumbnail(item.image, THUMB_PIXELS)
        panels = [(drawn, data_uri(look.overlay(small, item.patches, drawn))) for drawn in maps.values()]
        blocks.append(summary(item, items) | {"panels": panels})
    values = {"items": blocks, "legend": look.legend(items), "signature": look.signatures(items)}
    return str(render("snippet.html", values))


def page(items: Sequence[Attribution]) -> str:
    """The whole document: point at a word and see where it looks."""
    blocks = []
    for item, maps in zip(items, look.maps_of(items), strict=True):
        phrases = [unit for unit in item.phrases if " " in unit.text.strip()]
        shown = {"maps": maps.values(), "words": item.ranked, "phrases": phrases, "images": _images(item, maps)}
        blocks.append(summary(item, items) | shown)
    values = {"title": "Why this score", "items": blocks, "legend": look.legend(items)}
    values["signature"] = look.signatures(items)
    return whole_page("msdscore.explain", "page.html", values, styles=["page.css"], script="page.js")


def words_html(item: Attribution, limit: float | None = None) -> Markup:
    """The caption with its words coloured and everything between them as it was; escaped."""
    return Markup(_parts().words(look.spans(item, look.word_limit([item]) if limit is None else limit)))


def legend_html(items: Sequence[Attribution]) -> Markup:
    """What the colours of words say."""
    return Markup(_parts().word_key(look.legend(items)))


def _parts() -> Any:
    """The macros that all pages share."""
    return _environment().get_template("parts.html").module


def summary(item: Attribution, items: Sequence[Attribution]) -> dict[str, Any]:
    """What the parts of a page say of one caption among several: words, headline, and the score as a sum."""
    low, high = look.waterfall_span(items)
    steps = [
        {
            "name": step.name,
            "size": step.size,
            "colour": step.colour,
            "left": 100 * (min(step.start, step.start + step.size) - low) / (high - low),
            "width": 100 * abs(step.size) / (high - low),
        }
        for step in look.waterfall(item)
    ]
    return {
        "spans": look.spans(item, look.word_limit(items)),
        "readable": look.is_readable(item),
        "name": item.form.name if item.score.candidates == 1 else f"Soft-{item.form.name}",
        "score": item.score,
        "columns": item.form.word_columns,
        "steps": steps,
        "zero": -100 * low / (high - low),
        "end": 100 * (item.score.soft_msd - low) / (high - low),
        "equation": look.equation(item),
        "lines": look.remarks(item, items),
    }


def _images(item: Attribution, maps: Mapping[Role, look.Map]) -> dict[str, Any]:
    """Every image that the page can show, by name: the photograph, the maps, and where each word looks."""
    small, drawn = look.thumbnail(item.image, IMAGE_PIXELS), {str(role): own for role, own in maps.items()}
    for number, unit in enumerate(item.units):
        if unit.tokens and len(drawn) < MOST_WORDS:
            drawn[f"word-{number}"] = look.word_map(item, unit)
    plain = {"image": {"src": data_uri(small.convert("RGB")), "title": "image", "low": "", "high": ""}}
    return plain | {
        name: {
            "src": data_uri(look.overlay(small, item.patches, own)),
            "title": own.title,
            "low": f"{own.title}: {own.low}",
            "high": own.high,
            "ramp": f"linear-gradient(90deg,{','.join(f'#{bytes(shade).hex()}' for shade in own.shades(9).tolist())})",
        }
        for name, own in drawn.items()
    }


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader(home, "assets") for home in _HOMES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["script_json"] = script_json
    environment.filters["script_hash"] = lambda script: b64encode(sha256(str(script).encode()).digest()).decode()
    environment.globals["css"] = look.css
    return environment
