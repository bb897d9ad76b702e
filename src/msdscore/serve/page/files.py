"""The page: files of the package and nothing else, with the colours of every other figure."""

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from msdscore.explain.colours import Role, css
from msdscore.explain.overlay import MAP_ROLES, TITLES

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

STEPS = 128  # colours of a ramp
ROLES: tuple[Role, ...] = (*MAP_ROLES, "leaning")
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


def add_page(app: "FastAPI", signature: str) -> None:
    """Serve the page at `/`, its files under `/assets`, and the bundled pictures under `/samples`."""
    from fastapi import HTTPException, Response

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(_asset("index.html"), media_type="text/html; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(_asset("docs.html"), media_type="text/html; charset=utf-8")

    @app.get("/assets/look.json", include_in_schema=False)
    async def look() -> Response:
        return Response(_look(signature), media_type="application/json")

    @app.get("/assets/samples.json", include_in_schema=False)
    async def samples() -> Response:
        return Response(_asset("samples/samples.json"), media_type="application/json")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return _file(name, HTTPException)

    @app.get("/samples/{name}", include_in_schema=False)
    async def sample(name: str) -> Response:
        return _file(f"samples/{name}", HTTPException)


def _file(name: str, missing: type[Exception]) -> "Response":
    from fastapi import Response

    kind = _KINDS.get("." + name.rpartition(".")[2])
    # Names are looked up in the list of files, never joined to a path that the caller chose.
    if kind is None or name not in _names():
        raise missing(404)
    return Response(_asset(name), media_type=kind)


@cache
def _names() -> frozenset[str]:
    root = files("msdscore.serve.page").joinpath("assets")
    own = {entry.name for entry in root.iterdir() if entry.is_file()}
    return frozenset(own | {f"samples/{entry.name}" for entry in root.joinpath("samples").iterdir()})


@cache
def _asset(name: str) -> bytes:
    return files("msdscore.serve.page").joinpath("assets").joinpath(*name.split("/")).read_bytes()


@cache
def _look(signature: str) -> str:
    """Ramps of colours, titles of maps, and what the service runs."""
    strengths = np.linspace(0, 1, STEPS).tolist()
    ramps = {role: [css(role, strength) for strength in strengths] for role in ROLES}
    return json.dumps({"ramps": ramps, "titles": TITLES, "signature": signature})
