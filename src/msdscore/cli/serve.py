"""`msdscore serve`: a page to try captions on, and an API."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import SPEED, option_in

SERVICE = "Service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Address, token and limits of the service."""

    host: Annotated[
        str, option_in(SERVICE, help="Address to listen on; other addresses than this machine's need a token.")
    ] = "127.0.0.1"
    port: Annotated[int, option_in(SERVICE, help="Port to listen on; 0 takes a free one.")] = 8000
    allow_host: Annotated[
        list[str], option_in(SERVICE, help="Host name of a reverse proxy in front of the service. Repeatable.")
    ] = field(default_factory=list)
    embed: Annotated[
        list[str],
        option_in(
            SERVICE, help="Origin, such as http://localhost:8888, that may show the page in a frame. Repeatable."
        ),
    ] = field(default_factory=list)
    token: Annotated[
        str | None, option_in(SERVICE, envvar="MSDSCORE_TOKEN", help="Token that every caller must send (Bearer).")
    ] = None
    timeout: Annotated[float, option_in(SERVICE, min=1, help="Seconds after which a request fails.")] = 60.0
    max_batch: Annotated[int, option_in(SPEED, min=1, help="Captions per call of the encoder.")] = 64
    max_wait: Annotated[float, option_in(SPEED, min=0, help="Milliseconds that a request waits for others.")] = 5.0
    max_queue: Annotated[int, option_in(SPEED, min=1, help="Images that may wait; more are answered 503.")] = 256
    cache: Annotated[int, option_in(SPEED, min=0, help="MiB of cached embeddings of images and captions.")] = 256


def serve(service: ServiceOptions, scorer: options.ScorerOptions) -> None:
    """Serve a page and an API on this machine. Stop with Ctrl-C: accepted requests are finished first."""
    from msdscore.serve.server import serve as run
    from msdscore.serve.settings import ServeSettings

    settings = ServeSettings(
        host=service.host, port=service.port, allow_hosts=tuple(service.allow_host), embed=tuple(service.embed),
        token=service.token, max_batch=service.max_batch, max_wait=service.max_wait / 1000, max_queue=service.max_queue,
        timeout=service.timeout, cache=service.cache << 20,
        **({} if scorer.max_pixels is None else {"max_pixels": scorer.max_pixels}),
    )  # fmt: skip
    spec = replace(scorer, max_pixels=settings.max_pixels).spec()
    run(spec, settings, announce=lambda line: typer.echo(line, err=True))
