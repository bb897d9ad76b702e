"""What stands before every request: caller, token, size, security headers, a request id, one line of log."""

import json
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from msdscore.serve.settings import ServeSettings, is_loopback

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


class RefusedError(Exception):
    """A request that is refused with a status and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Guard:
    """ASGI middleware before all routes, so that nothing is read before it was allowed."""

    def __init__(self, app: App, settings: ServeSettings, observe: Callable[[str, int, float], None]) -> None:
        self._app, self._settings, self._observe = app, settings, observe
        self._held = 0  # bytes of bodies of open requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        sending, started = _Sending(send, request_id), time.perf_counter()
        body = _Body(self, receive, headers)
        try:
            self._check(scope["path"], headers)
            body.reserve()
            await self._app(scope, body.take, sending)
        except RefusedError as error:
            await sending.refuse(error.status, error.reason)
        except Exception:  # noqa: BLE001, whatever went wrong, the caller gets an answer and the log the cause
            log.error(json.dumps({"request": request_id, "error": traceback.format_exc()}))
            await sending.refuse(500, "an error of the service; its log has the cause under this request id")
        finally:
            body.release()
            self._note(scope, request_id, sending.status, time.perf_counter() - started)

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._observe(route, status, seconds)
        line = {"request": request_id, "method": scope["method"], "path": route, "status": status}
        log.info(json.dumps(line | {"seconds": round(seconds, 4)}))

    def _check(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuse callers that may not ask."""
        settings, host = self._settings, headers.get("host", "")
        if is_loopback(settings.host) and not is_loopback(_hostname(host)):
            # A page elsewhere can point a name of its own at this machine; it then sends that name.
            raise RefusedError(403, "expected a call to localhost by that name")
        if "origin" in headers and urlsplit(headers["origin"]).netloc != host:
            raise RefusedError(403, "calls from pages of other sites are not answered")
        if settings.token is None or path in OPEN_PATHS or PAGE_PATHS.match(path):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that the time of an answer tells nothing about the token.
        if scheme.lower() != "bearer" or not compare_digest(token.strip().encode(), settings.token.encode()):
            raise RefusedError(401, "expected the header Authorization: Bearer TOKEN")

    def hold(self, size: int, total: int) -> None:
        """Count bytes of a body that has `total` by now, within the limits of one and of all."""
        if total > self._settings.max_body:
            limit = self._settings.max_body
            raise RefusedError(413, f"expected a body of at most {limit} bytes; send fewer or smaller pictures")
        if self._held + size > max(self._settings.max_held, self._settings.max_body):
            raise RefusedError(503, "too much is being sent at one time; try again in a second")
        self._held += size

    def drop(self, size: int) -> None:
        """The bytes of a request that ended."""
        self._held -= size


class _Body:
    """The body of one request: room for what it announces, and no more than it may hold."""

    def __init__(self, guard: Guard, receive: Receive, headers: Mapping[str, str]) -> None:
        self._guard, self._receive = guard, receive
        self._announced = headers.get("content-length", "0")
        self._reserved = self._taken = 0

    def reserve(self) -> None:
        if not (self._announced.isascii() and self._announced.isdigit()):
            raise RefusedError(400, "expected a content length in digits")
        self._grow(int(self._announced))

    async def take(self) -> Message:
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        self._grow(self._taken)
        return message

    def release(self) -> None:
        self._guard.drop(self._reserved)

    def _grow(self, total: int) -> None:
        if total > self._reserved:
            self._guard.hold(total - self._reserved, total)
            self._reserved = total


class _Sending:
    """The answer on its way out, with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id = send, request_id
        self.status, self._begun = 500, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._begun = int(message["status"]), True
            added = _HEADERS | {"x-request-id": self._request_id}
            if self.status == 503:
                added |= {"retry-after": "1"}
            if self.status == 401:
                added |= {"www-authenticate": "Bearer"}
            own = [(name.encode(), value.encode()) for name, value in added.items()]
            message["headers"] = [*message.get("headers", []), *own]
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        """Answer with a status and one line, unless another answer has begun."""
        if self._begun:
            return
        body = json.dumps({"error": reason, "request_id": self._request_id}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def _hostname(host: str) -> str:
    """The name in a Host header, without its port.

    >>> _hostname("localhost:8000"), _hostname("[::1]:8000")
    ('localhost', '::1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
