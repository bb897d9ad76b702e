"""The service as a process: a server on a socket, logs as JSON lines, a clean end on Ctrl-C and SIGTERM."""

import logging
import sys
from collections.abc import Callable

from msdscore.errors import require
from msdscore.scoring.spec import ScorerSpec
from msdscore.serve.app import create_app
from msdscore.serve.settings import ServeSettings

GRACE = 30  # seconds that open requests get when the service stops


def serve(spec: ScorerSpec, settings: ServeSettings, *, announce: Callable[[str], None]) -> None:
    """Serve until the process is told to stop; requests that were taken are finished."""
    uvicorn = require("uvicorn", extra="serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("msdscore.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    pipeline = spec.build()
    app = create_app(pipeline, settings, spec=spec)
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"msdscore serves http://{shown}:{settings.port}/ with {pipeline.signature}")
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        # A slow or silent caller must not hold a connection for ever.
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=64 << 10,
    )
