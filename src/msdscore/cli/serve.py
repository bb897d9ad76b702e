"""`msdscore serve`: a web page and an API."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import SPEED, option_in

SERVICE = "Service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Address, token and limits of the service."""

    host: Annotated[str, option_in(SERVICE, help="Address to listen on; a token is required unless it is local.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, option_in(SERVICE, help="Port to listen on; 0 selects a free one.")] = 8000
    allow_host: Annotated[
        list[str], option_in(SERVICE, help="Further accepted host name, e.g. of a reverse proxy. Repeatable.")
    ] = field(default_factory=list)
    embed: Annotated[
        list[str],
        option_in(
            SERVICE, help="Origin, such as http://localhost:8888, that may show the page in a frame. Repeatable."
        ),
    ] = field(default_factory=list)
    token: Annotated[
        str | None, option_in(SERVICE, envvar="MSDSCORE_TOKEN", help="Bearer token that clients must send.")
    ] = None
    timeout: Annotated[float, option_in(SERVICE, min=1, help="Request timeout in seconds.")] = 60.0
    max_batch: Annotated[int, option_in(SPEED, min=1, help="Maximum captions per batch.")] = 64
    max_wait: Annotated[
        float, option_in(SPEED, min=0, help="Milliseconds to wait for other requests to batch with.")
    ] = 5.0
    max_queue: Annotated[
        int, option_in(SPEED, min=1, help="Maximum queued images; further requests get status 503.")
    ] = 256
    cache: Annotated[int, option_in(SPEED, min=0, help="Size of the embedding cache in MiB.")] = 256


def serve(service: ServiceOptions, scorer: options.ScorerOptions) -> None:
    """Serve a web page and an API. Ctrl-C finishes accepted requests and stops."""
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
