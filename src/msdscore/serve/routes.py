"""The routes: requests read, handed to the service, and answered as plain values."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msdscore.errors import MissingExtraError, RowError
from msdscore.explain.explanation import Explanations
from msdscore.explain.save import encoded
from msdscore.scoring.results import Scores
from msdscore.serve import schema
from msdscore.serve.reading import read_completions, read_form, read_items, read_upload
from msdscore.serve.rows import MOST, RowsQuery
from msdscore.serve.service import Service
from msdscore.serve.settings import RefusedError
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

GONE = 499  # the caller did not wait; as nginx has it in its logs
Handler = Callable[["Request", Service], Awaitable[Any]]
Result = TypeVar("Result")


def add_api(app: "FastAPI", service: Service) -> None:
    """Add score, rank, explain, reward, figure, images and rows, each under `/v1`."""
    routes: tuple[tuple[str, Handler, type[Any] | None, str], ...] = (
        ("score", _score, schema.ScoreAnswer, "Score captions, each on its own"),
        ("rank", _rank, schema.RankAnswer, "Rank the captions of an image by Soft-MSD"),
        ("explain", _explain, schema.ExplainAnswer, "Which words and regions a score comes from"),
        ("reward", _reward, schema.RewardAnswer, "Rewards for completions of a trainer"),
        ("figure", _figure, None, "An explanation as a figure or a page"),
        ("images", _images, schema.StoredAnswer, "Upload an image once, to refer to it by its hash"),
        ("rows", _rows, schema.RowsAnswer, "The worst rows of a scored file"),
    )
    for name, handler, model, summary in routes:
        app.add_api_route(
            f"/v1/{name}",
            _limited(handler, service),
            methods=["POST"],
            response_model=model,
            responses=schema.responses_of(name),
            summary=summary,
            name=name,
            openapi_extra=schema.request_of(name),
        )


def add_probes(app: "FastAPI", service: Service, *, scorer: str | None) -> None:
    """Add health, readiness, version and metrics."""
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse

    refused: dict[int | str, dict[str, Any]] = {401: {"model": schema.Problem}}

    @app.get("/healthz", summary="Whether the process answers")
    async def healthz() -> schema.Status:
        return schema.Status(status="ok")

    busy: dict[int | str, dict[str, Any]] = {503: {"model": schema.Problem}}

    @app.get("/readyz", summary="Whether it takes requests", responses=busy, response_model=schema.Status)
    async def readyz(request: Request) -> Any:
        problem = service.problem
        if problem is None:
            return schema.Status(status="ready")
        body = {"error": problem, "request_id": request.scope["state"]["request_id"]}
        return JSONResponse(body, status_code=503)

    @app.get("/version", summary="Version and signature", responses=refused)
    async def version() -> schema.VersionAnswer:
        return schema.VersionAnswer(version=__version__, signature=service.signature, scorer=scorer)

    text: dict[int | str, dict[str, Any]] = {
        200: {"description": "Prometheus' text form.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get("/metrics", summary="Counters for Prometheus", responses=refused | text, response_class=Response)
    async def metrics() -> Response:
        body, kind = service.metrics.text(service.queue.waiting)
        return Response(body, media_type=kind)


def _limited(handler: Handler, service: Service) -> Callable[..., Awaitable[Any]]:
    """A route that is given up after the time limit, or when its caller has gone."""
    from fastapi import Request, Response
    from starlette.requests import ClientDisconnect

    async def route(request: Request) -> Any:
        try:
            async with asyncio.timeout(service.settings.timeout):
                return await handler(request, service)
        except TimeoutError:
            reason = f"given up after {service.settings.timeout:g} seconds; send fewer captions"
            raise RefusedError(504, reason) from None
        except ClientDisconnect:
            return Response(status_code=GONE)

    return route


async def _score(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(asked, kind="alone"))
    items = [{"scores": score_rows(scores, item.captions)} for scores, item in zip(results, asked, strict=True)]
    return {"signature": service.signature, "items": items}


async def _rank(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(asked, kind="set"))
    items = [
        {
            "scores": score_rows(scores, item.captions),
            "ranking": list(scores.ranking) if isinstance(scores, Scores) else [],
        }
        for scores, item in zip(results, asked, strict=True)
    ]
    return {"signature": service.signature, "items": items}


async def _explain(request: "Request", service: Service) -> Any:
    from fastapi.responses import JSONResponse

    asked = await read_items(request, service.settings, service.images)
    items = await _unless_gone(request, service.explain(asked))
    # As it is: to check thousands of plain numbers against the model takes a tenth of the whole answer's time.
    return JSONResponse({"signature": service.signature, "items": items})


async def _reward(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_completions(request, service.settings, service.images)
    results = await _unless_gone(request, service.score(asked.items, kind="alone"))
    rewards: list[float | None] = [None] * len(asked.reasons)
    reasons = list(asked.reasons)
    for scores, item, own in zip(results, asked.items, asked.completions, strict=True):
        for number, row in zip(own, score_rows(scores, item.captions), strict=True):
            rewards[number], reasons[number] = row["msd"], row["error"]
    return {"signature": service.signature, "rewards": rewards, "reasons": reasons}


async def _figure(request: "Request", service: Service) -> Any:
    from fastapi import Response

    kind = request.query_params.get("kind", "png")
    if kind not in schema.FIGURES:
        raise RefusedError(422, f"kind: expected one of {', '.join(schema.FIGURES)}")
    asked = await read_items(request, service.settings, service.images)
    if len(asked) != 1:
        raise RefusedError(422, f"items: a figure shows one image, got {len(asked)}")

    def draw(explanations: Explanations | None, reasons: dict[int, str]) -> bytes:
        if explanations is None:
            raise RefusedError(422, next(iter(reasons.values())))
        try:
            return encoded(explanations.items, kind)
        except MissingExtraError as error:
            raise RefusedError(501, str(error)) from error

    try:
        content = await _unless_gone(request, service.figure(asked[0], draw))
    except RowError as error:
        raise RefusedError(422, str(error)) from error
    return Response(content, media_type=schema.FIGURES[kind])


async def _images(request: "Request", service: Service) -> dict[str, str]:
    (_, content), _ = await read_upload(request, "image", service.settings)
    return {"image": service.images.add(content, content, len(content))}


async def _rows(request: "Request", service: Service) -> dict[str, Any]:
    upload, fields = await read_form(request, "file", service.settings)
    texts = {name: fields.get(name, [""])[0] for name in ("file", "by", "contains")}
    query = RowsQuery(
        by=texts["by"] or None,
        start=_whole(fields, "start", least=0, most=service.settings.max_rows, default=0),
        count=_whole(fields, "count", least=1, most=MOST, default=MOST),
        low=_bound(fields, "low"),
        high=_bound(fields, "high"),
        contains=texts["contains"],
    )
    if upload is None and not texts["file"]:
        raise RefusedError(422, "expected a file named file, or the name of one that was sent before")

    async def answer() -> dict[str, Any]:
        name = texts["file"] if upload is None else await service.read_rows(*upload)
        try:
            return await service.rows(name, query)
        except ValueError as error:
            raise RefusedError(422, f"file: {error}") from error

    return await _unless_gone(request, answer())


def _whole(fields: Mapping[str, Sequence[str]], name: str, *, least: int, most: int, default: int) -> int:
    text = fields.get(name, [""])[0]
    # By length first: Python refuses to read thousands of digits.
    if text and not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise RefusedError(422, f"{name}: expected a number from {least} to {most}")
    return int(text or default)


def _bound(fields: Mapping[str, Sequence[str]], name: str) -> float | None:
    text = fields.get(name, [""])[0]
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise RefusedError(422, f"{name}: expected a number, got {text[:40]!r}")
    return value


def score_rows(scores: Scores | str, captions: Sequence[str]) -> list[dict[str, Any]]:
    """One row per caption; where the image could not be read, each has that reason."""
    if isinstance(scores, str):
        return [{"caption": caption, "msd": None, "error": scores} for caption in captions]
    # JSON has no NaN.
    return [{name: None if value != value else value for name, value in row.items()} for row in scores.rows()]


async def _unless_gone(request: "Request", work: Coroutine[Any, Any, Result]) -> Result:
    """The result of some work, which is given up when the caller goes away; the body must have been read."""
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
