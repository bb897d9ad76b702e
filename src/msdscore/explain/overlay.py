"""A picture in grey with values of its patches in colour, and the scale that several pictures share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.encoders.base import PatchLayout
from msdscore.explain.colours import Role, ramp
from msdscore.explain.maps import pixels
from msdscore.explain.terms import Explanation, Unit

Floats = npt.NDArray[np.float64]

MAP_ROLES: tuple[Role, ...] = ("support", "penalty", "omission")
TITLES: dict[Role, str] = {
    "support": "backs the caption",
    "penalty": "speaks against it",
    "omission": "left out by it",
    "leaning": "where the word looks",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The values that get no colour (`low`) and full colour (`high`)."""

    low: float
    high: float

    def strength(self, values: npt.ArrayLike) -> Floats:
        """Where values lie between the two ends, 0 to 1."""
        wide = self.high - self.low
        found = (np.asarray(values, dtype=np.float64) - self.low) / (wide if wide > 0 else 1.0)
        clipped: Floats = np.clip(found, 0.0, 1.0)
        return clipped


def title_of(item: Explanation, role: Role) -> str:
    """What a map shows; terms without weight are worth a look, but do not move this score."""
    return "left out (unscored)" if role == "omission" and item.score.beta == 0 else TITLES[role]


def map_of(item: Explanation, role: Role) -> Floats:
    """The support, penalty or omission map, rows by columns."""
    return {"support": item.support_map, "penalty": item.penalty_map, "omission": item.omission_map}[role]


def map_scale(items: Iterable[Explanation], role: Role) -> Scale:
    """One scale for the same map of several captions: from zero, or from the lowest term for omissions."""
    values = np.concatenate([map_of(item, role).ravel() for item in items])
    return Scale(float(values.min()) if role == "omission" else 0.0, float(values.max()))


def word_scale(items: Iterable[Explanation]) -> Scale:
    """From the best supported content word of all captions to the least supported one.

    Calibrated gaps have a zero that means something: the picture expects the word no more than a random one does. So
    the scale reaches at least to it, and the words of a good caption do not glow.
    """
    items = tuple(items)
    gaps = [unit.gap for item in items for unit in item.ranked if unit.gap is not None] or [0.0]
    calibrated = all(item.config.calibration != "none" for item in items)
    return Scale(min(gaps), max(*gaps, 0.0) if calibrated else max(gaps))


def word_colour(unit: Unit, scale: Scale) -> tuple[Role, float]:
    """Hue and strength of a word: white halfway, towards `penalty` above, towards `support` under it."""
    if unit.gap is None or not unit.content or not scale.high > scale.low:
        return "penalty", 0.0
    place = 2 * float(scale.strength(unit.gap)) - 1
    return ("penalty", place) if place >= 0 else ("support", -place)


def fit(picture: Image.Image, longest: int) -> Image.Image:
    """The picture, made smaller if a side is longer than `longest`."""
    if max(picture.size) <= longest:
        return picture
    share = longest / max(picture.size)
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def overlay(picture: Image.Image, values: Floats, layout: PatchLayout, role: Role, scale: Scale) -> Image.Image:
    """The picture in light grey, tinted by the values; what the encoder did not see is darkened."""
    heat = pixels(values.ravel(), layout, picture.size)
    strength = scale.strength(np.nan_to_num(heat, nan=scale.low))
    grey = np.asarray(picture.convert("L"), dtype=np.float64)[..., None] / 255
    # Where the colour is strong the grey goes back, so that dark parts of the photograph do not look like heat.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * ramp(role, strength))
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))


def overlays(items: Sequence[Explanation], role: Role, *, longest: int) -> list[Image.Image]:
    """The same map of several captions, on one scale."""
    scale = map_scale(items, role)
    return [overlay(fit(item.picture, longest), map_of(item, role), item.patches, role, scale) for item in items]


def costs(item: Explanation) -> tuple[float, float]:
    """What regions and words take from the similarity: the two parts of α·u·d; a part under zero adds to it."""
    score, weight = item.score, item.alpha * item.score.uncertainty
    return weight * score.beta * score.coverage, weight * (1 - score.beta) * score.support


def sum_parts(item: Explanation) -> list[tuple[str, float, Role]]:
    """The parts that turn the similarity into the score: name, signed size, colour; those without weight stay out."""
    regions, words = costs(item)
    parts: list[tuple[str, float, Role]] = []
    if item.score.beta > 0:
        parts.append(
            ("regions left out", -regions, "omission") if regions >= 0 else ("regions covered", -regions, "support")
        )
    if item.score.beta < 1:
        parts.append(("words not backed", -words, "penalty") if words >= 0 else ("words backed", -words, "support"))
    return parts
