"""An explanation as plain values, for JSON."""

from typing import Any

from msdscore.explain.maps import strongest
from msdscore.explain.terms import Attribution, Unit

REGIONS = 3  # named for every word and map


def document(item: Attribution) -> dict[str, Any]:
    """Everything but the pixels: score, terms, words, phrases, maps and the regions where they are strongest.

    Terms are in nats. Boxes are pixels of the picture: left, top, right, bottom.
    """
    layout = item.patches
    return {
        "caption": item.score.caption,
        "signature": item.score.signature,
        "score": {name: getattr(item.score, name) for name in _SCORE}
        | {"alpha": item.alpha, "gamma": item.config.information},
        "words": [_word(item, unit) for unit in item.units],
        "least_supported": [_unit(unit) for unit in item.ranked],
        "phrases": [_unit(unit) for unit in item.phrases],
        "tokens": [
            {"start": start, "end": end, "term": float(term)}
            for (start, end), term in zip(item.tokens.spans, item.support_terms, strict=True)
        ],
        "picture": {
            "width": layout.size[0],
            "height": layout.size[1],
            "rows": layout.grid[0],
            "columns": layout.grid[1],
        },
        "boxes": layout.boxes.tolist(),
        "information_terms": None if item.information_terms is None else item.information_terms.tolist(),
        "coverage_terms": item.coverage_terms.tolist(),
        "support_map": item.support_map.tolist(),
        "penalty_map": item.penalty_map.tolist(),
        "most_omitted": strongest(item.coverage_terms, layout, REGIONS),
    }


_SCORE = (
    "msd",
    "soft_msd",
    "similarity",
    "coverage",
    "support",
    "beta",
    "divergence",
    "information",
    "match",
    "uncertainty",
    "length",
    "candidates",
)


def _unit(unit: Unit) -> dict[str, Any]:
    return {"text": unit.text, "start": unit.start, "end": unit.end, "term": unit.term, "gap": unit.gap}


def _word(item: Attribution, unit: Unit) -> dict[str, Any]:
    regions = strongest(item.leaning(unit).ravel(), item.patches, REGIONS) if unit.tokens else []
    facts = {"kind": unit.kind, "content": unit.content, "judged": unit.judged}
    return _unit(unit) | facts | {"leans_on": regions}
