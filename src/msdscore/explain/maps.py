"""Maps of a score over the image, with colours, titles and scales: what supports, contradicts or is omitted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.encoders.base import PatchLayout
from msdscore.explain.attribution import Attribution
from msdscore.explain.look import ramp, scaled
from msdscore.explain.projections import CARRIED, pixels
from msdscore.forms.base import Floats, Role, Unit

TITLES: dict[Role, str] = {
    "support": "regions of supported words",
    "penalty": "regions of doubtful words",
    "omission": "not mentioned",
}
_EFFECTS: dict[Role, str] = {"support": "raises the score", "penalty": "lowers the score"}  # titles of `influence`


@dataclass(frozen=True, slots=True)
class Map:
    """Values over the image, rows by columns: white at zero, in full colour from `limit` on; `low` and `high` label the
    ends of its legend.

    `below` is the colour of values below zero, for roles whose maps have them.
    """

    role: Role
    title: str
    values: Floats
    limit: float
    low: str
    high: str
    below: Role | None = None

    @property
    def strength(self) -> Floats:
        """Values divided by the limit and clipped to −1 … 1."""
        return scaled(self.values, self.limit)

    def shades(self, steps: int) -> npt.NDArray[np.uint8]:
        """Return the colours of the legend, from low to high."""
        above = ramp(self.role, np.linspace(0, 1, steps))
        return above if self.below is None else np.concatenate([ramp(self.below, np.linspace(1, 0, steps)), above])


def maps_of(items: Sequence[Attribution], roles: Sequence[Role] = ()) -> list[dict[Role, Map]]:
    """Return the maps of each caption, by default all of its form, scaled by the largest value of all captions.

    Omissions that have no weight in any score have a separate scale; values below zero are regions that a caption
    mentions.
    """
    shown = items[0].form.maps
    values: list[dict[Role, Floats]] = [
        {"support": item.support_map, "penalty": item.penalty_map, "omission": item.omission_map} for item in items
    ]

    def largest(*together: Role) -> float:
        return max(float(np.abs(maps[role]).max()) for maps in values for role in together)

    if any(item.terms.beta > 0 for item in items):
        limits = dict.fromkeys(shown, largest(*shown))
    else:
        limits = dict.fromkeys(("support", "penalty"), largest("support", "penalty"))
        limits["omission"] = largest("omission")
    signed = any(maps["omission"].min() < 0 for maps in values)
    return [
        {role: _map_of(item, role, maps[role], limits[role], signed=signed) for role in roles or shown}
        for item, maps in zip(items, values, strict=True)
    ]


def _map_of(item: Attribution, role: Role, values: Floats, limit: float, *, signed: bool) -> Map:
    """Return one map; `signed` if the omissions of a caption shown with it have values below zero."""
    if role != "omission":
        is_carried = item.projection == CARRIED
        title = TITLES[role] if is_carried else _EFFECTS[role]
        unit = item.form.map_unit if is_carried else "nats"
        return Map(role, title, values, limit, "0", f"{limit:.2g} {unit}")
    title = TITLES[role]
    if item.terms.beta == 0:
        title = "not mentioned (unscored)"
    elif values.min() < 0:
        title = "mentioned or not"
    if signed:
        return Map(role, title, values, limit, f"mentioned −{limit:.2g}", f"+{limit:.2g} nats", "support")
    return Map(role, title, values, limit, "0", f"{limit:.2g} nats")


def word_map(item: Attribution, unit: Unit) -> Map:
    """Return the map of a word, scaled to its maximum."""
    spread = item.word_map(unit)
    highest, name = float(spread.max()), f"“{unit.text}”"
    return Map("leaning", f"regions of {name}", spread, highest, "0 %", f"{100 * highest:.2g} % of {name}")


def thumbnail(image: Image.Image, longest: int) -> Image.Image:
    """Return the image, reduced if a side is longer than `longest`."""
    if max(image.size) <= longest:
        return image
    share = longest / max(image.size)
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    return image.resize(size, Image.Resampling.LANCZOS)


def overlay(image: Image.Image, layout: PatchLayout, drawn: Map) -> Image.Image:
    """Return the image in light grey, tinted by the values of a map; regions that the encoder did not see are darkened.

    Values above zero have the colour of the role; those below it, which only omissions have, that of support.
    """
    heat = pixels(drawn.values.ravel(), layout, image.size)
    signed = scaled(np.nan_to_num(heat, nan=0.0), drawn.limit)
    strength = np.abs(signed)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None] / 255
    # Strong colours reduce the grey, so that dark parts of the photograph do not look like high values.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    colour = np.where((signed >= 0)[..., None], ramp(drawn.role, strength), ramp("support", strength))
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * colour)
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))
