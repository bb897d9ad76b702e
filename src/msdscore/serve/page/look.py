"""An explanation as the page draws it: colours, scales and titles from the rules that all other figures follow."""

from typing import Any

import numpy as np

from msdscore.encoders.base import PatchLayout
from msdscore.explain.colours import Role
from msdscore.explain.explanation import Explanation, Explanations
from msdscore.explain.overlay import (
    MAP_ROLES,
    ColourScale,
    MapLegend,
    map_legend,
    map_of,
    map_scale,
    sum_parts,
    title_of,
    word_scale,
)
from msdscore.explain.snippet import spans

TELLS = 1.5  # a word tells of a patch where its attention is that many times an even spread


def looks(explanations: Explanations) -> list[dict[str, Any]]:
    """One entry per caption; all of them on one scale, so that they can be compared."""
    words = word_scale(explanations)
    maps = {role: (map_scale(explanations, role), map_legend(explanations, role)) for role in MAP_ROLES}
    return [_look(item, words, maps) for item in explanations]


def _look(item: Explanation, words: ColourScale, maps: dict[Role, tuple[ColourScale, MapLegend]]) -> dict[str, Any]:
    spreads = [item.leaning(unit).ravel() if unit.tokens else None for unit in item.units]
    least = 1 / len(item.patches.boxes)
    told_by = [
        [number for number, spread in enumerate(spreads) if spread is not None and spread[patch] > TELLS * least]
        for patch in range(len(item.patches.boxes))
    ]
    return {
        "words": _words(item, words),
        "word_limit": words.limit,
        "spreads": [None if spread is None else spread.round(5).tolist() for spread in spreads],
        "told_by": told_by,
        "maps": {
            role: {
                "title": title_of(item, role),
                "limit": scale.limit,
                "low": legend.low,
                "high": legend.high,
                "below": legend.below,
                "strength": scale.strength(map_of(item, role)).ravel().round(4).tolist(),
            }
            for role, (scale, legend) in maps.items()
        },
        "cells": _cells(item.patches),
        "sum": [{"name": name, "size": size, "role": role} for name, size, role in sum_parts(item)],
    }


def _words(item: Explanation, scale: ColourScale) -> list[dict[str, Any]]:
    """Whether each word is judged, and the colours of what lies behind it and of its letters, where it has any."""
    colours = {span.number: span for span in spans(item, scale)}
    return [
        {
            "judged": unit.content and unit.gap is not None,
            "back": colours[number].back or None,
            "ink": colours[number].ink or None,
        }
        for number, unit in enumerate(item.units)
    ]


def _cells(layout: PatchLayout) -> dict[str, Any]:
    """Where rows and columns of the grid begin and end, as shares of the picture's height and width."""
    boxes = layout.boxes.double().numpy().reshape(*layout.grid, 4)
    across = boxes[0][:, (0, 2)] / layout.size[0]
    down = boxes[:, 0][:, (1, 3)] / layout.size[1]
    return {"columns": np.round(across, 6).tolist(), "rows": np.round(down, 6).tolist()}
