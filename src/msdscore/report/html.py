"""The report's page: data, style and script in one document that fetches nothing."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from msdscore.explain.colours import css
from msdscore.explain.templates import asset, render
from msdscore.report.cards import Card
from msdscore.report.reading import Floats, Results
from msdscore.report.systems import HOW, LOWER_IS_BETTER, METRICS, Standing, standings
from msdscore.stats.resample import Interval, bootstrap_mean

_COLOURS = {"support": css("support", 1.0), "penalty": css("penalty", 1.0), "omission": css("omission", 1.0)}
_HOME = "msdscore.report"
_MOST_OTHERS = 8  # columns of the file's own that the table shows


@dataclass(frozen=True, slots=True)
class Gallery:
    """Cards under one heading."""

    title: str
    cards: tuple[Card, ...]


def page(results: Results, galleries: tuple[Gallery, ...], title: str) -> str:
    """The whole document; every text of the file is data or escaped."""
    values = {
        "title": title,
        "style": asset(_HOME, "report.css"),
        "script": asset(_HOME, "report.js"),
        "signature": _signature(results),
        "data": _data(results, galleries),
    }
    return str(render("report.html", values)) + "\n"


def _signature(results: Results) -> str:
    return results.signature or "unknown: the file carries no signature"


def _data(results: Results, galleries: tuple[Gallery, ...]) -> dict[str, Any]:
    others = dict(list(results.others.items())[:_MOST_OTHERS])
    return {
        "rows": len(results),
        "numbers": {name: rounded(values) for name, values in results.numbers.items()},
        "texts": {"id": results.ids, "caption": results.captions, "error": results.errors}
        | ({} if results.systems is None else {"system": results.systems}),
        "others": others,
        "means": {name: _interval(_mean(results, name)) for name in METRICS if name in results.numbers},
        "systems": {
            name: [_standing(one) for one in standings(results, name)] for name in METRICS if name in results.numbers
        },
        "lower": sorted(LOWER_IS_BETTER),
        "galleries": [{"title": one.title, "cards": [_card(card) for card in one.cards]} for one in galleries],
        "colours": _COLOURS,
    }


def rounded(values: Floats) -> list[float | None]:
    """Five digits are more than a screen shows; a missing number is null.

    >>> rounded(np.array([0.123456789, np.nan]))
    [0.12346, None]
    """
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def _mean(results: Results, name: str) -> Interval | None:
    values = results.numbers[name]
    good = ~np.isnan(values)
    if not good.any():
        return None
    labels = [picture or f"\0{number}" for number, picture in enumerate(results.pictures)]
    return bootstrap_mean(values[good], clusters=np.array(labels)[good], how=HOW)


def _interval(interval: Interval | None) -> list[float | None] | None:
    """Value and ends; an end that is not known, as of a single picture, is null."""
    if interval is None:
        return None
    return [end if np.isfinite(end) else None for end in (interval.value, interval.low, interval.high)]


def _standing(one: Standing) -> dict[str, Any]:
    return {
        "system": one.system,
        "captions": one.captions,
        "mean": _interval(one.mean),
        "behind": _interval(one.behind),
        "shared": one.shared,
    }


def _card(card: Card) -> dict[str, Any]:
    return {"row": card.row, "words": card.words, "pictures": card.pictures, "note": card.note}
