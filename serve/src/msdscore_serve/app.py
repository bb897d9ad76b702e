"""The ASGI application: routes, page, lifespan, and one format for all errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect

from msdscore.errors import RowError
from msdscore.scoring import references
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores, why_missing
from msdscore.scoring.spec import ScorerSpec
from msdscore.text.warnings import guard_reward
from msdscore.version import __version__
from msdscore_serve import schema
from msdscore_serve.guard import Guard
from msdscore_serve.page import add_page, scorer_code
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

GONE = 499  # client closed the request, as in nginx logs
Handler = Callable[[Request, Service], Awaitable[Any]]
Result = TypeVar("Result")


def create_app(pipeline: Pipeline, settings: ServeSettings, *, spec: ScorerSpec) -> FastAPI:
    """Create the application for any ASGI server; the page's Python export is built from `spec`."""
    service = Service(pipeline, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.stop()

    app = FastAPI(
        title="msdscore",
        version=__version__,
        summary="Judge image captions without references, and see which words the image does not support.",
        lifespan=lifespan,
        openapi_tags=schema.GROUPS,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    text = "The token that the service was started with (--token or MSDSCORE_TOKEN)."
    # Only for the document: the guard checks the token before a body is read.
    token = HTTPBearer(scheme_name="token", description=text, auto_error=False)
    secured = [] if settings.token is None else [Depends(token)]
    _add_api(app, service, secured)
    _add_probes(app, service, secured, scorer=scorer_code(spec))
    add_page(app, service.signature, settings, pipeline.form, pipeline.verdict_at)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        """Return unknown paths and methods in the error format of the guard."""
        body = {"error": str(error.detail).lower(), "request_id": request.scope["state"]["request_id"]}
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    schema.complete_openapi(app)
    # The last is the outermost: preflight requests have no token, and pages of other origins read errors of the guard.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    app.add_middleware(Guard, service=service)
    if settings.allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.lower() for origin in settings.allow_origin],
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["retry-after", "x-request-id"],
        )
    return app


def _add_api(app: FastAPI, service: Service, secured: Sequence[Any]) -> None:
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
            tags=["Training" if name == "reward" else "Captions"],
            dependencies=secured,
            openapi_extra=schema.request_of(name),
        )


def _add_probes(app: FastAPI, service: Service, secured: Sequence[Any], *, scorer: str) -> None:
    """Add health, readiness, version and metrics."""
    open_to_all: dict[str, Any] = {"tags": ["Monitoring"]}
    closed = open_to_all | {"dependencies": secured, "responses": schema.problems(401)}

    @app.get("/healthz", summary="Whether the process is running", **open_to_all)
    async def healthz() -> schema.Status:
        return schema.Status(status="ok")

    @app.get("/readyz", summary="Whether the service accepts requests", responses=schema.problems(503), **open_to_all)
    async def readyz() -> schema.Status:
        if service.problem is not None:
            raise RequestError(503, service.problem)
        return schema.Status(status="ready")

    @app.get("/version", summary="Version and signature", **closed)
    async def version() -> schema.VersionAnswer:
        limits = list(service.verdict_at)
        return schema.VersionAnswer(version=__version__, signature=service.signature, scorer=scorer, verdict_at=limits)

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse, **closed)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)


def _limited(handler: Handler, service: Service, query: type[BaseModel] | None) -> Callable[..., Awaitable[Any]]:
    """Wrap a handler so that it is cancelled after the time limit or when the caller disconnects.

    A request with another query parameter than those of `query` is rejected.
    """

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


async def _score(request: Request, service: Service, *, together: bool) -> dict[str, Any]:
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


async def _explain(request: Request, service: Service) -> Any:
    query = validate(schema.ExplainQuery, dict(request.query_params))
    requested = await read_items(request, service.settings, service.images)
    items = await _unless_gone(request, service.explain(requested, query))
    rows = [explanation["score"] for item in items for explanation in item["explanations"] if explanation]
    # Not validated: checking thousands of plain numbers against the model takes a tenth of the response time.
    return JSONResponse({"signature": _signature(service, rows), "items": items})


async def _reward(request: Request, service: Service) -> dict[str, Any]:
    read = await read_completions(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(read.items))
    rows = [row for scores in results for row in caption_rows(scores)]
    # In a thread: the guard reads every completion.
    rewards = await asyncio.to_thread(_rewards, read, rows)
    return {"signature": _signature(service, rows), **rewards}


def _rewards(read: RewardItems, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return reward, error, warnings and whether the guard was subtracted, of every completion."""
    count = sum(map(len, read.numbers))
    rewards, reasons = list[float | None]([None] * count), list[str | None]([None] * count)
    warnings, guarded = [list[str]() for _ in range(count)], [False] * count
    for number, row in zip(chain(*read.numbers), rows, strict=True):
        # Never another score instead: a caption that is its only reference has no ref_msd.
        rewards[number], found = guard_reward(row.get(read.by), row["caption"], read.guard, row["warnings"])
        reasons[number] = row["error"] or (why_missing(read.by, row["warnings"]) if rewards[number] is None else None)
        warnings[number] = list(dict.fromkeys((*found, *row["warnings"])))
        guarded[number] = bool(found and read.guard)
    return {"rewards": rewards, "reasons": reasons, "warnings": warnings, "guarded": guarded}


async def _figure(request: Request, service: Service) -> Any:
    query = validate(schema.FigureQuery, dict(request.query_params))
    requested = await read_items(request, service.settings, service.images)
    if len(requested) != 1:
        raise RequestError(422, f"items: a figure shows one image, got {len(requested)}")

    try:
        content = await _unless_gone(request, service.figure(requested[0], query))
    except RowError as error:
        raise RequestError(422, str(error)) from error
    return Response(content, media_type=schema.FIGURES[query.kind])


async def _images(request: Request, service: Service) -> dict[str, str]:
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


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await work, cancelled when the caller disconnects; the request body must have been read."""

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
