"""The service for tests: bodies, a client in the same process, a server on a socket."""

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from msdscore import ScorerSpec
from msdscore.scoring.pipeline import Pipeline
from msdscore.serve.app import create_app
from msdscore.serve.settings import ServeSettings

TOKEN = "a token of many characters"
SPEC = ScorerSpec(encoder="toy")


def picture(colour: str = "red", *, size: tuple[int, int] = (64, 48)) -> bytes:
    place = BytesIO()
    Image.new("RGB", size, colour).save(place, "PNG")
    return place.getvalue()


def asked(colour: str = "red", captions: tuple[str, ...] = ("a red square", "a blue square")) -> dict[str, Any]:
    return {"image": base64.b64encode(picture(colour)).decode(), "captions": list(captions)}


def client(pipeline: Pipeline | None = None, *, raises: bool = True, **settings: Any) -> Any:
    """A client of an application in this process."""
    testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra serve")
    app = create_app(pipeline or SPEC.build(), ServeSettings(**settings), spec=SPEC)
    return testclient.TestClient(app, base_url="http://localhost", raise_server_exceptions=raises)


@contextmanager
def served(pipeline: Pipeline | None = None, **settings: Any) -> Iterator[str]:
    """The address of a server on a free port."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
    app = create_app(pipeline or SPEC.build(), ServeSettings(**settings), spec=SPEC)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
