"""`msdscore serve`: a web page and an API."""

from dataclasses import dataclass, replace

import typer

from msdscore.cli import options
from msdscore.cli.options import SPEED, option

SERVICE = "Service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Address, token and limits of the service."""

    host: str = option(SERVICE, "127.0.0.1", help="Address to listen on; a token is required unless it is local.")
    port: int = option(SERVICE, 8000, help="Port to listen on; 0 selects a free one.")
    allow_host: list[str] = option(SERVICE, [], help="Further accepted host name, e.g. of a reverse proxy. Repeatable.")
    embed: list[str] = option(
        SERVICE, [], help="Origin, such as http://localhost:8888, that may show the page in a frame. Repeatable."
    )
    allow_origin: list[str] = option(
        SERVICE, [], help="Origin, such as https://app.example.org, whose pages may call the API. Repeatable."
    )
    token: str | None = option(SERVICE, None, envvar="MSDSCORE_TOKEN", help="Bearer token that clients must send.")
    timeout: float = option(SERVICE, 60.0, min=1, help="Request timeout in seconds.")
    drain: float = option(
        SERVICE, 0.0, min=0, help="Seconds to go on after a signal to stop while /readyz answers 503, for proxies."
    )
    log_json: bool = option(SERVICE, False, "--log-json", help="Log JSON lines instead of text.")
    max_batch: int = option(SPEED, 64, min=1, help="Maximum captions per batch.")
    max_wait: float = option(SPEED, 5.0, min=0, help="Milliseconds to wait for other requests to batch with.")
    max_queue: int = option(SPEED, 256, min=1, help="Maximum queued images; further requests get status 503.")
    cache: int = option(SPEED, 256, min=0, help="Size of the embedding cache in MiB.")


def serve(service: ServiceOptions, scorer: options.ScorerOptions) -> None:
    """Serve a web page and an API. Ctrl-C finishes accepted requests and stops."""
    from msdscore_serve.server import run_server
    from msdscore_serve.settings import ServeSettings

    settings = ServeSettings(
        host=service.host, port=service.port, allow_hosts=tuple(service.allow_host), embed=tuple(service.embed),
        allow_origins=tuple(service.allow_origin),
        token=service.token, max_batch=service.max_batch, max_wait=service.max_wait / 1000, max_queue=service.max_queue,
        timeout=service.timeout, drain=service.drain, log_json=service.log_json, cache=service.cache << 20,
        **({} if scorer.max_pixels is None else {"max_pixels": scorer.max_pixels}),
    )  # fmt: skip
    spec = replace(scorer, max_pixels=settings.max_pixels).spec()
    run_server(spec, settings, announce=lambda line: typer.echo(line, err=True))
