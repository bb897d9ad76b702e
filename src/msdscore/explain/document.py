"""An explanation as plain values, for JSON."""

from dataclasses import asdict
from typing import Any

from msdscore.explain.maps import strongest
from msdscore.explain.terms import Attribution, Unit
from msdscore.scoring.config import Paper

REGIONS = 3  # named for every word and map


def document(item: Attribution) -> dict[str, Any]:
    """Everything but the pixels: score, terms, words, phrases, maps and the regions where they are strongest.

    The terms of words are what they add to MSD. Boxes are pixels of the image: left, top, right, bottom.
    """
    layout = item.patches
    score = {name: getattr(item.score, name) for name in _SCORE}
    facts = {
        "caption": item.score.caption,
        "signature": item.score.signature,
        "score": {name: value for name, value in score.items() if value is not None}
        | {name: getattr(item.form, name) for name in ("alpha", "balance") if hasattr(item.form, name)},
        "words": [_word(item, unit) for unit in item.units],
        "least_supported": [_unit(unit) for unit in item.ranked],
        "missing": [asdict(word) for word in item.missing],
        "suggestions": [asdict(suggestion) for suggestion in item.suggestions],
        "phrases": [_unit(unit) for unit in item.phrases],
        "tokens": [
            {"start": start, "end": end, "term": float(term)}
            for (start, end), term in zip(item.tokens.spans, item.support_terms, strict=True)
        ],
        "image": {
            "width": layout.size[0],
            "height": layout.size[1],
            "rows": layout.grid[0],
            "columns": layout.grid[1],
        },
        "boxes": layout.boxes.tolist(),
        "support_map": item.support_map.tolist(),
        "penalty_map": item.penalty_map.tolist(),
    }
    if isinstance(item.form, Paper):
        most = strongest(item.coverage_terms, layout, REGIONS)
        facts |= {"coverage_terms": item.coverage_terms.tolist(), "most_omitted": most}
    return facts


def in_words(item: Attribution) -> list[str]:
    """What a reader should know of the words, line by line."""
    if isinstance(item.form, Paper):
        listed = ", ".join(f"{unit.text} ({unit.gap:+.2f})" for unit in item.ranked[:3])
        return [f"least supported, nats: {listed or 'none'}"]
    rather = {suggestion.number: suggestion for suggestion in item.suggestions}
    lines = []
    for number, unit in enumerate(item.units):
        if unit in item.doubtful:
            instead = ", ".join(word.word for word in rather[number].instead) if number in rather else ""
            lines.append(f"in doubt: {unit.text} ({p_text(unit)})" + (f"; rather: {instead}" if instead else ""))
    if item.missing:
        lines.append("probably also there: " + ", ".join(word.word for word in item.missing))
    return lines


def p_text(unit: Unit) -> str:
    """The p-value of a word as people read it."""
    return "" if unit.p_value is None else "p < 0.001" if unit.p_value < 0.001 else f"p {unit.p_value:.3f}"


_SCORE = (
    "msd",
    "soft_msd",
    "similarity",
    "precision",
    "information",
    "coverage",
    "support",
    "beta",
    "divergence",
    "match",
    "reading",
    "uncertainty",
    "length",
    "candidates",
)


def _unit(unit: Unit) -> dict[str, Any]:
    names = ("gap",) if unit.gap is not None else ("evidence", "p_value", "probability")
    return {name: getattr(unit, name) for name in ("text", "start", "end", "term", *names)}


def _word(item: Attribution, unit: Unit) -> dict[str, Any]:
    regions = strongest(item.leaning(unit).ravel(), item.patches, REGIONS) if unit.tokens else []
    facts = {"kind": unit.kind, "content": unit.content, "judged": unit.judged}
    facts |= {"reason": unit.reason} if unit.reason else {}
    return _unit(unit) | facts | {"leans_on": regions}
