"""What stands before every request: token, size, security headers, a request id, one line of log."""

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any
from uuid import uuid4

from msdscore.serve.settings import ServeSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("msdscore.serve")
# Who watches over the process asks these without a token; they tell nothing about pictures or captions.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# The page itself holds no data; its calls carry the token that the reader typed.
PAGE_PATHS = re.compile(r"/(assets/[a-z0-9_.-]+|samples/[a-z0-9_.-]+)?$")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}$")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
}
# FastAPI's page of the API loads its script from a CDN unless told otherwise; ours is plain and local.


class Guard:
    """ASGI middleware; the outermost, so that nothing is read before it was allowed."""

    def __init__(self, app: App, settings: ServeSettings, observe: Callable[[str, int, float], None]) -> None:
        self._app, self._settings, self._observe = app, settings, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] = [*message.get("headers", []), *_added(request_id)]
            await send(message)

        try:
            refused = self._refusal(scope["path"], headers)
            if refused is not None:
                await _refuse(answer, *refused, request_id)
            else:
                await self._app(scope, _limited(receive, self._settings.max_body), answer)
        except TooLargeError:
            await _refuse(answer, 413, _too_large(self._settings), request_id)
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "none")
            self._observe(route, status, seconds)
            line = {"request": request_id, "method": scope["method"], "path": route, "status": status}
            log.info(json.dumps(line | {"seconds": round(seconds, 4)}))

    def _refusal(self, path: str, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """Status and reason of a request that may not go on."""
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._settings.max_body:
            return 413, _too_large(self._settings)
        if self._settings.token is None or path in OPEN_PATHS or PAGE_PATHS.match(path):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that the time of an answer tells nothing about the token.
        if scheme.lower() == "bearer" and compare_digest(token.strip().encode(), self._settings.token.encode()):
            return None
        return 401, "expected the header Authorization: Bearer TOKEN"


class TooLargeError(Exception):
    """A body that went on past its limit."""


def _limited(receive: Receive, most: int) -> Receive:
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise TooLargeError
        return message

    return take


def _too_large(settings: ServeSettings) -> str:
    return f"expected a body of at most {settings.max_body} bytes; send fewer or smaller pictures"


def _added(request_id: str) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in (_HEADERS | {"x-request-id": request_id}).items()]


async def _refuse(send: Send, status: int, reason: str, request_id: str) -> None:
    body = json.dumps({"error": reason, "request_id": request_id}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
