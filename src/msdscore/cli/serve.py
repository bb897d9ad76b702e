"""`msdscore serve`: a page to try captions on, and an API."""

from typing import Annotated

import typer

from msdscore.cli import options


def serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    allow_host: Annotated[
        list[str], typer.Option(help="Host name of a reverse proxy in front of the service. Repeatable.")
    ] = [],
    token: Annotated[
        str | None, typer.Option(envvar="MSDSCORE_TOKEN", help="Token that every caller must send (Bearer).")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Captions per call of the encoder.")] = 64,
    max_wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a request waits for others.")] = 5.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Images that may wait; more are answered 503.")] = 256,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until a request is given up.")] = 60.0,
    cache: Annotated[int, typer.Option(min=0, help="MiB of embeddings of images and captions to keep.")] = 256,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    verify: options.Verify = False,
    max_pixels: options.MaxPixels = None,
) -> None:
    """Serve a page and an API on this machine. Stop with Ctrl-C: accepted requests are finished first."""
    from msdscore.serve.server import serve as run
    from msdscore.serve.settings import ServeSettings

    settings = ServeSettings(
        host=host, port=port, allow_hosts=tuple(allow_host), token=token, max_batch=max_batch,
        max_wait=max_wait / 1000, max_queue=max_queue, timeout=timeout, cache=cache << 20,
        **({} if max_pixels is None else {"max_pixels": max_pixels}),
    )  # fmt: skip
    spec = options.make_spec(context.params | {"max_pixels": settings.max_pixels})
    run(spec, settings, announce=lambda line: typer.echo(line, err=True))
