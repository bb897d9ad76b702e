"""Shards by pattern: `shards/{00000..01231}.tar`, `s3://bucket/*.tar`, a folder of tars; and their scores' names."""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from pathlib import Path

from msdscore.errors import ConfigError, InputError, shortened
from msdscore.io import stores

SUFFIXES = (".tar", ".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".json")
_COMPRESSED = (".gz", ".zst")
_BRACES = re.compile(r"\{([^{}]*)\}")
MOST_SHARDS = 1_000_000  # that one pattern may name
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand(pattern: str) -> list[str]:
    """The shards that a pattern names; braces may stand for shards that are not there, other patterns cannot.

    >>> expand("part-{a,b}/{08..10}.tar")[:4]
    ['part-a/08.tar', 'part-a/09.tar', 'part-a/10.tar', 'part-b/08.tar']
    """
    if not stores.is_address(pattern) and Path(pattern).is_dir():
        return stores.matching(str(Path(pattern) / "*.tar"))
    choices: list[Sequence[str | int]] = []
    widths: list[int] = []
    for number, text in enumerate(_BRACES.split(pattern)):  # every second one stood in braces
        bounds = _RANGE.fullmatch(text) if number % 2 else None
        if bounds and int(bounds[2]) < int(bounds[1]):
            raise ConfigError(f"{{{text}}}: expected a range from a smaller to a larger number, as in {{00000..01231}}")
        widths.append(len(bounds[1]) if bounds else 0)
        numbers = range(int(bounds[1]), int(bounds[2]) + 1) if bounds else None
        choices.append(numbers or (text.split(",") if number % 2 else [text]))
    count = prod(map(len, choices))
    if count > MOST_SHARDS:
        raise ConfigError(f"{shortened(pattern)}: {count:,} names; expected at most {MOST_SHARDS:,} shards in one run")
    shards: list[str] = []
    for parts in product(*choices):
        name = "".join(str(part).zfill(width) for part, width in zip(parts, widths, strict=True))
        is_glob = any(sign in stores.parted(name)[0] for sign in "*?[")
        shards += stores.matching(name) if is_glob else [name]
    return shards


def expand_all(patterns: Iterable[str]) -> list[str]:
    """The shards of several patterns, each once.

    Raises:
        InputError: a pattern fits nothing.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        shards = expand(pattern)
        if not shards:
            raise InputError(f"{shortened(pattern)}: no shards there; expected tars, or a pattern that fits some files")
        names.update(dict.fromkeys(shards))
    return list(names)


def score_names(shards: Sequence[str]) -> list[str]:
    """The file name of every shard's scores: its own with the suffix .parquet.

    >>> score_names(["s3://bucket/00000.tar", "rows.jsonl.gz"])
    ['00000.parquet', 'rows.parquet']
    """
    owner: dict[str, str] = {}
    for shard in shards:
        name = f"{stem(shard)}.parquet"
        if (other := owner.setdefault(name, shard)) != shard:
            raise ConfigError(
                f"{shortened(other)} and {shortened(shard)} would both become {name}; score them into two folders"
            )
    return list(owner)


def stem(shard: str) -> str:
    """A shard's name without folder and suffixes."""
    return _unpacked(shard).stem


def is_shard(name: str) -> bool:
    """Whether a name looks like that of a shard.

    >>> is_shard("a/{00000..00009}.tar"), is_shard("a dog runs.")
    (True, False)
    """
    return _unpacked(name).suffix.lower() in SUFFIXES


def _unpacked(name: str) -> Path:
    """A file's name without folder and the suffix of a compression."""
    path = Path(stores.base_name(name))
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
