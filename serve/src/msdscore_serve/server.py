"""Server process: connection limits, JSON-lines logs and graceful shutdown."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msdscore.errors import ConfigError, require
from msdscore.scoring.spec import ScorerSpec
from msdscore_serve.app import create_app
from msdscore_serve.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Server

GRACE = 30  # seconds for requests in flight when the service stops
KEEP_ALIVE = 15  # seconds between two requests of a connection
PROBES = (0.0, 0.05, 0.5, 2.0)  # seconds after which a client that has closed its side is sent a probe
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # clients ignore it
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def run_server(spec: ScorerSpec, settings: ServeSettings, *, announce: Callable[[str], None]) -> None:
    """Serve until the process is stopped; accepted requests are finished."""
    require("uvicorn", extra="serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("msdscore_serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    with bind(settings) as listener:  # before the weights are loaded, so that a port in use is reported at once
        pipeline = spec.build()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        line = f"msdscore serves http://{host}:{listener.getsockname()[1]}/ with {pipeline.signature}"
        app = create_app(pipeline, settings, spec=spec)
        make_server(app, settings, started=lambda: announce(line)).run(sockets=[listener])


def bind(settings: ServeSettings) -> socket.socket:
    """Bind a socket to the address of the service; raises `ConfigError` if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # on Windows two services could share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {settings.host} port {settings.port} ({reason}); pass another --port, or 0 for any"
        ) from error
    return listener


def make_server(app: "FastAPI", settings: ServeSettings, *, started: Callable[[], None] = lambda: None) -> "Server":
    """Create a uvicorn server for the application; `started` is called once it accepts requests."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.service.closing.set()  # ends uploads in progress
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            http=_connection_class(settings),
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
            timeout_keep_alive=KEEP_ALIVE,
            h11_max_incomplete_event_size=64 << 10,
        )
    )


def _connection_class(settings: ServeSettings) -> type[asyncio.Protocol]:
    """uvicorn's HTTP connection with two limits that it lacks: their number, and the time for headers."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        _headers_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.write(_FULL)
                transport.close()
                return
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_timer()

        def eof_received(self) -> bool:  # type: ignore[override]
            """Keep the connection of a client that has only closed its side; one that is gone rejects the probes.

            Without them, the work for a closed connection would not be cancelled.
            """
            if self.cycle is None or self.cycle.more_body or self.cycle.response_started:
                return False
            self.cycle.keep_alive = False
            for seconds in PROBES:
                self.loop.call_later(seconds, self._probe, self.cycle)
            return True

        def _probe(self, cycle: Any) -> None:
            if not cycle.response_started and not self.transport.is_closing():
                self.transport.write(_PROBE)

        def _watch_headers(self) -> None:
            """Close the connection unless a whole request has come in time; dripping bytes do not extend it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()
            elif self._headers_timer is None and not self.transport.is_closing():
                self._headers_timer = self.loop.call_later(settings.header_timeout, self._close_silent)

        def _close_silent(self) -> None:
            self._headers_timer = None
            working = self.cycle is not None and not self.cycle.response_complete
            if not working and self.timeout_keep_alive_task is None:  # between requests uvicorn's limit applies
                self.transport.close()

        def _stop_timer(self) -> None:
            if self._headers_timer is not None:
                self._headers_timer.cancel()
                self._headers_timer = None

    return Connection
