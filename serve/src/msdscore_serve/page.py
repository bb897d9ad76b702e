"""The web page: its files, the colours and scales of explanations, and its Python export."""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from mimetypes import add_type
from pathlib import PureWindowsPath
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from starlette.staticfiles import StaticFiles

from msdscore.core.arrays import float64
from msdscore.core.evidence import VERDICT_AT, ZERO, verdict_ranges
from msdscore.encoders.registry import encoder_claims
from msdscore.explain.explanation import Explanation, Explanations, findings
from msdscore.explain.look import css, legend_of, page_colours, spans, waterfall, word_limit
from msdscore.explain.maps import TITLES, Map, maps_of
from msdscore.forms.base import Form, Role
from msdscore.forms.registry import COLUMNS, lower_is_better, number_columns
from msdscore.rows.rules import CAPTION_NAMES, IMAGE_NAMES
from msdscore.scoring.spec import ScorerSpec
from msdscore.text.warnings import WITHHOLDING
from msdscore.version import __version__
from msdscore_serve.schema import ExplainQuery
from msdscore_serve.settings import ServeSettings

Limits = tuple[float, float]  # of verdicts
RAMP_STEPS = 128
_ROLES: tuple[Role, ...] = ("support", "penalty", "omission", "leaning")
ASSETS = [("msdscore_serve", "assets"), ("msdscore.explain", "assets")]  # the second has the palette of all pages
SAMPLES = [("msdscore_serve", "assets/samples"), ("msdscore", "photographs")]
FOREVER = "public, max-age=31536000, immutable"  # addresses with a hash of their content
A_DAY = "public, max-age=86400"


class _Cached(StaticFiles):
    """Files of packages with how long a browser may use them."""

    def __init__(self, packages: Sequence[tuple[str, str]], cache_control: str) -> None:
        super().__init__(packages=list(packages))
        self._cache_control = cache_control

    def file_response(self, *given: Any, **named: Any) -> Response:
        response = super().file_response(*given, **named)
        response.headers["cache-control"] = self._cache_control
        return response


def add_page(app: FastAPI, signature: str, settings: ServeSettings, form: Form, at: Limits) -> None:
    """Serve the page at `/`, the API documentation at `/docs`, their files under `/assets/HASH` and `/samples`.

    The hash is that of all files, so that scripts find each other by relative addresses and a browser asks for none of
    them again.
    """
    add_type("text/javascript", ".js")  # Windows may have another type for it
    look = _look(signature, settings, form, at)
    folder = f"assets/{_hash_of_files(look)}/"

    def add(path: str, content: str, kind: str, cache_control: str) -> None:
        async def file() -> Response:
            return Response(content, media_type=kind, headers={"cache-control": cache_control})

        app.add_api_route(path, file, include_in_schema=False)

    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        add(path, _asset(name).replace("assets/", folder), "text/html", "no-cache")
    add(f"/{folder}look.json", look, "application/json", FOREVER)
    app.mount(f"/{folder}", _Cached(ASSETS, FOREVER))
    app.mount("/samples", _Cached(SAMPLES, A_DAY))


def _asset(name: str) -> str:
    return files("msdscore_serve").joinpath("assets", name).read_text(encoding="utf-8")


def _hash_of_files(look: str) -> str:
    """Return a hash of what is served under `/assets`: the names and contents of all files, and the look."""
    digest = sha256(look.encode())
    for package, folder in ASSETS:
        for entry in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
            if entry.is_file():
                digest.update(f"{entry.name}\0".encode() + entry.read_bytes())
    return digest.hexdigest()[:12]


def _look(signature: str, settings: ServeSettings, form: Form, at: Limits) -> str:
    """Return colour ramps, titles of maps, the legend, the signature of the service, and its limits as JSON."""
    strengths = np.linspace(0, 1, RAMP_STEPS).tolist()
    ramps = {role: [css(role, strength) for strength in strengths] for role in _ROLES}
    legend = legend_of(form, 1.0, ZERO)
    look = {
        "ramps": ramps,
        "titles": {role: TITLES[role] for role in form.maps},
        "key": [
            (text.partition(",")[0].partition(" (")[0], *page_colours(role, strength))
            for text, role, strength in legend
        ],
        "rules": [text for text, _, strength in legend if strength],
        "claims": encoder_claims(signature) if at == VERDICT_AT else None,
        "signature": signature,
        "version": __version__,
        "limits": {name: getattr(settings, name) for name in ("max_pixels", "max_body", "max_items", "max_captions")},
        "links": _project_links(),
        # What the page needs to read files of rows as `msdscore score` does.
        "columns": {"image": IMAGE_NAMES, "caption": CAPTION_NAMES},
        "numbers": number_columns(tuple(COLUMNS)),
        "lower_is_better": sorted(lower_is_better()),
        "verdicts": [(least, name) for name, (least, _) in verdict_ranges(at).items()],
        "withholding": sorted(WITHHOLDING),
    }
    return json.dumps(look)


def _project_links() -> dict[str, str]:
    """Return the addresses of documentation and repository that the installed distribution has in its metadata."""
    try:
        given = metadata.metadata("msdscore").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return {}
    pairs = (line.partition(", ") for line in given)
    return {name: address for name, _, address in pairs if address.startswith("https://")}


_SCORING = ("encoder", "options", "dtype", "revision", "form", "bank", "changes", "verdict_at")
_MAP_KEYS = frozenset({"map", "tokens", "image", "boxes", "support_map", "penalty_map", "omission_map"})
_WORD_KEYS = frozenset({"words", "word_notes", "doubtful", "least_supported", "missing", "suggestions", "phrases"})
_BRIEF_WORD = ("text", "start", "end", "p_value", "probability", "judged", "reason", "finding", "gap")
_DOUBTFUL_WORD = ("text", "start", "end", "finding", "p_value", "probability")


def explanation_documents(
    explanations: Explanations | None, reasons: dict[int, str], captions: int, query: ExplainQuery
) -> dict[str, Any]:
    """Return one explanation per caption as plain values with its `look`; None and an error for unreadable ones.

    Words and maps share one scale, so that explanations can be compared.
    """
    items = () if explanations is None else explanations.items
    limit = word_limit(items)
    maps: Sequence[dict[Role, Map] | None] = [None] * len(items)
    if items and "maps" in query.parts:
        maps = maps_of(items)
    documents = iter([_document(item, query, limit, drawn) for item, drawn in zip(items, maps, strict=True)])
    return {
        "error": None,
        "explanations": [None if number in reasons else next(documents) for number in range(captions)],
        "errors": [reasons.get(number) for number in range(captions)],
    }


def _document(item: Explanation, query: ExplainQuery, limit: float, maps: dict[Role, Map] | None) -> dict[str, Any]:
    """Return the requested parts of one explanation; without maps, words have no regions and few digits."""
    score = item.score.with_doubtful(findings(item.units, query.doubt))
    item = replace(item, score=score, doubt=query.doubt)
    document = item.to_dict()
    document["doubtful"] = [
        {name: word[name] for name in _DOUBTFUL_WORD} for word in document["words"] if word.get("finding")
    ]
    document["score"] = {"match": None, "verdict": None} | document["score"]
    if "maps" not in query.parts and "words" in query.parts:
        document["words"] = [_brief_word(word) for word in document["words"]]
        document["doubtful"] = [_rounded(word) for word in document["doubtful"]]
        document["score"] = _rounded(document["score"])
    left_out = (
        frozenset() if "maps" in query.parts else _MAP_KEYS | {"signature", "word_notes", "phrases", "least_supported"}
    )
    left_out |= frozenset() if "words" in query.parts else _WORD_KEYS
    document = {name: value for name, value in document.items() if name not in left_out}
    if "look" in query.parts:
        document["look"] = _look_of(item, limit, maps)
    return document


def _brief_word(word: dict[str, Any]) -> dict[str, Any]:
    """Return the short form of a word; all words that are not content words are unjudged for the same reason."""
    names = [name for name in _BRIEF_WORD if word["content"] or name != "reason"]
    return _rounded({name: word[name] for name in names if word.get(name) is not None})


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers among some values to six significant digits."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in values.items()}


def _look_of(item: Explanation, limit: float, maps: dict[Role, Map] | None) -> dict[str, Any]:
    """Return the colours of words on light and dark pages, the terms of the score, and what the maps need, if any."""
    pieces = {piece.number: piece for piece in spans(item, limit)}
    colours = ("back", "ink", "dark_back", "dark_ink") if item.readable else ()
    look = {
        "words": [
            {"judged": unit.content and (unit.p_value is not None or unit.gap is not None)}
            | {name: value for name in colours if (value := getattr(pieces[number], name))}
            for number, unit in enumerate(item.units)
        ],
        "word_limit": limit,
        "sum": [{"name": step.name, "size": step.size, "role": step.role} for step in waterfall(item)[1:]],
    }
    return look if maps is None else look | _regions(item, maps)


def _regions(item: Explanation, maps: dict[Role, Map]) -> dict[str, Any]:
    """Return the attention of each word, the words that describe each patch, and the maps.

    `cells` has the bounds of the rows and columns of the grid, as shares of the image's height and width.
    """
    layout = item.patches
    spreads = [item.word_map(unit).ravel() if item.has_region(unit) else None for unit in item.units]
    boxes = float64(layout.boxes).reshape(*layout.grid, 4)
    across, down = boxes[0][:, (0, 2)] / layout.size[0], boxes[:, 0][:, (1, 3)] / layout.size[1]
    return {
        "spreads": [None if spread is None else spread.round(5).tolist() for spread in spreads],
        "maps": {
            role: {name: getattr(drawn, name) for name in ("title", "limit", "low", "high")}
            | {"strength": drawn.strength.ravel().round(4).tolist()}
            for role, drawn in maps.items()
        },
        "cells": {"columns": np.round(across, 6).tolist(), "rows": np.round(down, 6).tolist()},
    }


def scorer_code(spec: ScorerSpec) -> str:
    """Return Python code that creates the same scorer; a bank is named by its file name, without the folder.

    >>> scorer_code(ScorerSpec())
    "Scorer('mini')"
    >>> scorer_code(ScorerSpec(encoder="clip-l14", bank="/srv/bank.safetensors", changes={"alpha": 0.2}))
    "Scorer.from_spec(ScorerSpec(encoder='clip-l14', bank='bank.safetensors', changes={'alpha': 0.2}))"
    """
    given = {name: getattr(spec, name) for name in _SCORING if getattr(spec, name) != getattr(ScorerSpec(), name)}
    if given.keys() <= {"encoder"}:
        return f"Scorer({spec.encoder!r})"
    if spec.bank is not None:
        given["bank"] = PureWindowsPath(spec.bank).name  # a slash separates folders on Windows too
    given |= {name: dict(given[name]) for name in ("options", "changes") if name in given}
    return f"Scorer.from_spec(ScorerSpec({', '.join(f'{name}={value!r}' for name, value in given.items())}))"
