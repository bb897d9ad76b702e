"""The service: its routes, what they answer, and how it starts and stops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msdscore.errors import RowError, require
from msdscore.explain.document import document
from msdscore.explain.explanation import Explanation, Explanations
from msdscore.scoring.pipeline import Decoded, Pipeline
from msdscore.scoring.results import Scores
from msdscore.serve.gathering import ClosingError, Gatherer, QueueFullError
from msdscore.serve.guard import Guard
from msdscore.serve.judge import Judge, Question
from msdscore.serve.page import add_page
from msdscore.serve.reading import Asked, RefusedError, read_completions, read_items, request_body
from msdscore.serve.schema import (
    ExplainAnswer,
    Item,
    Items,
    Problem,
    RankAnswer,
    RewardAnswer,
    RewardRequest,
    ScoreAnswer,
)
from msdscore.serve.settings import ServeSettings
from msdscore.serve.telemetry import Telemetry
from msdscore.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

log = logging.getLogger("msdscore.serve")
DECODERS = 2  # threads that read pictures while the worker scores others
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        401: "No token, or a wrong one.",
        413: "More than the limits allow.",
        415: "Neither JSON nor multipart.",
        422: "A body that cannot be read.",
        503: "The queue is full; try again after Retry-After seconds.",
        504: "Given up after the time limit.",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Task:
    """What the worker is given: questions to score together, or one to explain."""

    question: Question
    explain: bool = False


class Service:
    """The state behind the routes: a judge, the queue before it, threads that decode, and counters."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings, self.judge, self.telemetry = settings, Judge(pipeline), Telemetry()
        self.queue: Gatherer[Task, Scores | Explanations] = Gatherer(
            self._work,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            max_queue=settings.max_queue,
            observe=self.telemetry.worked,
        )
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="msdscore-decode")
        # Decoded pictures are the largest thing that a request holds: no more of them than may wait.
        self._room = asyncio.Semaphore(settings.max_queue)
        self.ready = False

    async def start(self) -> None:
        """Begin to take requests."""
        self.queue.start()
        self.ready = True

    async def stop(self) -> None:
        """Finish what was taken, then end all threads."""
        self.ready = False
        await self.queue.stop()
        self._decoders.shutdown(wait=True)

    async def ask(self, asked: Asked, *, explain: bool = False, apart: bool = False) -> Scores | Explanations | str:
        """The answer about one picture, or the reason why the picture cannot be read."""
        if self.queue.waiting >= self.settings.max_queue:
            raise QueueFullError
        async with self._room:
            loop = asyncio.get_running_loop()
            try:
                read = partial(self.judge.decode, asked.picture, keep=explain)
                decoded: Decoded = await loop.run_in_executor(self._decoders, read)
                task = Task(Question(decoded, asked.captions, apart), explain)
                return await self.queue.submit(task, size=len(asked.captions))
            except RowError as error:
                self.telemetry.failed(len(asked.captions))
                return str(error)

    async def ask_all(
        self, asked: Sequence[Asked], *, explain: bool = False, apart: bool = False
    ) -> list[Scores | Explanations | str]:
        """The same for several pictures, given up together after the time limit."""
        waiting = [asyncio.ensure_future(self.ask(one, explain=explain, apart=apart)) for one in asked]
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.gather(*waiting)
        finally:
            for one in waiting:
                one.cancel()

    def _work(self, tasks: Sequence[Task]) -> list[Scores | Explanations | Exception]:
        """Answers of one batch: all scores in one call of the encoder, explanations one after the other."""
        plain = [task.question for task in tasks if not task.explain]
        scores = iter(self.judge.score(plain) if plain else [])
        return [self._explain(task.question) if task.explain else next(scores) for task in tasks]

    def _explain(self, question: Question) -> Explanations | Exception:
        try:
            return self.judge.explain(question)
        except RowError as error:
            return error


def create_app(pipeline: Pipeline, settings: ServeSettings) -> "FastAPI":
    """The application, ready for any ASGI server."""
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
    _add_state(app, service)
    add_page(app, service.judge.signature)
    app.add_middleware(Guard, settings=settings, observe=service.telemetry.answered)
    return app


def _add_questions(app: "FastAPI", service: Service) -> None:
    """The four routes that judge captions."""
    routes: tuple[tuple[str, Callable[..., Awaitable[Any]], type[Any], tuple[type[Any], ...], str], ...] = (
        ("/v1/score", _score, ScoreAnswer, (Item, Items), "Score captions, each on its own"),
        ("/v1/rank", _rank, RankAnswer, (Item, Items), "Rank the captions of a picture by Soft-MSD"),
        ("/v1/explain", _explain, ExplainAnswer, (Item, Items), "Which words and regions a score comes from"),
        ("/v1/reward", _reward, RewardAnswer, (RewardRequest,), "Rewards for completions of a trainer"),
    )
    for path, answer, model, bodies, summary in routes:
        names = [body.__name__ for body in bodies]
        app.add_api_route(
            path,
            _guarded(answer, service),
            methods=["POST"],
            response_model=model,
            response_model_exclude_none=False,
            responses=_PROBLEMS,
            summary=summary,
            name=path.rpartition("/")[2],
            openapi_extra=request_body(*names, multipart=path != "/v1/reward"),
        )
    _describe(app, Item, Items, RewardRequest)


def _describe(app: "FastAPI", *models: type[Any]) -> None:
    """Put models of bodies that are read by hand into the OpenAPI document."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        found = made()
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for model in models:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema.pop("$defs", None)
            schemas.setdefault(model.__name__, schema)
        return found

    app.openapi = openapi  # type: ignore[method-assign]


def _guarded(answer: Callable[..., Awaitable[Any]], service: Service) -> Callable[..., Awaitable[Any]]:
    """A route whose refusals are one line with the right status."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def route(request: Request) -> Any:
        def refuse(status: int, reason: str, **headers: str) -> JSONResponse:
            body = {"error": reason, "request_id": request.scope["state"]["request_id"]}
            return JSONResponse(body, status_code=status, headers=headers)

        try:
            return await answer(request, service)
        except RefusedError as error:
            return refuse(error.status, error.reason)
        except (QueueFullError, ClosingError):
            return refuse(503, "the queue is full; try again in a second", **{"Retry-After": "1"})
        except TimeoutError:
            return refuse(504, f"given up after {service.settings.timeout:g} seconds; send fewer captions")

    return route


async def _score(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings)
    answers = await service.ask_all(asked, apart=True)
    items = [{"scores": _rows(found, one.captions)} for found, one in zip(answers, asked, strict=True)]
    return {"signature": service.judge.signature, "items": items}


async def _rank(request: "Request", service: Service) -> dict[str, Any]:
    asked = await read_items(request, service.settings)
    answers = await service.ask_all(asked)
    items = [_ranked(found, one.captions) for found, one in zip(answers, asked, strict=True)]
    return {"signature": service.judge.signature, "items": items}


async def _explain(request: "Request", service: Service) -> dict[str, Any]:
    answers = await service.ask_all(await read_items(request, service.settings), explain=True)
    items = [
        {"error": found, "explanations": []}
        if isinstance(found, str)
        else {"error": None, "explanations": [_explained(item) for item in found if isinstance(item, Explanation)]}
        for found in answers
    ]
    return {"signature": service.judge.signature, "items": items}


async def _reward(request: "Request", service: Service) -> dict[str, Any]:
    asked, numbers = await read_completions(request, service.settings)
    total = sum(map(len, numbers))
    rewards: list[float | None] = [None] * total
    reasons: list[str | None] = [None] * total
    used = [place for place, one in enumerate(asked) if one.captions]
    answers = await service.ask_all([asked[place] for place in used], apart=True)
    for place, found in zip(used, answers, strict=True):
        for number, row in zip(numbers[place], _rows(found, asked[place].captions), strict=True):
            rewards[number], reasons[number] = row["msd"], row["error"]
    return {"signature": service.judge.signature, "rewards": rewards, "reasons": reasons}


def _rows(found: Scores | Explanations | str, captions: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per caption; where the picture could not be read, each has that reason."""
    if isinstance(found, str):
        return [{"caption": caption, "msd": None, "error": found} for caption in captions]
    assert isinstance(found, Scores), "explanations are answered by their own route"
    return [{name: _plain(value) for name, value in row.items()} for row in found.rows()]


def _explained(item: Explanation) -> dict[str, Any]:
    """An explanation with, for every word that has tokens, how it spreads over the patches."""
    spreads = [item.leaning(unit).ravel().round(5).tolist() if unit.tokens else None for unit in item.units]
    return document(item) | {"spreads": spreads}


def _plain(value: Any) -> Any:
    """A number that JSON knows; none for NaN."""
    return None if isinstance(value, float) and value != value else value


def _ranked(found: Scores | Explanations | str, captions: Sequence[str]) -> dict[str, Any]:
    ranking = list(found.ranking) if isinstance(found, Scores) else []
    return {"scores": _rows(found, captions), "ranking": ranking}


def _add_state(app: "FastAPI", service: Service) -> None:
    """Routes for those who watch over the service."""
    from fastapi import Response
    from fastapi.responses import JSONResponse

    @app.get("/healthz", summary="Whether the process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Whether it takes requests", responses={503: {"model": Problem}})
    async def readyz() -> Any:
        full = service.queue.waiting >= service.settings.max_queue
        if service.ready and not full:
            return {"status": "ready"}
        return JSONResponse({"error": "queue full" if full else "starting or stopping"}, status_code=503)

    @app.get("/version", summary="Version and signature")
    async def version() -> dict[str, str]:
        return {"version": __version__, "signature": service.judge.signature}

    @app.get("/metrics", summary="Counters for Prometheus", include_in_schema=False)
    async def metrics() -> Response:
        body, kind = service.telemetry.text(service.queue.waiting)
        return Response(body, media_type=kind)
