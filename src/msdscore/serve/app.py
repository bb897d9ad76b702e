"""The ASGI application: routes, page, start and stop, and one form for every refusal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore.serve.guard import OPEN_PATHS, Guard
from msdscore.serve.page import add_page, scorer_code
from msdscore.serve.routes import add_api, add_probes
from msdscore.serve.schema import complete_openapi
from msdscore.serve.service import Service
from msdscore.serve.settings import RefusedError, ServeSettings
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(pipeline: Pipeline, settings: ServeSettings, *, spec: ScorerSpec | None = None) -> "FastAPI":
    """The application for any ASGI server; the page's Python export is made from `spec`."""
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
        summary="Judge image captions without references, and see which words the image does not support.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    add_api(app, service)
    add_probes(app, service, scorer=None if spec is None else scorer_code(spec))
    add_page(app, service.signature)
    _add_error_handlers(app)
    complete_openapi(app, token=settings.token is not None, open_paths=OPEN_PATHS)
    app.add_middleware(Guard, service=service)
    return app


def _add_error_handlers(app: "FastAPI") -> None:
    """One form for every refusal, unknown paths and methods too."""
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
