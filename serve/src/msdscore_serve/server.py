"""Server process: connection limits, log lines and graceful shutdown."""

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from msdscore.errors import ConfigError
from msdscore.scoring.spec import ScorerSpec
from msdscore_serve.app import create_app
from msdscore_serve.settings import ServeSettings

GRACE = 30  # seconds for requests in flight when the service stops
KEEP_ALIVE = 15  # seconds between two requests of a connection
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def run_server(spec: ScorerSpec, settings: ServeSettings, *, announce: Callable[[str], None]) -> None:
    """Serve until the process is stopped; accepted requests are finished."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(as_json=settings.log_json))
    for name, level in (("msdscore_serve", logging.INFO), ("uvicorn", logging.ERROR)):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(level)
    with bind(settings) as listener:  # before the weights are loaded, so that a port in use is reported at once
        pipeline = spec.build()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        line = f"msdscore serves http://{host}:{listener.getsockname()[1]}/ with {pipeline.signature}"
        app = create_app(pipeline, settings, spec=spec)
        tell = logging.getLogger("msdscore_serve").info if settings.log_json else announce
        Server(app, settings, started=lambda: tell(line)).run(sockets=[listener])


class LogLines(logging.Formatter):
    """One line per event with time and level, as text or as a JSON object; `fields` of a record are its values."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {**getattr(record, "fields", {})}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        level, message = record.levelname.lower(), record.getMessage()
        if self._as_json:
            return json.dumps({"time": time, "level": level, "message": message, **fields})
        return " ".join([time, level, message, *(f"{name}={value}" for name, value in fields.items())])


def bind(settings: ServeSettings) -> socket.socket:
    """Bind a socket to the address of the service; raises `ConfigError` if that fails."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        if sys.platform != "win32":  # on Windows two services could share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {settings.host} port {settings.port} ({reason}); pass another --port, or 0 for any"
        ) from error
    return listener


class Server(uvicorn.Server):
    """A uvicorn server of the application; `started` is called once it accepts requests."""

    def __init__(self, app: FastAPI, settings: ServeSettings, *, started: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Connection, settings),  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
                timeout_keep_alive=KEEP_ALIVE,
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._service, self._drain, self._announce = app.state.service, settings.drain, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until the proxy sends no more, then finish the accepted ones."""
        self._service.stopping = True  # /readyz says so
        until = asyncio.get_running_loop().time() + self._drain
        while (left := until - asyncio.get_running_loop().time()) > 0 and not self.force_exit:
            await asyncio.sleep(min(left, 0.1))
        self._service.closing.set()  # ends uploads in progress
        await super().shutdown(sockets)


class Connection(H11Protocol):
    """uvicorn's HTTP connection with two limits that it lacks: their number, and the time for headers."""

    def __init__(self, settings: ServeSettings, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._settings = settings
        self._headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Reject a connection beyond the limit, and wait for headers."""
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            transport.write(_FULL)
            transport.close()
            return
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for headers."""
        super().connection_lost(exc)
        self._stop_timer()

    def _watch_headers(self) -> None:
        """Close the connection unless a whole request has come in time; dripping bytes do not extend it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._headers_timer is None and not self.transport.is_closing():
            self._headers_timer = self.loop.call_later(self._settings.header_timeout, self._close_silent)

    def _close_silent(self) -> None:
        self._headers_timer = None
        working = self.cycle is not None and not self.cycle.response_complete
        if not working and self.timeout_keep_alive_task is None:  # between requests uvicorn's limit applies
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
