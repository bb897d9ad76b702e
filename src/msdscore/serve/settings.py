"""Where the service listens, who may call it, and how much one request may ask."""

from dataclasses import dataclass, fields
from ipaddress import ip_address

from msdscore.errors import ConfigError

SHORTEST_TOKEN = 16  # characters; shorter ones can be guessed over a network


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of the service; the defaults are safe on a laptop.

    >>> ServeSettings(host="0.0.0.0", token="a secret of 24 characters").port
    8000
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None  # required from every caller where it is set
    max_body: int = 32 << 20  # bytes of one request
    max_held: int = 256 << 20  # bytes of all bodies that are held at one time; more are answered 503
    max_items: int = 64  # pictures per request
    max_captions: int = 64  # captions per picture
    max_tokens: int = 20_000  # per caption, counted as its UTF-8 bytes: no tokenizer makes more tokens than bytes
    max_pixels: int = 50_000_000  # per picture
    max_rows: int = 1_000_000  # of a scored file
    max_batch: int = 64  # captions that one call of the encoder takes
    max_wait: float = 0.005  # seconds that a request waits for company
    max_queue: int = 256  # pictures that wait or are worked on; requests beyond are answered 503
    timeout: float = 60.0  # seconds until a request is given up
    cache: int = 256 << 20  # bytes of vectors of pictures and captions that are remembered

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("int", int) and field.name not in ("port", "cache") and value < 1:
                raise ConfigError(f"{field.name} must be at least 1, got {value}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must lie between 0 and 65535, got {self.port}")
        if self.max_wait < 0 or self.timeout <= 0 or self.cache < 0:
            raise ConfigError(
                "max_wait, timeout and cache must not be negative, and timeout not 0, "
                f"got {self.max_wait}, {self.timeout} and {self.cache}"
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ConfigError(f"the token must have at least {SHORTEST_TOKEN} characters, got {len(self.token)}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"binding to {self.host} lets other machines call the service: give --token, or bind to 127.0.0.1"
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
