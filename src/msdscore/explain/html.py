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

from msdscore.explain.colours import Role, css
from msdscore.explain.document import in_words
from msdscore.explain.overlay import (
    ColourScale,
    MapLegend,
    equation,
    map_legend,
    map_of,
    map_roles,
    map_scale,
    overlay,
    overlays,
    thumbnail,
    title_of,
    waterfall,
    waterfall_span,
)
from msdscore.explain.terms import Attribution, Unit
from msdscore.explain.words import legend, spans, word_scale
from msdscore.scoring.config import Paper

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
    maps = {role: overlays(items, role, longest=THUMB_PIXELS) for role in map_roles(items)}
    blocks = [
        summary(item, items)
        | {
            "panels": [
                {"role": role, "title": title_of(item, role), "src": data_uri(maps[role][number]), "below": below}
                for role, below in ((role, map_legend(items, role).below) for role in maps)
            ]
        }
        for number, item in enumerate(items)
    ]
    return str(render("snippet.html", {"items": blocks, "legend": legend(items), "signature": _signature(items)}))


def page(items: Sequence[Attribution]) -> str:
    """The whole document: point at a word and see where it looks."""
    values = {
        "title": "Why this score",
        "items": [
            summary(item, items)
            | {
                "tabs": [{"role": role, "title": title_of(item, role)} for role in map_roles(items)],
                "words": item.ranked,
                "phrases": [unit for unit in item.phrases if " " in unit.text.strip()],
                "images": _images(item, items),
            }
            for item in items
        ],
        "legend": legend(items),
        "signature": _signature(items),
    }
    return whole_page("msdscore.explain", "page.html", values, styles=["page.css"], script="page.js")


def words_html(item: Attribution, scale: ColourScale | None = None) -> Markup:
    """The caption with its words coloured and everything between them as it was; escaped."""
    return Markup(_parts().words(spans(item, scale or word_scale([item]))))


def legend_html(items: Sequence[Attribution]) -> Markup:
    """What the colours of words say."""
    return Markup(_parts().word_key(legend(items)))


def summary(item: Attribution, items: Sequence[Attribution]) -> dict[str, Any]:
    """What the parts of a page say of one caption among several: words, headline, and the score as a sum."""
    low, high = waterfall_span(items)
    steps = [
        {
            "name": step.name,
            "size": step.size,
            "colour": step.colour,
            "left": 100 * (min(step.start, step.start + step.size) - low) / (high - low),
            "width": 100 * abs(step.size) / (high - low),
        }
        for step in waterfall(item)
    ]
    return {
        "spans": spans(item, word_scale(items)),
        "name": "MSD" if item.score.candidates == 1 else "Soft-MSD",
        "score": item.score,
        "paper": isinstance(item.form, Paper),
        "steps": steps,
        "zero": -100 * low / (high - low),
        "end": 100 * (item.score.soft_msd - low) / (high - low),
        "equation": equation(item),
        "lines": in_words(item),
    }


def _images(item: Attribution, items: Sequence[Attribution]) -> dict[str, Any]:
    """Every image that the page can show, by name."""
    small = thumbnail(item.image, IMAGE_PIXELS)
    images: dict[str, Any] = {}
    for role in map_roles(items):
        tinted = overlay(small, map_of(item, role), item.patches, role, map_scale(items, role))
        images[role] = _image(tinted, title_of(item, role), map_legend(items, role))
    for number, unit in enumerate(item.units):
        if unit.tokens and len(images) < MOST_WORDS:
            images[f"word-{number}"] = _leaning(item, unit, small)
    return images


def _leaning(item: Attribution, unit: Unit, small: Image) -> dict[str, str]:
    spread = item.leaning(unit)
    highest = float(spread.max())
    tinted = overlay(small, spread, item.patches, "leaning", ColourScale(highest))
    role: Role = "leaning"
    return _image(
        tinted, f"where “{unit.text}” looks", MapLegend(role, "0 %", f"{100 * highest:.2g} % of “{unit.text}”")
    )


def _image(image: Image, title: str, legend: MapLegend) -> dict[str, str]:
    shades = ",".join(f"#{bytes(shade).hex()}" for shade in legend.shades(9).tolist())
    return {
        "src": data_uri(image),
        "title": title,
        "low": f"{title}: {legend.low}",
        "high": legend.high,
        "ramp": f"linear-gradient(90deg,{shades})",
    }


def _signature(items: Sequence[Attribution]) -> str:
    return items[0].score.signature


def _parts() -> Any:
    """The macros that all pages share."""
    return _environment().get_template("parts.html").module


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader(home, "assets") for home in _HOMES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["script_json"] = script_json
    environment.filters["script_hash"] = lambda script: b64encode(sha256(str(script).encode()).digest()).decode()
    environment.globals["css"] = css
    return environment
