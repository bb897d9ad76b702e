"""An explanation as one self-contained page: point at a word and see where it looks."""

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from msdscore.explain.colours import Role, css
from msdscore.explain.overlay import MAP_ROLES, Scale, fit, map_of, map_scale, overlay, title_of, word_scale
from msdscore.explain.snippet import data_uri, sum_html, words_html
from msdscore.explain.terms import Explanation, Explanations, Unit

PICTURE_PIXELS = 560
MOST_WORDS = 60  # with a picture of their own; a page should stay under some megabytes


def page(explanations: Explanations) -> str:
    """The whole document. It fetches nothing, and no script can run in it but its own."""
    items = explanations.items
    title = "Why this score"
    body = "".join(_section(item, items) for item in items)
    signature = escape(items[0].score.signature)
    assets = files("msdscore.explain").joinpath("assets")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        f"{head(title, style, script)}<body><main>{body}</main>"
        f"<p>Point at a word to see where it looks in the picture.</p><p><code>{signature}</code></p>"
        f"<script>{script}</script></body></html>\n"
    )


def head(title: str, style: str, script: str) -> str:
    """The start of a page that may load nothing and run this one script alone."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
    )


def script_json(value: Any) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> script_json("</script>")
    '"\\u003c/script>"'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _section(item: Explanation, items: tuple[Explanation, ...]) -> str:
    tabs = "".join(f"<button type='button' data-map='{role}'>{title_of(item, role)}</button>" for role in MAP_ROLES)
    return (
        f"<section><div class='caption' dir='auto'>{words_html(item, word_scale(items))}</div>{sum_html(item)}"
        f"<div class='tabs'>{tabs}</div><img class='shown' alt=''>"
        f"<div class='key'><span></span><i></i><span></span></div>"
        f"{_table('word', item.ranked)}{_table('phrase', _joined(item.phrases))}"
        f"<script type='application/json'>{script_json(_pictures(item, items))}</script></section>"
    )


def _pictures(item: Explanation, items: tuple[Explanation, ...]) -> dict[str, Any]:
    """Every picture that the page can show, by name."""
    small = fit(item.picture, PICTURE_PIXELS)
    found: dict[str, Any] = {}
    for role in MAP_ROLES:
        scale = map_scale(items, role)
        tinted = overlay(small, map_of(item, role), item.patches, role, scale)
        found[role] = _entry(tinted, title_of(item, role), role, ("0", f"{scale.limit:.3g} nats"))
    for number, unit in enumerate(item.units):
        if unit.tokens and len(found) < MOST_WORDS:
            found[f"word-{number}"] = _leaning(item, unit, small)
    return found


def _leaning(item: Explanation, unit: Unit, small: Any) -> dict[str, str]:
    spread = item.leaning(unit)
    highest = float(spread.max())
    tinted = overlay(small, spread, item.patches, "leaning", Scale(highest))
    return _entry(tinted, f"where “{unit.text}” looks", "leaning", ("0 %", f"{100 * highest:.2g} % of “{unit.text}”"))


def _entry(picture: Any, title: str, role: Role, ends: tuple[str, str]) -> dict[str, str]:
    shades = ",".join(css(role, float(strength)) for strength in np.linspace(0, 1, 9))
    ramp = f"linear-gradient(90deg,{shades})"
    return {"src": data_uri(picture), "title": title, "low": f"{title}: {ends[0]}", "high": ends[1], "ramp": ramp}


def _joined(units: Iterable[Unit]) -> list[Unit]:
    """Phrases of more than one word; the others are in the list of words."""
    return [unit for unit in units if " " in unit.text.strip()]


def _table(name: str, units: Iterable[Unit]) -> str:
    rows = "".join(
        f"<tr><td>{escape(unit.text)}</td><td class='n'>{unit.gap:+.2f}</td><td class='n'>{unit.term:+.4f}</td></tr>"
        for unit in units
    )
    if not rows:
        return ""
    return (
        f"<table><tr><th>least supported {name}s</th><th class='n'>gap, nats</th>"
        f"<th class='n'>share of support, nats</th></tr>{rows}</table>"
    )
