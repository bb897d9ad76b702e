"""Explanations as HTML: a page, a part of a notebook, and the templates that reports also use.

All values in templates are escaped, and a page runs only its inline script and loads no other resources.
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
from msdscore.explain.attribution import Attribution
from msdscore.explain.maps import Map, maps_of, overlay, thumbnail, word_map
from msdscore.forms.base import Role

THUMB_PIXELS, IMAGE_PIXELS = 240, 560
MOST_WORDS = 60  # words with a map each, so that a page is not larger than a few megabytes
_HOMES = ("msdscore.explain", "msdscore.report")


def whole_page(
    home: str, template: str, values: Mapping[str, Any], *, styles: Sequence[str], script: str | None = None
) -> str:
    """Render a self-contained document: a template with inlined styles and script of its package."""

    def asset(name: str) -> Markup:
        return Markup(files(home).joinpath("assets", name).read_text(encoding="utf-8"))

    inlined = {"style": Markup("").join(map(asset, styles)), "script": asset(script) if script else ""}
    return _environment().get_template(template).render({**inlined, **values}) + "\n"


def script_json(value: Any) -> Markup:
    r"""Return JSON that cannot end its script element.

    >>> str(script_json("</script>"))
    '"\\u003c/script>"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def data_uri(image: Image) -> str:
    """Return an image as a data URI."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode()


def snippet(items: Sequence[Attribution]) -> str:
    """Render one block per caption on shared scales, without a script: words, small maps, the sum."""
    blocks = []
    for item, maps in zip(items, maps_of(items), strict=True):
        small = thumbnail(item.image, THUMB_PIXELS)
        panels = [(drawn, data_uri(overlay(small, item.patches, drawn))) for drawn in maps.values()]
        blocks.append(summary(item, items) | {"panels": panels})
    values = {"items": blocks, "legend": look.legend(items), "signature": look.signatures(items)}
    return _environment().get_template("snippet.html").render(values)


def explanation_page(items: Sequence[Attribution]) -> str:
    """Render the whole document, which shows the regions of a word on hover."""
    blocks = []
    for item, maps in zip(items, maps_of(items), strict=True):
        phrases = [unit for unit in item.phrases if " " in unit.text.strip()]
        shown = {"maps": maps.values(), "words": item.ranked, "phrases": phrases, "images": _images(item, maps)}
        blocks.append(summary(item, items) | shown)
    values = {"title": "Why this score", "items": blocks, "legend": look.legend(items)}
    values["signature"] = look.signatures(items)
    return whole_page("msdscore.explain", "page.html", values, styles=["page.css"], script="page.js")


def words_html(item: Attribution, limit: float | None = None) -> Markup:
    """Return the escaped caption with coloured words."""
    return Markup(_parts().words(look.spans(item, look.word_limit([item]) if limit is None else limit)))


def legend_html(items: Sequence[Attribution]) -> Markup:
    """Return the legend of word colours."""
    return Markup(_parts().word_key(look.legend(items)))


def _parts() -> Any:
    """Return the macros that all pages share."""
    return _environment().get_template("parts.html").module


def summary(item: Attribution, items: Sequence[Attribution]) -> dict[str, Any]:
    """Return the template values of one caption among several: words, headline, and the score as a sum."""
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
        "readable": item.readable,
        "name": item.form.name if item.score.candidates == 1 else f"Soft-{item.form.name}",
        "score": item.score,
        "columns": look.word_columns(item.form),
        "steps": steps,
        "zero": -100 * low / (high - low),
        "end": 100 * (item.score.soft_msd - low) / (high - low),
        "lines": look.remarks(item, items),
    }


def _images(item: Attribution, maps: Mapping[Role, Map]) -> dict[str, Any]:
    """Return all images of the page by name: the photograph, the maps, and the map of each word."""
    small = thumbnail(item.image, IMAGE_PIXELS)
    named: dict[str, Map] = {str(role): drawn for role, drawn in maps.items()}
    for number, unit in enumerate(item.units):
        if item.has_region(unit) and len(named) < MOST_WORDS:
            named[f"word-{number}"] = word_map(item, unit)
    images = {"image": {"src": data_uri(small.convert("RGB")), "title": "image", "low": "", "high": ""}}
    for name, drawn in named.items():
        shades = ",".join(f"#{bytes(shade).hex()}" for shade in drawn.shades(9).tolist())
        images[name] = {
            "src": data_uri(overlay(small, item.patches, drawn)),
            "title": drawn.title,
            "low": f"{drawn.title}: {drawn.low}",
            "high": drawn.high,
            "ramp": f"linear-gradient(90deg,{shades})",
        }
    return images


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
