"""Explanations as bytes of a file format (figure, page, JSON), and as plain values."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.explain.figure import figure, lacks_glyphs, missing_glyphs_allowed
from msdscore.explain.html import explanation_page
from msdscore.explain.maps import strongest
from msdscore.explain.presentation import finding
from msdscore.explain.terms import Attribution
from msdscore.forms import references
from msdscore.forms.base import Unit
from msdscore.io.targets import MARK
from msdscore.scoring.results import known
from msdscore.scoring.vocabulary import NamedWord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300
FIGURES = (".png", ".svg", ".pdf")
KINDS = (*FIGURES, ".html", ".json")  # suffixes of files that explanations can be written to
REGIONS = 3  # named for every word and map
_FIRST = ("msd", "soft_msd", "similarity")  # of the score of an explanation; then those of the form
_LAST = ("match", "verdict", "uncertainty", "length", "candidates")


def encoded(items: Sequence[Attribution], kind: str) -> bytes:
    """Return the bytes of a file of a format: png, svg, pdf, html or json, by name or suffix."""
    kind = kind.lower().removeprefix(".")
    if kind == "html":
        return explanation_page(items).encode()
    if kind == "json":
        return to_json(items)
    # Letters that no installed font has are written as text, for the fonts of the viewer.
    as_text = kind == "svg" and lacks_glyphs(item.score.caption for item in items)
    return rendered(figure(items, warn=not as_text), kind, as_text=as_text)


def to_json(items: Sequence[Attribution]) -> bytes:
    """Return the numbers as JSON, one object per caption."""
    explanations = {"explanations": [document(item) for item in items]}
    return (json.dumps(explanations, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def rendered(drawn: "Figure", kind: str, *, as_text: bool = False) -> bytes:
    """Return a Matplotlib figure as bytes of a format, without a date, so that equal inputs produce equal bytes."""
    buffer, kind = BytesIO(), kind.lower().removeprefix(".")
    quiet = {"png": {"Software": MARK}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    rc_context: Any = require("matplotlib", extra="figures").rc_context
    # Names inside an SVG are drawn at random unless salted.
    with (
        missing_glyphs_allowed(),
        rc_context({"svg.hashsalt": "msdscore", "svg.fonttype": "none" if as_text else "path"}),
    ):
        drawn.savefig(buffer, format=kind, dpi=DPI, metadata=quiet[kind])
    return buffer.getvalue()


def document(item: Attribution) -> dict[str, Any]:
    """Return everything but the pixels: score, terms, words, phrases, maps and their strongest regions.

    The terms of words are their contributions to MSD. Boxes are pixels of the image: left, top, right, bottom.
    """
    layout = item.patches
    people = [name for name in references.NAMES if name in item.score.columns]
    score = {name: known(getattr(item.score, name)) for name in (*_FIRST, *item.form.columns, *_LAST, *people)}
    facts = {
        "caption": item.score.caption,
        "signature": item.score.signature,
        "warnings": list(item.score.warnings),
        "readable": item.readable,
        "map": item.projection,
        "score": {name: value for name, value in score.items() if value is not None}
        | {name: getattr(item.form, name) for name in item.presentation.settings},
        "words": [_word(item, unit) for unit in item.units],
        "least_supported": [_unit(unit) for unit in item.ranked],
        "missing": list(map(_named_word, item.missing)),
        "suggestions": [
            {"number": own.number, "word": own.word, "instead": list(map(_named_word, own.instead))}
            for own in item.suggestions
        ],
        "phrases": [_unit(unit) for unit in item.phrases],
        "tokens": [
            {"start": start, "end": end, "term": float(term)}
            for (start, end), term in zip(item.tokens.spans, item.support_terms, strict=True)
        ],
        "image": dict(zip(("width", "height", "rows", "columns"), (*layout.size, *layout.grid), strict=True)),
        "boxes": layout.boxes.tolist(),
        "support_map": item.support_map.tolist(),
        "penalty_map": item.penalty_map.tolist(),
    }
    if "omission" in item.presentation.maps:
        most = strongest(item.coverage_terms, layout, REGIONS)
        facts |= {"coverage_terms": item.coverage_terms.tolist(), "most_omitted": most}
    return facts


def _named_word(word: NamedWord) -> dict[str, Any]:
    """Return a word with its probability, and the number of references that have it, if there are references."""
    return {name: value for name, value in asdict(word).items() if value is not None}


def _unit(unit: Unit) -> dict[str, Any]:
    names = ("gap",) if unit.gap is not None else ("evidence", "p_value", "probability", "penalty")
    people = () if unit.references is None else ("references",)
    return {name: getattr(unit, name) for name in ("text", "start", "end", "term", *names, *people)}


def _word(item: Attribution, unit: Unit) -> dict[str, Any]:
    regions = strongest(item.leaning(unit).ravel(), item.patches, REGIONS) if item.has_region(unit) else []
    facts = {"kind": unit.kind, "content": unit.content, "judged": unit.judged}
    facts |= {"finding": found} if (found := finding(unit, item.doubt)) else {}
    facts |= {"reason": unit.reason} if unit.reason else {}
    return _unit(unit) | facts | {"leans_on": regions}
