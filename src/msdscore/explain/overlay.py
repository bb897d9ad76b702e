"""A picture in grey with values of its patches in colour, and the scale that several pictures share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.encoders.base import PatchLayout
from msdscore.explain.colours import Role, ramp
from msdscore.explain.maps import pixels
from msdscore.explain.terms import Attribution, Unit

Floats = npt.NDArray[np.float64]

WORD_LIMIT = 4.0  # nats, log odds of 50 to 1: beyond it a word is as good as certain
MAP_ROLES: tuple[Role, ...] = ("support", "penalty", "omission")
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
    scored = any(item.score.beta > 0 for item in items)
    together = MAP_ROLES if scored else ("omission",) if role == "omission" else ("support", "penalty")
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
    """One scale for the words of several captions.

    Calibrated gaps are log odds whose zero means that the picture expects the word as much as any picture does; their
    scale is the same on every page. Others have no natural size, and reach to the largest gap.
    """
    items = tuple(items)
    if all(item.config.calibration != "none" for item in items):
        return ColourScale(WORD_LIMIT)
    return ColourScale(
        max((abs(unit.gap) for item in items for unit in item.ranked if unit.gap is not None), default=1.0)
    )


def word_colour(unit: Unit, scale: ColourScale) -> tuple[Role, float]:
    """Hue and strength of a word: white at zero, towards `penalty` above it, towards `support` below it."""
    if unit.gap is None or not unit.content:
        return "penalty", 0.0
    place = float(scale.strength(unit.gap))
    return ("penalty", place) if place >= 0 else ("support", -place)


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


def costs(item: Attribution) -> tuple[float, float, float]:
    """What regions, words and information take from the similarity; a part under zero adds to it.

    The first two are the parts of α·u·d, the third is −γ·u times the information.
    """
    score, weight = item.score, item.alpha * item.score.uncertainty
    told = item.config.information * item.score.uncertainty * (score.information or 0.0)
    return weight * score.beta * score.coverage, weight * (1 - score.beta) * score.support, -told


def sum_parts(item: Attribution) -> list[tuple[str, float, Role]]:
    """The parts that turn the similarity into the score: name, signed size, colour; those without weight stay out."""
    regions, words, untold = costs(item)
    parts: list[tuple[str, float, Role]] = []
    if item.score.beta > 0:
        parts.append(
            ("regions left out", -regions, "omission") if regions >= 0 else ("regions covered", -regions, "support")
        )
    if item.score.beta < 1:
        parts.append(("words not backed", -words, "penalty") if words >= 0 else ("words backed", -words, "support"))
    if item.config.information:
        parts.append(("false information", -untold, "penalty") if untold > 0 else ("information", -untold, "leaning"))
    return parts
