"""An explanation as one self-contained page: point at a word and see where it looks."""

from collections.abc import Iterable, Sequence
from typing import Any

from msdscore.explain.overlay import (
    ColourScale,
    MapLegend,
    map_legend,
    map_of,
    map_roles,
    map_scale,
    overlay,
    thumbnail,
    title_of,
    word_scale,
)
from msdscore.explain.snippet import data_uri, summary
from msdscore.explain.templates import asset, render
from msdscore.explain.terms import Attribution, Unit

PICTURE_PIXELS = 560
MOST_WORDS = 60  # words with a picture of their own, so that a page stays under a few megabytes
_HOME = "msdscore.explain"


def page(items: Sequence[Attribution]) -> str:
    """The whole document. It fetches nothing, and no script can run in it but its own."""
    scale = word_scale(items)
    values = {
        "title": "Why this score",
        "style": asset(_HOME, "page.css"),
        "script": asset(_HOME, "page.js"),
        "items": [_section(item, items, scale) for item in items],
        "limit": scale.limit,
        "signature": items[0].score.signature,
    }
    return str(render("page.html", values)) + "\n"


def _section(item: Attribution, items: Sequence[Attribution], scale: ColourScale) -> dict[str, Any]:
    return summary(item, scale) | {
        "tabs": [{"role": role, "title": title_of(item, role)} for role in map_roles(items)],
        "words": item.ranked,
        "phrases": _joined(item.phrases),
        "pictures": _pictures(item, items),
    }


def _pictures(item: Attribution, items: Sequence[Attribution]) -> dict[str, Any]:
    """Every picture that the page can show, by name."""
    small = thumbnail(item.picture, PICTURE_PIXELS)
    found: dict[str, Any] = {}
    for role in map_roles(items):
        tinted = overlay(small, map_of(item, role), item.patches, role, map_scale(items, role))
        found[role] = _entry(tinted, title_of(item, role), map_legend(items, role))
    for number, unit in enumerate(item.units):
        if unit.tokens and len(found) < MOST_WORDS:
            found[f"word-{number}"] = _leaning(item, unit, small)
    return found


def _leaning(item: Attribution, unit: Unit, small: Any) -> dict[str, str]:
    spread = item.leaning(unit)
    highest = float(spread.max())
    tinted = overlay(small, spread, item.patches, "leaning", ColourScale(highest))
    legend = MapLegend("leaning", "0 %", f"{100 * highest:.2g} % of “{unit.text}”")
    return _entry(tinted, f"where “{unit.text}” looks", legend)


def _entry(picture: Any, title: str, legend: MapLegend) -> dict[str, str]:
    shades = ",".join(f"#{bytes(shade).hex()}" for shade in legend.shades(9).tolist())
    ramp = f"linear-gradient(90deg,{shades})"
    return {
        "src": data_uri(picture),
        "title": title,
        "low": f"{title}: {legend.low}",
        "high": legend.high,
        "ramp": ramp,
    }


def _joined(units: Iterable[Unit]) -> list[Unit]:
    """Phrases of more than one word; the others are in the list of words."""
    return [unit for unit in units if " " in unit.text.strip()]
