"""`msdscore serve`: a web page and an API."""

from dataclasses import asdict, replace

import typer

from msdscore.cli.options import ScorerOptions
from msdscore_serve.settings import ServeSettings, ServiceOptions


def serve(service: ServiceOptions, scorer: ScorerOptions) -> None:
    """Serve a web page and an API. Ctrl-C finishes accepted requests and stops."""
    from msdscore_serve.server import run_server

    settings = ServeSettings(**asdict(service))
    if scorer.max_pixels is not None:
        settings = replace(settings, max_pixels=scorer.max_pixels)
    spec = replace(scorer, max_pixels=settings.max_pixels).spec()
    run_server(spec, settings, announce=lambda line: typer.echo(line, err=True))
