"""The application: its routes, and how it starts and stops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.serve import answers, openapi
from msdscore.serve.figures import FIGURES, drawing
from msdscore.serve.gathering import ClosingError, QueueFullError
from msdscore.serve.guard import Guard, RefusedError
from msdscore.serve.page import add_page
from msdscore.serve.reading import read_completions, read_items, read_upload
from msdscore.serve.reproduce import scorer_code
from msdscore.serve.schema import ExplainAnswer, RankAnswer, RewardAnswer, RowsAnswer, ScoreAnswer
from msdscore.serve.scored_rows import MOST, worst_rows
from msdscore.serve.service import GoneError, Service, unless_gone
from msdscore.serve.settings import ServeSettings
from msdscore.serve.watching import add_watching
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

GONE = 499  # the caller did not wait; as nginx has it in its logs
Handler = Callable[["Request", Service], Awaitable[Any]]


def create_app(pipeline: Pipeline, settings: ServeSettings, *, spec: ScorerSpec | None = None) -> "FastAPI":
    """The application, ready for any ASGI server; `spec` is what the page's Python export is made from."""
    fastapi = require("fastapi", extra="serve")
    service = Service(pipeline, settings)

    @asynccontextmanager
    async def lifespan(app: "FastAPI") -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app: FastAPI = fastapi.FastAPI(
        title="msdscore",
        version=__version__,
        summary="Judge image captions without references, and see which words the picture does not support.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    _add_questions(app, service)
    add_watching(app, service, scorer=None if spec is None else scorer_code(spec))
    add_page(app, service.judge.signature)
    _answer_problems(app)
    openapi.complete(app)
    app.add_middleware(Guard, settings=settings, observe=service.telemetry.answered)
    return app


def _add_questions(app: "FastAPI", service: Service) -> None:
    """The routes that take pictures, captions and scored files."""
    routes: tuple[tuple[str, Handler, type[Any] | None, str], ...] = (
        ("score", _score, ScoreAnswer, "Score captions, each on its own"),
        ("rank", _rank, RankAnswer, "Rank the captions of a picture by Soft-MSD"),
        ("explain", _explain, ExplainAnswer, "Which words and regions a score comes from"),
        ("reward", _reward, RewardAnswer, "Rewards for completions of a trainer"),
        ("figure", _figure, None, "An explanation as a figure or a page"),
        ("rows", _rows, RowsAnswer, "The worst rows of a scored file"),
    )
    for name, handler, model, summary in routes:
        app.add_api_route(
            f"/v1/{name}",
            _limited(handler, service),
            methods=["POST"],
            response_model=model,
            responses=openapi.responses(name),
            summary=summary,
            name=name,
            openapi_extra=openapi.request(name),
        )


def _limited(handler: Handler, service: Service) -> Callable[..., Awaitable[Any]]:
    """A route that is given up after the time limit, and whose refusals are one line with the right status."""
    from fastapi import Request, Response

    async def route(request: Request) -> Any:
        try:
            async with asyncio.timeout(service.settings.timeout):
                return await handler(request, service)
        except (QueueFullError, ClosingError):
            raise RefusedError(503, "the queue is full; try again in a second") from None
        except TimeoutError:
            reason = f"given up after {service.settings.timeout:g} seconds; send fewer captions"
            raise RefusedError(504, reason) from None
        except GoneError:
            return Response(status_code=GONE)

    return route


async def _score(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings)
    found = await unless_gone(request, service.score(asked, apart=True))
    items = [{"scores": answers.scored(one, item.captions)} for one, item in zip(found, asked, strict=True)]
    return {"signature": service.judge.signature, "items": items}


async def _rank(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings)
    found = await unless_gone(request, service.score(asked, apart=False))
    items = [answers.ranked(one, item.captions) for one, item in zip(found, asked, strict=True)]
    return {"signature": service.judge.signature, "items": items}


async def _explain(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings)
    found = await unless_gone(request, service.explain(asked))
    items = [answers.explained(one, item.captions) for one, item in zip(found, asked, strict=True)]
    return {"signature": service.judge.signature, "items": items}


async def _reward(request: "Request", service: Service) -> dict[str, Any]:
    asked, numbers, total = await read_completions(request, service.settings)
    found = await unless_gone(request, service.score(asked, apart=True))
    return {"signature": service.judge.signature, **answers.rewarded(found, asked, numbers, total)}


async def _figure(request: "Request", service: Service) -> Any:
    from fastapi import Response

    kind = request.query_params.get("kind", "png")
    if kind not in FIGURES:
        raise RefusedError(422, f"kind: expected one of {', '.join(FIGURES)}")
    asked = await read_items(request, service.settings)
    if len(asked) != 1:
        raise RefusedError(422, f"items: a figure shows one picture, got {len(asked)}")

    async def draw() -> bytes:
        (found,) = await service.explain(asked)
        return await service.draw(drawing(found, kind))

    return Response(await unless_gone(request, draw()), media_type=FIGURES[kind])


async def _rows(request: "Request", service: Service) -> dict[str, Any]:
    upload = await read_upload(request, "file", service.settings)
    by, count = (upload.fields.get(name, [""])[0] for name in ("by", "count"))
    if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= MOST):
        raise RefusedError(422, f"count: expected a number from 1 to {MOST}")

    def read() -> dict[str, Any]:
        limit = service.settings.max_rows
        return worst_rows(upload.name, upload.content, by=by or None, count=int(count or MOST), limit=limit)

    return await unless_gone(request, service.read(read))


def _answer_problems(app: "FastAPI") -> None:
    """One form for all that goes wrong, unknown paths and methods too."""
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    def answer(request: Request, status: int, reason: str, headers: Any = None) -> JSONResponse:
        body = {"error": reason, "request_id": request.scope["state"]["request_id"]}
        return JSONResponse(body, status_code=status, headers=headers)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return answer(request, error.status_code, str(error.detail).lower(), error.headers)

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> JSONResponse:
        return answer(request, error.status, error.reason)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(request, 422, str(error.errors()[0].get("msg", "the request cannot be read")))
