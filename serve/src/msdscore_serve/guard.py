"""ASGI middleware in front of all routes: host, origin, token, body limits, security headers, request log.

Starlette's `CORSMiddleware` is outside of it and answers preflight requests; `TrustedHostMiddleware` is not used, since
its answer does not say which option allows a host name.
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from hmac import compare_digest
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msdscore_serve.service import Service
from msdscore_serve.settings import RequestError, ServeSettings, is_loopback

log = logging.getLogger("msdscore_serve")
# Probes and the API documentation need no token: they reveal nothing about images or captions.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
# The page contains no data; its requests send the token that the user typed.
PAGE_PATHS = re.compile(r"/((assets|samples)/[A-Za-z0-9_./-]+)?$")
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})  # others are one label of the metrics
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
}


class Guard:
    """Middleware in front of all routes, so that no body is read before the request is allowed."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._headers = app, service, dict(_HEADERS)
        if origins := " ".join(service.settings.embed):  # whose pages may show the page in a frame
            policy = _HEADERS["content-security-policy"]
            framed = policy.replace("frame-ancestors 'none'", f"frame-ancestors 'self' {origins}")
            self._headers["content-security-policy"] = framed
            del self._headers["x-frame-options"]  # it does not support a list of origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject one request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        started, method = time.perf_counter(), scope["method"]
        exchange = _Exchange(self._service, headers, receive, send, self._headers)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        if method == "HEAD":  # like GET; uvicorn sends no body
            scope = {**scope, "method": "GET"}
        try:
            check_caller(self._service.settings, scope["path"], headers)
            exchange.check_length()
            await self._app(scope, exchange.receive, exchange.send)
        except RequestError as error:
            await exchange.reject(error.status, error.reason)
        except asyncio.CancelledError:
            if not self._service.closing.is_set():
                raise
            await exchange.reject(503, "the service is stopping")
        except Exception:
            log.exception("internal error", extra={"fields": {"request": exchange.request_id}})
            await exchange.reject(500, "internal error; see the log of the service for this request id")
        finally:
            self._service.body_bytes -= exchange.received
            seconds, route = time.perf_counter() - started, _route_of(scope)
            labels = method if method in METHODS else "other", route
            self._service.metrics.requests.labels(*labels, str(exchange.status)).inc()
            self._service.metrics.seconds.labels(*labels).observe(seconds)
            fields = {"request": exchange.request_id, "method": method, "path": route, "status": exchange.status}
            log.info("request", extra={"fields": fields | {"seconds": round(seconds, 4)}})


def _route_of(scope: Scope) -> str:
    """Return the path of the route of a request, without names that a client chose."""
    if path := getattr(scope.get("route"), "path", None):
        return str(path)
    page = PAGE_PATHS.match(scope["path"])
    return f"/{page[2]}" if page and page[2] else "none"


def check_caller(settings: ServeSettings, path: str, headers: Mapping[str, str]) -> None:
    """Reject requests with a foreign host name, from a page of another site, or without the token."""
    host, origin = headers.get("host", ""), headers.get("origin")
    name, allowed = hostname(host), {name.lower() for name in settings.allow_host}
    if is_loopback(settings.host) and not (is_loopback(name) or name in allowed):
        # DNS rebinding: another site can resolve its host name to this machine, and then sends that name.
        raise RequestError(403, "expected localhost in the Host header; behind a proxy, start with --allow-host NAME")
    # Pages may call the host that they came from, or an allowed proxy. A proxy may drop its port from the Host header,
    # so an allowed name is accepted with any port.
    if origin is not None and origin.lower() not in {name.lower() for name in settings.allow_origin}:
        site = origin.partition("://")[2]
        if site != host and hostname(site) not in allowed:
            raise RequestError(403, "requests from pages of other sites are rejected; start with --allow-origin ORIGIN")
    if settings.token is None or path in OPEN_PATHS or PAGE_PATHS.match(path):
        return
    scheme, _, token = headers.get("authorization", "").partition(" ")
    # Compared in constant time, so that the response time reveals nothing about the token.
    if scheme.lower() != "bearer" or not compare_digest(token.strip().encode(), settings.token.encode()):
        raise RequestError(401, "expected the header Authorization: Bearer TOKEN")


def hostname(host: str) -> str:
    """Return the name in a Host header, without its port; empty if it is invalid.

    >>> hostname("localhost:8000"), hostname("[::1]:8000"), hostname("[")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class _Exchange:
    """One request and its response: enforces the limits of the body and adds the common headers."""

    def __init__(
        self, service: Service, headers: Mapping[str, str], receive: Receive, send: Send, common: Mapping[str, str]
    ) -> None:
        self._service, self._receive, self._send, self._headers = service, receive, send, headers
        self._common = common  # headers of every response
        # Of a request without a body, nothing needs to be read before its connection is used again.
        empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        given, limit = headers.get("x-request-id", ""), service.settings.max_body
        self.request_id = given if _REQUEST_ID.match(given) else uuid4().hex
        self.status, self._begun, self.received, self._complete = 500, False, 0, empty
        self._too_large = RequestError(413, f"expected a body of at most {limit} bytes; send fewer or smaller images")

    def check_length(self) -> None:
        """Reject a body whose content length exceeds the limit."""
        announced = self._headers.get("content-length", "0")
        if not (announced.isascii() and announced.isdigit()):
            raise RequestError(400, "expected a content length in digits")
        # Memory is counted on arrival: a large announced length with little data must not block others.
        if len(announced) > 18 or int(announced) > self._service.settings.max_body:
            raise self._too_large

    async def receive(self) -> Message:
        """Receive the next part of the body; raises if it stalls, is too large, or the service is stopping."""
        if self._complete:
            return await self._receive()
        message = await self._next()
        size = len(message.get("body", b""))
        self.received += size
        self._service.body_bytes += size
        self._complete = not message.get("more_body", False)
        if self.received > self._service.settings.max_body:
            raise self._too_large
        if self._service.body_bytes > max(self._service.settings.max_held, self._service.settings.max_body):
            raise RequestError(503, "the memory for requests is full; try again in a second")
        return message

    async def _next(self) -> Message:
        waits = self._service.settings.body_timeout
        message, closing = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._service.closing.wait())
        try:
            await asyncio.wait({message, closing}, timeout=waits, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            if closing.done():
                raise RequestError(503, "the service is stopping")
            raise RequestError(408, f"expected the rest of the body, received nothing for {waits:g} seconds")
        finally:
            message.cancel()
            closing.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the common headers; an unread body is discarded before its end."""
        if message["type"] == "http.response.start":
            self.status, self._begun = int(message["status"]), True
            headers = MutableHeaders(scope=message)
            headers.update({**self._common, "x-request-id": self.request_id})
            headers.setdefault("cache-control", "no-store")
            if self.status == 503:
                headers["retry-after"] = "1"
            if self.status == 401:
                headers["www-authenticate"] = "Bearer"
            if not self._complete:  # the rest of the body is not read
                headers["connection"] = "close"
        if message["type"] == "http.response.body" and not (self._complete or message.get("more_body")):
            await self._send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _discard(self) -> None:
        """Read the rest of the body and forget it, within the limits of a body.

        A connection that is closed with unread data is reset. A proxy that was still sending takes that for a failure
        of the service, and sends it no requests for a while.
        """
        if self.status == 408 or self._service.closing.is_set():
            return
        left = self._service.settings.max_body
        with suppress(TimeoutError):
            async with asyncio.timeout(self._service.settings.body_timeout):
                while not self._complete and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)

    async def reject(self, status: int, reason: str) -> None:
        """Respond with a status and one line, unless a response has started."""
        if self._begun:
            return
        answer = JSONResponse({"error": reason, "request_id": self.request_id}, status_code=status)
        await answer({"type": "http"}, self._receive, self.send)
