"""An explanation as a piece of HTML that needs no script: coloured words, three small maps, the sum."""

from base64 import b64encode
from html import escape
from io import BytesIO

from PIL.Image import Image

from msdscore.explain.colours import css, ink
from msdscore.explain.overlay import MAP_ROLES, TITLES, Scale, overlays, sum_parts, title_of, word_colour, word_scale
from msdscore.explain.terms import Explanation, Explanations, Unit

THUMB_PIXELS = 240


def snippet(explanations: Explanations) -> str:
    """One block a caption, on shared scales; every text is escaped."""
    items, scale = explanations.items, word_scale(explanations)
    pictures = {role: overlays(items, role, longest=THUMB_PIXELS) for role in MAP_ROLES}
    blocks = []
    for number, item in enumerate(items):
        panels = "".join(
            f"<figure style='margin:0'><img alt='{TITLES[role]}' src='{data_uri(pictures[role][number])}'>"
            f"<figcaption style='color:{css(role, 1.0)};font-weight:600'>{title_of(item, role)}</figcaption></figure>"
            for role in MAP_ROLES
        )
        blocks.append(
            "<div style='font:14px/1.9 system-ui,sans-serif;margin:0 0 1em'>"
            f"<div dir='auto'>{words_html(item, scale)}</div>"
            f"<div style='display:flex;gap:8px;flex-wrap:wrap;line-height:1.4'>{panels}</div>{sum_html(item)}</div>"
        )
    signature = escape(items[0].score.signature)
    return "".join(blocks) + f"<small><code>{signature}</code></small>"


def words_html(item: Explanation, scale: Scale) -> str:
    """The caption with its words coloured and everything between them as it was; escaped."""
    caption, parts, end = item.score.caption, [], 0
    for number, unit in enumerate(item.units):
        parts.append(escape(caption[end : unit.start]))
        parts.append(_word_html(unit, number, scale))
        end = unit.end
    return "".join([*parts, escape(caption[end:])])


def sum_html(item: Explanation) -> str:
    """The score as the similarity and what regions and words take from it or add to it."""
    score = item.score
    name = "MSD" if score.candidates == 1 else "Soft-MSD"
    parts = "".join(
        f" {'−' if size < 0 else '+'} <span style='color:{css(role, 1.0)}'>{what} {abs(size):.4f}</span>"
        for what, size, role in sum_parts(item)
    )
    return (
        f"<div><b>{name} {score.soft_msd:+.4f}</b> = similarity {score.similarity:.4f}{parts} "
        f"<small>(g − α·u·d with α {item.alpha:g}, u {score.uncertainty:.3f}, d {score.divergence:.4f})</small></div>"
    )


def data_uri(picture: Image) -> str:
    """A picture inside the page."""
    place = BytesIO()
    picture.save(place, "JPEG", quality=85)
    return "data:image/jpeg;base64," + b64encode(place.getvalue()).decode()


def _word_html(unit: Unit, number: int, scale: Scale) -> str:
    role, strength = word_colour(unit, scale)
    text = escape(unit.text)
    if unit.gap is None:
        return text
    look = f"background:{css(role, strength)};color:{ink(role, strength)};" if strength > 0.05 else ""
    style = f"{look}border-radius:3px;padding:1px 3px" if look else ""
    # Words without content stay plain, but can be asked for their number like all others.
    return f"<span class='w' data-word='{number}' title='{unit.gap:+.2f} nats' style='{style}'>{text}</span>"
