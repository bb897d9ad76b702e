"""Page of a selection: counts, histograms, rows on both sides of the threshold, and a comparison with cosine."""

from pathlib import Path
from typing import Any

import numpy as np

from msdscore.explain.html import whole_page
from msdscore.forms.registry import lower_is_better
from msdscore.report.build import row_image
from msdscore.report.results import rows_with_images
from msdscore.select.rule import BINS, Histogram, Rule
from msdscore.select.run import Selected
from msdscore.select.scores import ScoreFile, shard_rows

_WIDTH, _HEIGHT = 360, 110
WHAT = {
    "last kept": "Last kept",
    "first dropped": "First dropped",
    "kept here, dropped by cosine": "Kept here, dropped by cosine",
    "dropped here, kept by cosine": "Dropped here, kept by cosine",
}


def selection_page(selected: Selected, rule: Rule, *, title: str) -> str:
    """Return the whole self-contained document; images are read from the scored files if possible."""
    assert selected.survey is not None, "the selection has a survey"
    survey = selected.survey
    images = _images([example for examples in survey.examples.values() for example in examples])
    values = {
        "title": f"Selection: {title}",
        "selected": selected,
        "share": 100 * selected.kept / selected.rows if selected.rows else 0.0,
        "rule": rule,
        "plots": [(plot, _plot(plot, selected, rule), plot.name in lower_is_better()) for plot in survey.histograms],
        "agreement": survey.agreement,
        "galleries": [
            (WHAT[what], [_card(example, rule, images) for example in examples])
            for what, examples in survey.examples.items()
            if examples
        ],
    }
    return whole_page("msdscore.report", "selection.html", values, styles=["base.css", "selection.css"])


def _plot(histogram: Histogram, selected: Selected, rule: Rule) -> dict[str, Any]:
    """Return stacked bars of selected and dropped rows, with a line at the threshold."""
    most, wide = max(int((histogram.kept + histogram.dropped).max()), 1), _WIDTH / BINS
    bars = []
    for index, (kept, dropped) in enumerate(zip(histogram.kept.tolist(), histogram.dropped.tolist(), strict=True)):
        for count, below, kind in ((kept, 0, "kept"), (dropped, kept, "dropped")):
            high = _HEIGHT * count / most
            bars.append((kind, index * wide, _HEIGHT - _HEIGHT * below / most - high, wide, high))
    at = None
    if histogram.name == rule.by and selected.threshold is not None:
        at = _WIDTH * (selected.threshold - histogram.low) / (histogram.high - histogram.low)
    return {"width": _WIDTH, "height": _HEIGHT, "bars": bars, "at": at}


def _card(example: dict[str, Any], rule: Rule, images: dict[int, dict[str, str]]) -> dict[str, Any]:
    cells = {name: example.get(name) for name in (rule.by, "similarity", "match")}
    numbers = {name: float(value) for name, value in cells.items() if value is not None}
    words = example.get("worst_words")
    return {
        "key": str(example.get(example["file"].key_name)),
        "caption": example.get("caption") or "",
        "numbers": {name: value for name, value in numbers.items() if np.isfinite(value)},
        "worst": ", ".join(words) if isinstance(words, list) else "",
        **({"image": "", "note": ""} | images.get(example["row"], {})),
    }


def _images(examples: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """Return the thumbnail of each row, or a note why it has none, by row number."""
    images: dict[int, dict[str, str]] = {}
    for name in dict.fromkeys(example["file"].name for example in examples):
        chosen = {example["position"]: example for example in examples if example["file"].name == name}
        file: ScoreFile = next(iter(chosen.values()))["file"]
        known = {at: (str(row.get(file.key_name)), row.get("caption")) for at, row in chosen.items()}
        rows = rows_with_images(Path(name), None, None, chosen) if file.facts is None else shard_rows(file.facts, known)
        for position, row in rows.items():
            images[chosen[position]["row"]] = dict(zip(("image", "note"), row_image(row), strict=True))
    return images
