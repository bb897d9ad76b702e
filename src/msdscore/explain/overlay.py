"""Maps over the image and the score as a sum, on scales that several captions share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.encoders.base import PatchLayout
from msdscore.explain.colours import Role, css, ramp
from msdscore.explain.maps import pixels
from msdscore.explain.terms import Attribution
from msdscore.scoring.config import Paper

Floats = npt.NDArray[np.float64]

TITLES: dict[Role, str] = {
    "support": "backs the caption",
    "penalty": "speaks against it",
    "omission": "left out by it",
    "leaning": "where the word looks",
}


@dataclass(frozen=True, slots=True)
class ColourScale:
    """Zero is white, and values of `limit` or more on either side have full colour."""

    limit: float

    def strength(self, values: npt.ArrayLike) -> Floats:
        """How far values are from zero on the way to the limit, −1 to 1."""
        shares = np.asarray(values, dtype=np.float64) / (self.limit if self.limit > 0 else 1.0)
        clipped: Floats = np.clip(shares, -1.0, 1.0)
        return clipped


def map_roles(items: Iterable[Attribution]) -> tuple[Role, ...]:
    """The maps of some captions: what they omit is a map of the paper's form alone."""
    paper = all(isinstance(item.form, Paper) for item in items)
    return ("support", "penalty", "omission") if paper else ("support", "penalty")


def title_of(item: Attribution, role: Role) -> str:
    """What a map shows; terms without weight are worth a look, but do not move this score."""
    if role != "omission":
        return TITLES[role]
    if item.score.beta == 0:
        return "left out (unscored)"
    return "told / left out" if _tells(item) else TITLES[role]


def map_of(item: Attribution, role: Role) -> Floats:
    """The support, penalty or omission map, rows by columns."""
    return {"support": item.support_map, "penalty": item.penalty_map, "omission": item.omission_map}[role]


def map_scale(items: Iterable[Attribution], role: Role) -> ColourScale:
    """One scale for all maps that are part of the scores of several captions, up to the largest value of any of them.

    Omissions that have no weight in any score are no part of it and have a scale of their own.
    """
    items = tuple(items)
    scored = any((item.score.beta or 0) > 0 for item in items)
    together = map_roles(items) if scored else ("omission",) if role == "omission" else ("support", "penalty")
    return ColourScale(max(float(np.abs(map_of(item, name)).max()) for item in items for name in together))


@dataclass(frozen=True, slots=True)
class MapLegend:
    """The bar under a map: what its ends say, and the colour of values below zero where the map has such."""

    role: Role
    low: str
    high: str
    below: Role | None = None

    def shades(self, steps: int) -> npt.NDArray[np.uint8]:
        """Colours from the low end to the high one."""
        above = ramp(self.role, np.linspace(0, 1, steps))
        return above if self.below is None else np.concatenate([ramp(self.below, np.linspace(1, 0, steps)), above])


def map_legend(items: Iterable[Attribution], role: Role) -> MapLegend:
    """The legend of one map of several captions; omissions below zero are regions that a caption tells of."""
    items = tuple(items)
    limit = f"{map_scale(items, role).limit:.2g}"
    if role == "omission" and any(map(_tells, items)):
        return MapLegend(role, f"told −{limit}", f"+{limit} nats", below="support")
    return MapLegend(role, "0", f"{limit} nats")


def _tells(item: Attribution) -> bool:
    """Whether regions are below zero on the map of omissions: the caption tells of them."""
    return bool(item.omission_map.min() < 0)


def thumbnail(image: Image.Image, longest: int) -> Image.Image:
    """The image, made smaller if a side is longer than `longest`."""
    if max(image.size) <= longest:
        return image
    share = longest / max(image.size)
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    return image.resize(size, Image.Resampling.LANCZOS)


def overlay(image: Image.Image, values: Floats, layout: PatchLayout, role: Role, scale: ColourScale) -> Image.Image:
    """The image in light grey, tinted by the values; what the encoder did not see is darkened.

    Values above zero have the colour of the role; those below it, which only omissions have, that of support:
    the caption tells of these regions (`map_legend`).
    """
    heat = pixels(values.ravel(), layout, image.size)
    signed = scale.strength(np.nan_to_num(heat, nan=0.0))
    strength = np.abs(signed)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None] / 255
    # Where the colour is strong the grey goes back, so that dark parts of the photograph do not look like heat.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    colour = np.where((signed >= 0)[..., None], ramp(role, strength), ramp("support", strength))
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * colour)
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))


def overlays(items: Sequence[Attribution], role: Role, *, longest: int) -> list[Image.Image]:
    """The same map of several captions, on the one scale of all maps."""
    scale = map_scale(items, role)
    return [overlay(thumbnail(item.image, longest), map_of(item, role), item.patches, role, scale) for item in items]


def sum_parts(item: Attribution) -> list[tuple[str, float, Role]]:
    """The parts that turn the similarity into Soft-MSD: name, signed size, colour; those without weight stay out."""
    score, gate = item.score, item.score.uncertainty
    if not isinstance(item.form, Paper):
        first, second = item.form.weights
        parts: list[tuple[str, float, Role]] = [
            ("precision", gate * first * (score.precision or 0.0), "support"),
            ("information", gate * second * (score.information or 0.0), "leaning"),
        ]
        return [(name, size, role if size >= 0 else "penalty") for name, size, role in parts]
    beta = score.beta or 0.0
    regions = -gate * item.form.alpha * beta * (score.coverage or 0.0)
    words = -gate * item.form.alpha * (1 - beta) * (score.support or 0.0)
    parts = []
    if beta > 0:
        parts.append(
            ("regions left out", regions, "omission") if regions <= 0 else ("regions covered", regions, "support")
        )
    if beta < 1:
        parts.append(("words not backed", words, "penalty") if words <= 0 else ("words backed", words, "support"))
    return parts


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the score on the way from zero to it: from `start` to `start + size`."""

    name: str
    start: float
    size: float
    colour: str


def waterfall(item: Attribution) -> list[Step]:
    """The similarity and what words and regions add to it; the last step ends at Soft-MSD."""
    steps = [Step("similarity", 0.0, item.score.similarity, "#8a8a8a")]
    for name, size, role in sum_parts(item):
        steps.append(Step(name, steps[-1].start + steps[-1].size, size, css(role, 0.85)))
    return steps


def waterfall_span(items: Iterable[Attribution]) -> tuple[float, float]:
    """The ends of the axis on which the sums of several captions are drawn; zero is on it."""
    ends = [0.0, *(step.start + step.size for item in items for step in waterfall(item))]
    low, high = min(ends), max(ends)
    pad = 0.02 * ((high - low) or 1.0)
    return low - pad, high + pad


def equation(item: Attribution) -> str:
    """The score as its formula, with the numbers put in."""
    score, form = item.score, item.form
    gate = "" if score.candidates == 1 else f"·{score.uncertainty:.2f}"
    if isinstance(form, Paper):
        text = f"g − α·u·d = {score.similarity:.3f} − {form.alpha:g}·{score.uncertainty:.2f}·({score.divergence:.2f})"
    else:
        (first, second), parts = form.weights, (score.precision or 0.0, score.information or 0.0)
        text = f"{score.similarity:.3f} + {first:g}{gate}·({parts[0]:.2f}) + {second:g}{gate}·({parts[1]:.2f})"
    return text.replace("-", "−")
