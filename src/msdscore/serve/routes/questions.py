"""The routes that take pictures, captions and scored files."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msdscore.serve.requests.guard import RefusedError
from msdscore.serve.requests.reading import read_completions, read_items, read_upload
from msdscore.serve.requests.schema import ExplainAnswer, RankAnswer, RewardAnswer, RowsAnswer, ScoreAnswer
from msdscore.serve.routes import answers, openapi
from msdscore.serve.routes.scored_rows import MOST, worst_rows
from msdscore.serve.work.gathering import ClosingError, QueueFullError
from msdscore.serve.work.service import GoneError, Service, unless_gone

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

GONE = 499  # the caller did not wait; as nginx has it in its logs
Handler = Callable[["Request", Service], Awaitable[Any]]


def add_questions(app: "FastAPI", service: Service) -> None:
    """Score, rank, explain, reward, figure and rows, each under `/v1`."""
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
    from starlette.requests import ClientDisconnect

    async def route(request: Request) -> Any:
        try:
            async with asyncio.timeout(service.settings.timeout):
                return await handler(request, service)
        except (QueueFullError, ClosingError):
            raise RefusedError(503, "the queue is full; try again in a second") from None
        except TimeoutError:
            reason = f"given up after {service.settings.timeout:g} seconds; send fewer captions"
            raise RefusedError(504, reason) from None
        except (GoneError, ClientDisconnect):
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
    asked = await read_completions(request, service.settings)
    found = await unless_gone(request, service.score(asked.items, apart=True))
    return {"signature": service.judge.signature, **answers.rewarded(found, asked)}


async def _figure(request: "Request", service: Service) -> Any:
    from fastapi import Response

    kind = request.query_params.get("kind", "png")
    if kind not in answers.FIGURES:
        raise RefusedError(422, f"kind: expected one of {', '.join(answers.FIGURES)}")
    asked = await read_items(request, service.settings)
    if len(asked) != 1:
        raise RefusedError(422, f"items: a figure shows one picture, got {len(asked)}")

    async def draw() -> bytes:
        (found,) = await service.explain(asked)
        return await service.draw(answers.drawing(found, kind))

    return Response(await unless_gone(request, draw()), media_type=answers.FIGURES[kind])


async def _rows(request: "Request", service: Service) -> dict[str, Any]:
    upload = await read_upload(request, "file", service.settings)
    by, count = (upload.fields.get(name, [""])[0] for name in ("by", "count"))
    if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= MOST):
        raise RefusedError(422, f"count: expected a number from 1 to {MOST}")

    def read() -> dict[str, Any]:
        limit = service.settings.max_rows
        return worst_rows(upload.name, upload.content, by=by or None, count=int(count or MOST), limit=limit)

    return await unless_gone(request, service.read(read))
