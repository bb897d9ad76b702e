"""An explanation as a piece of HTML that needs no script: coloured words, three small maps, the sum."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from markupsafe import Markup
from PIL.Image import Image

from msdscore.explain.colours import css, ink
from msdscore.explain.overlay import (
    ColourScale,
    map_legend,
    map_roles,
    overlays,
    sum_parts,
    title_of,
    word_colour,
    word_scale,
)
from msdscore.explain.templates import render
from msdscore.explain.terms import Attribution

THUMB_PIXELS = 240


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of a caption: a word with its number, its tooltip and its colours; or the text between words."""

    text: str
    number: int = -1
    title: str = ""
    back: str = ""
    ink: str = ""


def snippet(items: Sequence[Attribution]) -> str:
    """One block per caption, on shared scales."""
    scale = word_scale(items)
    pictures = {role: overlays(items, role, longest=THUMB_PIXELS) for role in map_roles(items)}
    blocks = [
        summary(item, scale)
        | {
            "panels": [
                {
                    "role": role,
                    "title": title_of(item, role),
                    "src": data_uri(pictures[role][number]),
                    "below": map_legend(items, role).below,
                }
                for role in map_roles(items)
            ]
        }
        for number, item in enumerate(items)
    ]
    values = {"items": blocks, "limit": scale.limit, "signature": items[0].score.signature}
    return str(render("snippet.html", values))


def words_html(item: Attribution, scale: ColourScale) -> Markup:
    """The caption with its words coloured and everything between them as it was; escaped."""
    return render("words.html", {"spans": spans(item, scale)})


def spans(item: Attribution, scale: ColourScale) -> list[TextPiece]:
    """The caption piece by piece, with the colours of its words."""
    caption, pieces, end = item.score.caption, [], 0
    for number, unit in enumerate(item.units):
        pieces.append(TextPiece(caption[end : unit.start]))
        role, strength = word_colour(unit, scale)
        # Function words have no colour, but a tooltip with their number as all others.
        title = "" if not unit.tokens else "not judged" if unit.gap is None else f"{unit.gap:+.2f} nats"
        colours = (css(role, strength), ink(role, strength)) if strength > 0.05 else ("", "")
        pieces.append(TextPiece(unit.text, number, title, *colours))
        end = unit.end
    return [piece for piece in (*pieces, TextPiece(caption[end:])) if piece.text]


def summary(item: Attribution, scale: ColourScale) -> dict[str, Any]:
    """What the parts of a page say of one caption: its words, and the score as a sum."""
    return {
        "spans": spans(item, scale),
        "name": "MSD" if item.score.candidates == 1 else "Soft-MSD",
        "score": item.score,
        "alpha": item.alpha,
        "gamma": item.config.information,
        "parts": [{"name": name, "size": size, "role": role} for name, size, role in sum_parts(item)],
    }


def data_uri(picture: Image) -> str:
    """A picture inside the page."""
    place = BytesIO()
    picture.save(place, "JPEG", quality=85)
    return "data:image/jpeg;base64," + b64encode(place.getvalue()).decode()
