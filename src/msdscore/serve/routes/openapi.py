"""The OpenAPI document's parts that FastAPI cannot see: bodies that are read by hand, refusals, files."""

from typing import TYPE_CHECKING, Any

from msdscore.serve.requests.schema import Item, Items, Problem, RewardRequest
from msdscore.serve.routes.answers import FIGURES
from msdscore.serve.routes.scored_rows import MOST

if TYPE_CHECKING:
    from fastapi import FastAPI

_PROBLEMS = {
    400: "A request that is no HTTP.",
    401: "No token, or a wrong one.",
    403: "A call by another name than localhost, or from a page of another site.",
    413: "More than the limits allow.",
    415: "Another content type than those listed.",
    422: "A body that cannot be read.",
    503: "The queue is full; try again after Retry-After seconds.",
    504: "Given up after the time limit.",
}
_PICTURE_FORM = {
    "type": "object",
    "required": ["image", "caption"],
    "properties": {
        "image": {"type": "string", "format": "binary"},
        "caption": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
}
_ROWS_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "A file that msdscore score wrote."},
        "by": {"type": "string", "description": "The number to order by."},
        "count": {"type": "integer", "minimum": 1, "maximum": MOST},
    },
}
_KIND = {
    "name": "kind",
    "in": "query",
    "schema": {"type": "string", "enum": list(FIGURES), "default": "png"},
}


def request(route: str) -> dict[str, Any]:
    """What a route takes."""
    if route == "rows":
        return _body({"multipart/form-data": {"schema": _ROWS_FORM}})
    if route == "reward":
        return _body({"application/json": {"schema": _ref(RewardRequest)}})
    items = {"anyOf": [_ref(Item), _ref(Items)]} if route != "figure" else _ref(Item)
    found = _body({"application/json": {"schema": items}, "multipart/form-data": {"schema": _PICTURE_FORM}})
    return found | ({"parameters": [_KIND]} if route == "figure" else {})


def responses(route: str) -> dict[int | str, dict[str, Any]]:
    """What a route answers besides its own model."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": text} for status, text in _PROBLEMS.items()
    }
    if route == "figure":
        found[501] = {"model": Problem, "description": "No library for figures is installed."}
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in FIGURES.values()}
        found[200] = {"description": "The figure.", "content": content}
    return found


def complete(app: "FastAPI") -> None:
    """Put the models of bodies that are read by hand into the document."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        found = made()
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for model in (Item, Items, RewardRequest):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema.pop("$defs", None)
            schemas.setdefault(model.__name__, schema)
        return found

    app.openapi = openapi  # type: ignore[method-assign]


def _ref(model: type[Any]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}
