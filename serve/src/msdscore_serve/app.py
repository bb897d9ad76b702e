"""The ASGI application: routes, page, lifespan, and one format for all errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from msdscore.errors import MissingExtraError, RowError, require
from msdscore.explain.explanation import Explanations, encoded
from msdscore.forms import references
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores, why_missing
from msdscore.scoring.spec import ScorerSpec
from msdscore.text.warnings import guard_reward
from msdscore.version import __version__
from msdscore_serve import schema
from msdscore_serve.guard import OPEN_PATHS, Guard
from msdscore_serve.page import Parts, add_page, scorer_code
from msdscore_serve.reading import (
    RewardItems,
    read_completions,
    read_form,
    read_items,
    reject_unknown,
    validate,
)
from msdscore_serve.service import Service
from msdscore_serve.settings import RequestError, ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

GONE = 499  # client closed the request, as in nginx logs
Handler = Callable[["Request", Service], Awaitable[Any]]
Result = TypeVar("Result")


def create_app(pipeline: Pipeline, settings: ServeSettings, *, spec: ScorerSpec) -> "FastAPI":
    """Create the application for any ASGI server; the page's Python export is built from `spec`."""
    fastapi = require("fastapi", extra="serve")
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.gzip import GZipMiddleware

    service = Service(pipeline, settings)

    @asynccontextmanager
    async def lifespan(app: "FastAPI") -> AsyncIterator[None]:
        yield
        await service.stop()

    app: FastAPI = fastapi.FastAPI(
        title="msdscore",
        version=__version__,
        summary="Judge image captions without references, and see which words the image does not support.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    _add_api(app, service)
    _add_probes(app, service, scorer=scorer_code(spec))
    add_page(app, service.signature, settings, pipeline.form, pipeline.verdict_at)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        """Return unknown paths and methods in the error format of the guard."""
        body = {"error": str(error.detail).lower(), "request_id": request.scope["state"]["request_id"]}
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    schema.complete_openapi(app, token=settings.token is not None, open_paths=OPEN_PATHS)
    # The last is the outermost: preflight requests have no token, and pages of other origins read errors of the guard.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    app.add_middleware(Guard, service=service)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.lower() for origin in settings.allow_origins],
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["retry-after", "x-request-id"],
        )
    return app


def _add_api(app: "FastAPI", service: Service) -> None:
    """Add score, rank, explain, reward, figure and images, each under `/v1`."""
    routes: tuple[tuple[str, Handler, type[Any] | None, str], ...] = (
        ("score", partial(_score, together=False), schema.ScoreAnswer, "Score captions separately"),
        ("rank", partial(_score, together=True), schema.RankAnswer, "Rank the captions of an image by Soft-MSD"),
        ("explain", _explain, schema.ExplainAnswer, "Explain a score by words and regions"),
        ("reward", _reward, schema.RewardAnswer, "Compute rewards for the completions of a trainer"),
        ("figure", _figure, None, "Render an explanation as a figure or a page"),
        ("images", _images, schema.StoredAnswer, "Upload an image once, to refer to it by its hash"),
    )
    for name, handler, model, summary in routes:
        app.add_api_route(
            f"/v1/{name}",
            _limited(handler, service, schema.QUERIES.get(name)),
            methods=["POST"],
            response_model=model,
            responses=schema.responses_of(name),
            summary=summary,
            name=name,
            tags=[schema.GROUP_OF.get(name, "Captions")],
            openapi_extra=schema.request_of(name),
        )


def _add_probes(app: "FastAPI", service: Service, *, scorer: str) -> None:
    """Add health, readiness, version and metrics."""
    from fastapi import Response

    denied: dict[int | str, dict[str, Any]] = {401: {"model": schema.Problem}}
    busy: dict[int | str, dict[str, Any]] = {503: {"model": schema.Problem}}
    text: dict[int | str, dict[str, Any]] = {
        200: {"description": "Prometheus text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    tags: list[str | Enum] = ["Monitoring"]

    @app.get("/healthz", tags=tags, summary="Whether the process is running")
    async def healthz() -> schema.Status:
        return schema.Status(status="ok")

    @app.get("/readyz", tags=tags, summary="Whether the service accepts requests", responses=busy)
    async def readyz() -> schema.Status:
        if service.problem is not None:
            raise RequestError(503, service.problem)
        return schema.Status(status="ready")

    @app.get("/version", tags=tags, summary="Version and signature", responses=denied)
    async def version() -> schema.VersionAnswer:
        limits = list(service.verdict_at)
        return schema.VersionAnswer(version=__version__, signature=service.signature, scorer=scorer, verdict_at=limits)

    @app.get("/metrics", tags=tags, summary="Counters for Prometheus", responses=denied | text, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)


def _limited(handler: Handler, service: Service, query: type[BaseModel] | None) -> Callable[..., Awaitable[Any]]:
    """Wrap a handler so that it is cancelled after the time limit or when the caller disconnects.

    A request with another query parameter than those of `query` is rejected.
    """
    from fastapi import Request, Response
    from starlette.requests import ClientDisconnect

    async def route(request: Request) -> Any:
        reject_unknown("query parameter", request.query_params, query.model_fields if query else ())
        if len(request.query_params) < len(request.query_params.multi_items()):
            raise RequestError(422, "a query parameter is repeated; send every parameter once")
        try:
            async with asyncio.timeout(service.settings.timeout):
                return await handler(request, service)
        except TimeoutError:
            reason = f"timed out after {service.settings.timeout:g} seconds; send fewer captions"
            raise RequestError(504, reason) from None
        except ClientDisconnect:
            return Response(status_code=GONE)

    return route


async def _score(request: "Request", service: Service, *, together: bool) -> dict[str, Any]:
    requested = await read_items(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(requested, together=together))
    sets = [caption_rows(scores) for scores in results]
    # All rows have the same keys, also those of an image without references or with an error.
    added = references.NAMES if any(item.references for item in requested) else ()
    names = dict.fromkeys(chain(*chain(*sets), added))
    items = [
        {
            "scores": [names | row for row in rows],
            "ranking": list(scores.ranking) if scores.failed < len(scores) else [],  # not in the model of /v1/score
        }
        for scores, rows in zip(results, sets, strict=True)
    ]
    return {"signature": _signature(service, chain(*sets)), "items": items}


async def _explain(request: "Request", service: Service) -> Any:
    from fastapi.responses import JSONResponse

    query = validate(schema.ExplainQuery, dict(request.query_params))
    fields = frozenset(query.fields.split(","))
    parts = Parts(fields | {"words", "maps", "look"} if "all" in fields else fields, query.doubt)
    requested = await read_items(request, service.settings, service.images)
    items = await _unless_gone(request, service.explain(requested, parts, together=query.set))
    rows = [explanation["score"] for item in items for explanation in item["explanations"] if explanation]
    # Not validated: checking thousands of plain numbers against the model takes a tenth of the response time.
    return JSONResponse({"signature": _signature(service, rows), "items": items})


async def _reward(request: "Request", service: Service) -> dict[str, Any]:
    read = await read_completions(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(read.items))
    rows = [row for scores in results for row in caption_rows(scores)]
    # In a thread: the guard reads every completion.
    rewards = await asyncio.to_thread(_rewards, read, rows)
    return {"signature": _signature(service, rows), **rewards}


def _rewards(read: RewardItems, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return reward, error, warnings and whether the guard was subtracted, of every completion."""
    count = len(read.reasons)
    rewards, reasons = list[float | None]([None] * count), list(read.reasons)
    warnings, guarded = [list[str]() for _ in range(count)], [False] * count
    for number, row in zip(chain(*read.numbers), rows, strict=True):
        # Never another score instead: a caption that is its only reference has no ref_msd.
        rewards[number], found = guard_reward(row.get(read.by), row["caption"], read.guard, row["warnings"])
        reasons[number] = row["error"] or (why_missing(read.by, row["warnings"]) if rewards[number] is None else None)
        warnings[number] = list(dict.fromkeys((*found, *row["warnings"])))
        guarded[number] = bool(found and read.guard)
    return {"rewards": rewards, "reasons": reasons, "warnings": warnings, "guarded": guarded}


async def _figure(request: "Request", service: Service) -> Any:
    from fastapi import Response

    query = validate(schema.FigureQuery, dict(request.query_params))
    requested = await read_items(request, service.settings, service.images)
    if len(requested) != 1:
        raise RequestError(422, f"items: a figure shows one image, got {len(requested)}")

    def draw(explanations: Explanations | None, reasons: dict[int, str]) -> bytes:
        if explanations is None:
            raise RequestError(422, next(iter(reasons.values())))
        try:
            return encoded(explanations.items, query.kind)
        except MissingExtraError as error:
            raise RequestError(501, str(error)) from error

    try:
        content = await _unless_gone(request, service.figure(requested[0], draw, together=query.set))
    except RowError as error:
        raise RequestError(422, str(error)) from error
    return Response(content, media_type=schema.FIGURES[query.kind])


async def _images(request: "Request", service: Service) -> dict[str, str]:
    file, _ = await read_form(request, "image", service.settings)
    if file is None:
        raise RequestError(422, "expected a file named image")
    return {"image": await service.images.add(file)}


def _signature(service: Service, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the signature of the rows of an answer: that of the service, and the references if there were any."""
    counts = [count for row in rows if (count := row.get(references.NAMES[0])) is not None]
    return references.signed(service.signature, counts) if counts else service.signature


def caption_rows(scores: Scores) -> list[dict[str, Any]]:
    """Return one row per caption."""
    return [
        {"caption": score.caption, "headline": None if score.error else score.headline, **score.row()}
        | {"readable": None if score.error else score.readable}
        for score in scores
    ]


async def _unless_gone(request: "Request", work: Coroutine[Any, Any, Result]) -> Result:
    """Await work, cancelled when the caller disconnects; the request body must have been read."""
    from starlette.requests import ClientDisconnect

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
