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
    """Values over the image, rows by columns: white at zero, in full colour from `limit` on; `low` and `high` label
    the ends of its legend.
    """

    role: Role
    title: str
    values: Floats
    limit: float
    low: str
    high: str

    @property
    def strength(self) -> Floats:
        """Values divided by the limit, 1 at most."""
        return scaled(self.values, self.limit)

    def shades(self, steps: int) -> npt.NDArray[np.uint8]:
        """Return the colours of the legend, from low to high."""
        return ramp(self.role, np.linspace(0, 1, steps))


def maps_of(items: Sequence[Attribution], roles: Sequence[Role] = ()) -> list[dict[Role, Map]]:
    """Return the maps of each caption, by default all of its form, scaled by the largest value of all captions.

    Omissions that have no weight in any score have a separate scale.
    """
    shown = items[0].form.maps
    values: list[dict[Role, Floats]] = [
        {"support": item.support_map, "penalty": item.penalty_map, "omission": np.maximum(item.omission_map, 0)}
        for item in items
    ]

    def largest(*together: Role) -> float:
        return max(float(maps[role].max()) for maps in values for role in together)

    if any(item.terms.beta > 0 for item in items):
        limits = dict.fromkeys(shown, largest(*shown))
    else:
        limits = dict.fromkeys(("support", "penalty"), largest("support", "penalty"))
        limits["omission"] = largest("omission")
    return [
        {role: _map_of(item, role, maps[role], limits[role]) for role in roles or shown}
        for item, maps in zip(items, values, strict=True)
    ]


def _map_of(item: Attribution, role: Role, values: Floats, limit: float) -> Map:
    is_carried = item.projection == CARRIED and role != "omission"
    title = TITLES[role] if is_carried else _EFFECTS.get(role, TITLES[role])
    if role == "omission" and item.terms.beta == 0:
        title = "not mentioned (unscored)"
    return Map(role, title, values, limit, "0", f"{limit:.2g} {item.form.map_unit if is_carried else 'nats'}")


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
    """Return the image in light grey, tinted by the values of a map; regions outside the view are darkened."""
    heat = pixels(drawn.values.ravel(), layout, image.size)
    strength = scaled(np.nan_to_num(heat, nan=0.0), drawn.limit)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None] / 255
    # Strong colours reduce the grey, so that dark parts of the photograph do not look like high values.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * ramp(drawn.role, strength))
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))
