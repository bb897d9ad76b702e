"""Helpers for tests of the service: request bodies, an in-process client, a server on a socket."""

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from io import BytesIO
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from msdscore import ScorerSpec
from msdscore.scoring.pipeline import Pipeline
from msdscore_serve.app import create_app
from msdscore_serve.server import Server, bind
from msdscore_serve.settings import ServeSettings

TOKEN = "a token of many characters"
SPEC = ScorerSpec(encoder="toy")


def image_bytes(colour: str = "red", *, size: tuple[int, int] = (64, 48)) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def request_body(colour: str = "red", captions: tuple[str, ...] = ("a red square", "a blue square")) -> dict[str, Any]:
    return {"image": base64.b64encode(image_bytes(colour)).decode(), "captions": list(captions)}


def client(pipeline: Pipeline | None = None, *, raises: bool = True, **settings: Any) -> Any:
    """Return a client of an application in this process."""
    testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra serve")
    app = create_app(pipeline or SPEC.build(), ServeSettings(**settings), spec=SPEC)
    return testclient.TestClient(app, base_url="http://localhost", raise_server_exceptions=raises)


def post(
    address: str, path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Send JSON to a server on a socket; return status, response and its headers in lower case."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=300)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(answer.read()), names


def status_of(address: str, path: str = "/readyz", headers: dict[str, str] | None = None) -> int:
    """Return the status of a GET request to a server on a socket."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=60)) as connection:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status


async def sent_to(app: Any, receive: Any, **headers: str) -> int:
    """Return the status of a request for scores to an application, without a server; `receive` yields its body."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    known = {"host": "localhost", "content-type": "application/json"} | headers
    encoded = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in known.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "raw_path": b"/v1/score", "query_string": b""}
    await app({**scope, "headers": encoded, "root_path": "", "scheme": "http"}, receive, send)
    return int(sent[0]["status"])


def of_a_lost_client(app: Any, **headers: str) -> int:
    """Return the status for a client that disconnects before the body."""

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    return asyncio.run(sent_to(app, receive, **headers))


def asset(calls: Any, name: str) -> str:
    """Return the address of a file of the page, which contains a hash."""
    found = re.search(r'"(assets/\w+/)page\.js"', calls.get("/").text)
    assert found
    return f"/{found[1]}{name}"


def behind(app: Any, prefix: str) -> Any:
    """Return an application behind a proxy that strips a path prefix."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(prefix) if scope["path"].startswith(prefix) else "/none"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await app(scope, receive, send)

    return call


def taking_turns(apps: list[Any]) -> Any:
    """Return an application that passes requests of the API to each of these in turn."""
    turns = cycle(apps)

    async def call(scope: Any, receive: Any, send: Any) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (next(turns) if is_api else apps[0])(scope, receive, send)

    return call


@contextmanager
def served(pipeline: Pipeline | None = None, *, prefix: str = "", copies: int = 1, **settings: Any) -> Iterator[str]:
    """Yield the address of a server on a free port, optionally behind a proxy with a prefix.

    Several `copies` of the application take turns, like processes behind a proxy.
    """
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    given, pipeline = ServeSettings(**{"port": 0} | settings), pipeline or SPEC.build()
    app, *others = (create_app(pipeline, given, spec=SPEC) for _ in range(copies))
    started = threading.Event()
    with bind(given) as listener:
        server = Server(app, given, started=started.set)
        if prefix:
            server.config.app = behind(app, prefix)
        if others:
            server.config.app = taking_turns([app, *others])
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert started.wait(30)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()
