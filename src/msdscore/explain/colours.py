"""Colours of words and regions: hues that colour-blind readers tell apart, in even steps of lightness.

Ramps run from the paper (white, or the dark of a page) to a hue of Okabe and Ito's palette along a straight line of
OKLab, whose distances are those that people see; so equal steps of a value look equally large. Figures, pages, reports
and terminals all take their colours from here.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Role = Literal["support", "penalty", "omission", "leaning"]

_ENDS: dict[Role, tuple[int, int, int]] = {
    "support": (0, 90, 160),  # blue
    "penalty": (196, 72, 0),  # vermilion
    "omission": (140, 50, 110),  # reddish purple
    "leaning": (0, 110, 90),  # bluish green
}
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
_FROM_LMS, _FROM_LAB = np.linalg.inv(_TO_LMS), np.linalg.inv(_TO_LAB)
WHITE, DARK = (255, 255, 255), (29, 32, 38)  # papers: of figures and light pages, of the cards of dark pages


def ramp(role: Role, strength: npt.ArrayLike, paper: tuple[int, int, int] = WHITE) -> npt.NDArray[np.uint8]:
    """RGB colours for strengths from 0 (the paper) to 1 (the role's full colour), along a new last axis.

    >>> ramp("support", [0.0, 1.0]).tolist()
    [[255, 255, 255], [0, 90, 160]]
    """
    share = np.clip(np.asarray(strength, dtype=np.float64), 0, 1)[..., None]
    start, end = oklab(np.array(paper)), oklab(np.array(_ENDS[role]))
    return _rgb(start + share * (end - start))


def css(role: Role, strength: float, paper: tuple[int, int, int] = WHITE) -> str:
    """One colour of the ramp, as CSS writes it.

    >>> css("penalty", 1.0)
    '#c44800'
    """
    return "#" + bytes(ramp(role, strength, paper).tolist()).hex()


def ink(role: Role, strength: float, paper: tuple[int, int, int] = WHITE) -> str:
    """Black or white, whichever has more contrast with that colour; at least 4.5 to 1, as WCAG asks for text.

    >>> ink("penalty", 0.1), ink("penalty", 1.0)
    ('#000', '#fff')
    """
    light = _luminance(ramp(role, strength, paper)) + 0.05
    return "#000" if light / 0.05 >= 1.05 / light else "#fff"


def _luminance(rgb: npt.NDArray[np.generic]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    return float(_linear(rgb) @ np.array([0.2126, 0.7152, 0.0722]))


def oklab(rgb: npt.NDArray[np.generic]) -> Floats:
    """OKLab coordinates of sRGB values from 0 to 255."""
    lab: Floats = np.cbrt(_linear(rgb) @ _TO_LMS.T) @ _TO_LAB.T
    return lab


def _linear(rgb: npt.NDArray[np.generic]) -> Floats:
    """Shares of light of sRGB values from 0 to 255."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def _rgb(lab: Floats) -> npt.NDArray[np.uint8]:
    linear = (lab @ _FROM_LAB.T) ** 3 @ _FROM_LMS.T
    linear = np.clip(linear, 0, 1)
    share = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(np.clip(share, 0, 1) * 255).astype(np.uint8)
