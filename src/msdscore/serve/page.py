"""The web page: its files, the colours and scales of explanations, and its Python export."""

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from msdscore.explain.explanation import Explanation, Explanations
from msdscore.explain.look import DARK, TITLES, Map, css, maps_of, spans, waterfall, word_limit
from msdscore.forms.base import Role
from msdscore.scoring.spec import ScorerSpec
from msdscore.serve.settings import ServeSettings
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

RAMP_STEPS = 128
DESCRIBES = 1.5  # a word describes a patch if its attention is this many times the uniform one
_ROLES: tuple[Role, ...] = ("support", "penalty", "omission", "leaning")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "jpg": "image/jpeg",
    "json": "application/json",
}


def add_page(app: "FastAPI", signature: str, settings: ServeSettings) -> None:
    """Serve the page at `/`, the API documentation at `/docs`, their files under `/assets` and `/samples`."""
    from fastapi import HTTPException, Request, Response

    root = files("msdscore.serve").joinpath("assets")
    entries = {f"/assets/{entry.name}": entry for entry in root.iterdir() if entry.is_file()}
    entries |= {f"/samples/{entry.name}": entry for entry in root.joinpath("samples").iterdir()}
    entries |= {path: entries.pop(f"/assets/{name}") for path, name in (("/", "index.html"), ("/docs", "docs.html"))}
    entries["/assets/palette.css"] = files("msdscore.explain").joinpath("assets", "palette.css")  # of all pages
    kinds = {path: _TYPES.get(entry.name.rpartition(".")[2]) for path, entry in entries.items()}
    contents = {path: (entries[path].read_bytes(), kind) for path, kind in kinds.items() if kind}

    async def file(request: Request) -> Response:
        path = request.scope["path"]
        if path == "/assets/look.json":
            return Response(_look(signature, settings), media_type=_TYPES["json"])
        if path not in contents:
            raise HTTPException(404)
        content, kind = contents[path]
        return Response(content, media_type=kind)

    for path in ("/", "/docs", "/assets/{name}", "/samples/{name}"):
        app.add_api_route(path, file, include_in_schema=False)


@cache
def _look(signature: str, settings: ServeSettings) -> str:
    """Return colour ramps, titles of maps, the signature of the service, and the limits for the page as JSON."""
    strengths = np.linspace(0, 1, RAMP_STEPS).tolist()
    ramps = {role: [css(role, strength) for strength in strengths] for role in _ROLES}
    dark = {role: [css(role, strength, DARK) for strength in strengths] for role in _ROLES}
    limits = {name: getattr(settings, name) for name in ("max_pixels", "max_body", "max_items")}
    ramps_of = {"ramps": ramps, "dark_ramps": dark, "titles": TITLES}
    return json.dumps(ramps_of | {"signature": signature, "version": __version__, "limits": limits})


def explanation_documents(explanations: Explanations | None, reasons: dict[int, str], captions: int) -> dict[str, Any]:
    """Return one explanation per caption as plain values with its `look`; None and an error for unreadable ones.

    Words and maps share one scale, so that explanations can be compared.
    """
    items = () if explanations is None else explanations.items
    limit, maps = word_limit(items), maps_of(items) if items else []
    documents = iter(
        [item.to_dict() | {"look": _look_of(item, limit, drawn)} for item, drawn in zip(items, maps, strict=True)]
    )
    return {
        "error": None,
        "explanations": [None if number in reasons else next(documents) for number in range(captions)],
        "errors": [reasons.get(number) for number in range(captions)],
    }


def _look_of(item: Explanation, limit: float, maps: dict[Role, Map]) -> dict[str, Any]:
    """Return colours of words on light and dark pages, attention maps, the words that describe each patch, and the sum.

    `cells` has the bounds of the rows and columns of the grid, as shares of the image's height and width.
    """
    layout, pieces = item.patches, {piece.number: piece for piece in spans(item, limit)}
    spreads = [item.leaning(unit).ravel() if unit.tokens else None for unit in item.units]
    least = DESCRIBES / len(layout.boxes)
    boxes = layout.boxes.double().numpy().reshape(*layout.grid, 4)
    across, down = boxes[0][:, (0, 2)] / layout.size[0], boxes[:, 0][:, (1, 3)] / layout.size[1]
    colours = ("back", "ink", "dark_back", "dark_ink") if item.readable else ()
    return {
        "words": [
            {"judged": unit.content and (unit.p_value is not None or unit.gap is not None)}
            | {name: getattr(pieces[number], name) or None for name in colours}
            for number, unit in enumerate(item.units)
        ],
        "word_limit": limit,
        "spreads": [None if spread is None else spread.round(5).tolist() for spread in spreads],
        "told_by": [
            [number for number, spread in enumerate(spreads) if spread is not None and spread[patch] > least]
            for patch in range(len(layout.boxes))
        ],
        "maps": {
            role: {name: getattr(drawn, name) for name in ("title", "limit", "low", "high", "below")}
            | {"strength": drawn.strength.ravel().round(4).tolist()}
            for role, drawn in maps.items()
        },
        "cells": {"columns": np.round(across, 6).tolist(), "rows": np.round(down, 6).tolist()},
        "sum": [{"name": step.name, "size": step.size, "role": step.role} for step in waterfall(item)[1:]],
    }


def scorer_code(spec: ScorerSpec) -> str:
    """Return Python code that creates the same scorer; a bank is named by its file name, without the folder.

    >>> scorer_code(ScorerSpec())
    'Scorer("mini")'
    >>> scorer_code(ScorerSpec(encoder="clip-l14", config="long", bank="/srv/bank.safetensors"))
    'Scorer("clip-l14", "long", bank="bank.safetensors")'
    >>> scorer_code(ScorerSpec(changes={"alpha": 0.2}))
    'Scorer.from_spec(ScorerSpec(encoder="mini", changes={"alpha": 0.2}))'
    """
    bank = None if spec.bank is None else spec.bank.replace("\\", "/").rpartition("/")[2]
    dtype = None if spec.dtype == "auto" else spec.dtype
    named: dict[str, Any] = {"bank": bank, "revision": spec.revision, "dtype": dtype}
    options = dict(spec.options)
    if spec.changes:
        given = {"encoder": spec.encoder, "config": spec.config, "changes": dict(spec.changes), **named}
        return f"Scorer.from_spec(ScorerSpec({_arguments(given | {'options': options or None})}))"
    first = [_quoted(value) for value in (spec.encoder, spec.config) if value is not None]
    return f"Scorer({', '.join(filter(None, [*first, _arguments(named | options)]))})"


def _arguments(named: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in named.items() if value is not None)


def _quoted(value: Any) -> str:
    """Format a value as Python code, with strings in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # JSON's escapes are Python's too
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_quoted(item)}" for key, item in value.items()) + "}"
    return repr(value)
