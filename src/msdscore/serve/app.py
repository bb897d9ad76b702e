"""The application: its parts put together, how it starts and stops, and the form of what goes wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.serve.page.files import add_page
from msdscore.serve.page.reproduce import scorer_code
from msdscore.serve.requests.guard import Guard, RefusedError
from msdscore.serve.routes import openapi
from msdscore.serve.routes.questions import add_questions
from msdscore.serve.routes.watching import add_watching
from msdscore.serve.settings import ServeSettings
from msdscore.serve.work.service import Service
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI


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
    add_questions(app, service)
    add_watching(app, service, scorer=None if spec is None else scorer_code(spec))
    add_page(app, service.judge.signature)
    _answer_problems(app)
    openapi.complete(app)
    app.add_middleware(Guard, settings=settings, observe=service.telemetry.answered)
    return app


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
