"""Shards by pattern: `shards/{00000..01231}.tar`, `s3://bucket/*.tar`, a folder of tars; and their scores' names."""

import re
from collections.abc import Iterable, Sequence
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
    count = prod(_count(inside) for inside in _BRACES.findall(pattern))
    if count > MOST_SHARDS:
        raise ConfigError(f"{shortened(pattern)}: {count:,} names; expected at most {MOST_SHARDS:,} shards in one run")
    found = _unbraced(pattern)
    return [name for one in found for name in (stores.matching(one) if _is_glob(one) else [one])]


def expand_all(patterns: Iterable[str]) -> list[str]:
    """The shards of several patterns, each once.

    Raises:
        InputError: a pattern fits nothing.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        found = expand(pattern)
        if not found:
            raise InputError(f"{shortened(pattern)}: no shards there; expected tars, or a pattern that fits some files")
        names.update(dict.fromkeys(found))
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
    path = Path(stores.base_name(shard))
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return plain.stem


def is_shard(name: str) -> bool:
    """Whether a name looks like that of a shard.

    >>> is_shard("a/{00000..00009}.tar"), is_shard("a dog runs.")
    (True, False)
    """
    path = Path(stores.base_name(name))
    suffix = path.with_suffix("").suffix if path.suffix.lower() in _COMPRESSED else path.suffix
    return suffix.lower() in SUFFIXES


def _unbraced(pattern: str) -> list[str]:
    """Every name that the braces of a pattern stand for, as a shell would expand them."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], _unbraced(pattern[match.end() :])
    return [f"{before}{choice}{rest}" for choice in _choices(match[1]) for rest in after]


def _count(inside: str) -> int:
    bounds = _RANGE.fullmatch(inside)
    return inside.count(",") + 1 if bounds is None else int(bounds[2]) - int(bounds[1]) + 1


def _choices(inside: str) -> list[str]:
    bounds = _RANGE.fullmatch(inside)
    if bounds is None:
        return inside.split(",")
    low, high = int(bounds[1]), int(bounds[2])
    if high < low:
        raise ConfigError(f"{{{inside}}}: expected a range from a smaller to a larger number, as in {{00000..01231}}")
    return [f"{number:0{len(bounds[1])}d}" for number in range(low, high + 1)]


def _is_glob(pattern: str) -> bool:
    return any(sign in stores.parted(pattern)[0] for sign in "*?[")
