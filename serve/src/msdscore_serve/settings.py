"""Settings of the service: address, access, request limits, and the error for rejected requests."""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from msdscore.cli.options import SPEED, option
from msdscore.errors import ConfigError

SERVICE = "Service"  # panel of the options
SHORTEST_TOKEN = 16  # characters; shorter ones can be guessed over a network
_ORIGIN = re.compile(r"https?://([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[!-~]([ -~]*[!-~])?")  # what a header can contain
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class RequestError(Exception):
    """Error that rejects a request, with an HTTP status and a one-line message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Address, token and limits of the service, as options of `msdscore serve`."""

    host: str = option(SERVICE, "127.0.0.1", help="Address to listen on; a token is required unless it is local.")
    port: int = option(SERVICE, 8000, min=0, max=65535, help="Port to listen on; 0 selects a free one.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(ServiceOptions):
    """Settings of the service: its options, and limits that protect it; the defaults are safe on a laptop.

    >>> ServeSettings(host="0.0.0.0", token="a secret of 24 characters").port
    8000
    """

    max_connections: int = 512  # further ones are answered 503 and closed
    header_timeout: float = 10.0  # seconds for the headers of a request, counted from the connection
    body_timeout: float = 10.0  # seconds without a byte of an announced body
    max_body: int = 64 << 20  # bytes of one request
    max_held: int = 256 << 20  # bytes of all bodies in memory at a time; further ones are answered 503
    max_items: int = 64  # images per request
    max_captions: int = 64  # captions per image
    max_tokens: int = 20_000  # per caption, counted as its UTF-8 bytes: no tokenizer returns more tokens than bytes
    max_pixels: int = 50_000_000  # per image
    max_decoded: int = 64  # decoded images in memory over all requests; further ones wait
    max_stored: int = 64 << 20  # bytes of uploaded images; the oldest are dropped first

    def __post_init__(self) -> None:
        host, origin = "a host name such as msd.example.org", "an origin such as http://localhost:8888"
        checked = {"allow_host": (_HOST_NAME, host), "embed": (_ORIGIN, origin), "allow_origin": (_ORIGIN, origin)}
        for name, (pattern, expected) in checked.items():
            for value in getattr(self, name):
                if not pattern.fullmatch(value.lower()):
                    raise ConfigError(f"{name}: expected {expected}, got {value[:80]!r}")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ConfigError("the token must consist of printable ASCII characters, without spaces at its ends")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ConfigError(f"the token must have at least {SHORTEST_TOKEN} characters, got {len(self.token)}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"binding to {self.host} lets other machines call the service: pass --token, or bind to 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("192.168.1.5")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
