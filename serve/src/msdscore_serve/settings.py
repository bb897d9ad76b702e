"""Settings of the service: address, access, request limits, and the error for rejected requests."""

import re
from dataclasses import dataclass, fields
from ipaddress import ip_address

from msdscore.errors import ConfigError

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
class ServeSettings:
    """Settings of the service; the defaults are safe on a laptop.

    >>> ServeSettings(host="0.0.0.0", token="a secret of 24 characters").port
    8000
    """

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    allow_hosts: tuple[str, ...] = ()  # host names of a reverse proxy
    embed: tuple[str, ...] = ()  # origins whose pages may show the page in a frame
    allow_origins: tuple[str, ...] = ()  # origins whose pages may call the API
    token: str | None = None  # required from every caller if set
    max_connections: int = 512  # further ones are answered 503 and closed
    header_timeout: float = 10.0  # seconds for the headers of a request, counted from the connection
    body_timeout: float = 10.0  # seconds without a byte of an announced body
    max_body: int = 64 << 20  # bytes of one request
    max_held: int = 256 << 20  # bytes of all bodies in memory at a time; further ones are answered 503
    max_items: int = 64  # images per request
    max_captions: int = 64  # captions per image
    max_tokens: int = 20_000  # per caption, counted as its UTF-8 bytes: no tokenizer returns more tokens than bytes
    max_pixels: int = 50_000_000  # per image
    max_decoded: int = 150_000_000  # pixels in memory over all requests; further images wait
    max_batch: int = 64  # captions per call of the encoder
    max_wait: float = 0.005  # seconds that a request waits for others
    max_queue: int = 256  # images that wait or are processed; further requests are answered 503
    timeout: float = 60.0  # seconds per request
    drain: float = 0.0  # seconds after a signal to stop in which /readyz answers 503 and requests are still accepted
    log_json: bool = False  # log lines are JSON objects
    cache: int = 256 << 20  # bytes of embeddings of images and captions
    max_stored: int = 64 << 20  # bytes of uploaded images; the oldest are dropped first

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("int", int) and field.name not in ("port", "cache") and value < 1:
                raise ConfigError(f"{field.name} must be at least 1, got {value}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_wait", "cache", "drain"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if min(self.timeout, self.header_timeout, self.body_timeout) <= 0:
            raise ConfigError("timeout, header_timeout and body_timeout must be above 0")
        for name in self.allow_hosts:
            if not _HOST_NAME.fullmatch(name.lower()):
                raise ConfigError(f"allow_hosts: expected a host name such as msd.example.org, got {name[:80]!r}")
        for name, origins in (("embed", self.embed), ("allow_origins", self.allow_origins)):
            for origin in origins:
                if not _ORIGIN.fullmatch(origin.lower()):
                    raise ConfigError(f"{name}: expected an origin such as http://localhost:8888, got {origin[:80]!r}")
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
