"""Routes for those who watch over the service."""

from typing import TYPE_CHECKING, Any

from msdscore.serve.requests.schema import Problem, Status, VersionAnswer
from msdscore.serve.work.service import Service
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI


def add_watching(app: "FastAPI", service: Service, *, scorer: str | None) -> None:
    """Health, readiness, version and counters."""
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse

    @app.get("/healthz", summary="Whether the process answers")
    async def healthz() -> Status:
        return Status(status="ok")

    @app.get("/readyz", summary="Whether it takes requests", responses={503: {"model": Problem}}, response_model=Status)
    async def readyz(request: Request) -> Any:
        if service.ready and not service.full:
            return Status(status="ready")
        reason = "the queue is full" if service.full else "starting or stopping"
        body = {"error": reason, "request_id": request.scope["state"]["request_id"]}
        return JSONResponse(body, status_code=503)

    @app.get("/version", summary="Version and signature", responses={401: {"model": Problem}})
    async def version() -> VersionAnswer:
        return VersionAnswer(version=__version__, signature=service.judge.signature, scorer=scorer)

    @app.get("/metrics", summary="Counters for Prometheus", include_in_schema=False)
    async def metrics() -> Response:
        body, kind = service.telemetry.text(service.queue.waiting)
        return Response(body, media_type=kind)
