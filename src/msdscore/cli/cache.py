"""Options of commands that keep embeddings on disk, and how much they saved."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli.progress import tell
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.encoders.cached import CacheSettings, CacheUse

Cache = Annotated[
    Path | None, typer.Option("--cache", help="Folder that keeps embeddings: runs with other settings reuse them.")
]
CacheSize = Annotated[
    str, typer.Option("--cache-size", help="What the cache may take, e.g. 200GB; what was used longest ago goes first.")
]
CacheHalf = Annotated[
    bool, typer.Option("--cache-half", help="Keep embeddings in half precision: half the room, and a new signature.")
]
DEFAULT_SIZE = "64GB"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def cache_settings(folder: Path | None, size: str = DEFAULT_SIZE, half: bool = False) -> "CacheSettings | None":
    """What the three options ask for; None without a folder."""
    from msdscore.encoders.cached import CacheSettings

    if folder is None:
        if half or size != DEFAULT_SIZE:
            raise ConfigError("--cache-size and --cache-half say how embeddings are kept; say where: --cache DIR")
        return None
    return CacheSettings(folder=str(folder), limit=byte_count(size), half=half)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The options of a cache, under their names on the command line."""

    cache: Cache = None
    cache_size: CacheSize = DEFAULT_SIZE
    cache_half: CacheHalf = False

    def settings(self) -> "CacheSettings | None":
        """What they ask for; None without a folder."""
        return cache_settings(self.cache, self.cache_size, self.cache_half)


def byte_count(text: str) -> int:
    """A number of bytes from a text such as `500MB`, `2.5 GB` or `1T`.

    >>> byte_count("500MB"), byte_count("2.5 gb"), byte_count("12")
    (500000000, 2500000000, 12)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)b?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"expected a size such as 500MB or 64GB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def tell_cache(folder: Path | None, use: "CacheUse | None") -> None:
    """How much of what was asked for was in the cache."""
    if folder is not None and use is not None:
        tell(f"cache {folder}: {use}")
