"""A picture in grey with values of its patches in colour, and the scale that several pictures share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.core.evidence import ZERO
from msdscore.encoders.base import PatchLayout
from msdscore.explain.colours import Role, ramp
from msdscore.explain.maps import pixels
from msdscore.explain.terms import Attribution, Unit
from msdscore.scoring.config import Paper

Floats = npt.NDArray[np.float64]

FULL = 0.01  # p-value at which a word in doubt has full colour
LIKELY = 0.5  # p-value from which a word is blue
LEGEND = "fewer than one true word in ten looks this unsupported"
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
        found = np.asarray(values, dtype=np.float64) / (self.limit if self.limit > 0 else 1.0)
        clipped: Floats = np.clip(found, -1.0, 1.0)
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
    return ColourScale(max(float(np.abs(map_of(item, one)).max()) for item in items for one in together))


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


def word_scale(items: Iterable[Attribution]) -> ColourScale:
    """One scale for the gaps of the words of several captions under the paper's form: up to the largest of them."""
    gaps = [abs(unit.gap) for item in items for unit in item.ranked if unit.gap is not None]
    return ColourScale(max(gaps, default=1.0))


def word_colour(unit: Unit, scale: ColourScale) -> tuple[Role, float]:
    """Hue and strength of a word.

    By its p-value: towards `penalty` below 0.1, in full from 0.01 down, white up to 0.5, towards `support` above. Under
    the paper's form by its gap: white at zero, towards `penalty` above it, towards `support` below it.
    """
    if not unit.content or (unit.p_value is None and unit.gap is None):
        return "penalty", 0.0
    if unit.p_value is not None:
        if unit.p_value < ZERO:
            return "penalty", min(0.2 + 0.8 * log(ZERO / max(unit.p_value, FULL)) / log(ZERO / FULL), 1.0)
        return "support", 0.0 if unit.p_value < LIKELY else 0.2 + 0.5 * (unit.p_value - LIKELY) / (1 - LIKELY)
    strength = float(scale.strength(unit.gap or 0.0))
    return ("penalty", strength) if strength >= 0 else ("support", -strength)


def thumbnail(picture: Image.Image, longest: int) -> Image.Image:
    """The picture, made smaller if a side is longer than `longest`."""
    if max(picture.size) <= longest:
        return picture
    share = longest / max(picture.size)
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def overlay(picture: Image.Image, values: Floats, layout: PatchLayout, role: Role, scale: ColourScale) -> Image.Image:
    """The picture in light grey, tinted by the values; what the encoder did not see is darkened.

    Values above zero have the colour of the role; those below it, which only omissions have, that of support:
    the caption tells of these regions (`map_legend`).
    """
    heat = pixels(values.ravel(), layout, picture.size)
    signed = scale.strength(np.nan_to_num(heat, nan=0.0))
    strength = np.abs(signed)
    grey = np.asarray(picture.convert("L"), dtype=np.float64)[..., None] / 255
    # Where the colour is strong the grey goes back, so that dark parts of the photograph do not look like heat.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    colour = np.where((signed >= 0)[..., None], ramp(role, strength), ramp("support", strength))
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * colour)
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))


def overlays(items: Sequence[Attribution], role: Role, *, longest: int) -> list[Image.Image]:
    """The same map of several captions, on the one scale of all maps."""
    scale = map_scale(items, role)
    return [overlay(thumbnail(item.picture, longest), map_of(item, role), item.patches, role, scale) for item in items]


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
