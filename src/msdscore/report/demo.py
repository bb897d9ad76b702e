"""The first thing a visitor sees: real photographs, captions good and bad, and what the score says of each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdscore.explain.explanation import Explanation, Explanations
from msdscore.explain.overlay import thumbnail, word_scale
from msdscore.explain.save import encoded
from msdscore.explain.snippet import data_uri, spans
from msdscore.explain.templates import asset, render
from msdscore.io.outputs.targets import put_all
from msdscore.report.photographs import KINDS, PHOTOGRAPHS, Photograph, locate

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

PICTURE_PIXELS = 420


@dataclass(frozen=True, slots=True)
class Shown:
    """One photograph with its explained captions."""

    photograph: Photograph
    explained: Explanations

    @property
    def ranked(self) -> list[tuple[str, Explanation]]:
        """Kinds and captions from best to worst Soft-MSD."""
        pairs = list(zip(KINDS, self.explained, strict=True))
        return sorted(pairs, key=lambda pair: -pair[1].score.soft_msd)


def show(scorer: "Scorer") -> list[Shown]:
    """Explain all captions of all photographs."""
    return [Shown(one, scorer.contrast(locate(one), list(one.captions))) for one in PHOTOGRAPHS]


def write(shown: Sequence[Shown], folder: Path, *, overwrite: bool = False) -> Path:
    """Write the page and one figure per photograph; the page's path comes back."""
    target = folder / "index.html"
    files = {target: page(shown).encode()}
    for one in shown:
        good, _, invents, _ = one.explained.items
        files[folder / f"{one.photograph.name}.png"] = encoded((good, invents), "png")
    put_all(files, overwrite=overwrite)
    return target


def page(shown: Sequence[Shown]) -> str:
    """The whole page, self-contained."""
    values = {
        "title": "msdscore demo",
        "style": asset("msdscore.report", "demo.css"),
        "script": "",
        "sections": [_section(one) for one in shown],
        "limit": word_scale(one.explained[0] for one in shown).limit,
        "signature": shown[0].explained[0].score.signature,
    }
    return str(render("demo.html", values)) + "\n"


def _section(one: Shown) -> dict[str, Any]:
    items, scale = one.explained.items, word_scale(one.explained)
    low, high = (limit(item.score.soft_msd for item in items) for limit in (min, max))
    return {
        "photograph": one.photograph,
        "picture": data_uri(thumbnail(items[0].picture, PICTURE_PIXELS)),
        "rows": [
            {
                "kind": kind,
                "spans": spans(item, scale),
                "soft_msd": item.score.soft_msd,
                "share": max(100 * (item.score.soft_msd - low) / (high - low) if high > low else 100.0, 1.0),
                "best": item.score.soft_msd == high,
            }
            for kind, item in one.ranked
        ],
    }
