"""The built-in encoders, from `table.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from msdscore.registry import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRow:
    """One encoder: how to load it, and its properties.

    `loader` is `"module:callable"`, imported when the encoder is loaded and called as
    `loader(source, name=..., revision=..., device=..., dtype=..., **options)`.
    """

    name: str
    loader: str
    family: str
    source: str = ""  # of the weights: hub name, folder, or open_clip's name and tag; empty when there are none
    licence: str = "unknown"
    parameters: int = 0  # in millions
    context: int = 0  # tokens that the text tower reads at once; 0: no limit
    languages: tuple[str, ...] = ("en",)
    trained_on: str = "unknown"
    domains: tuple[str, ...] = ()  # that it was trained for, other than photographs: as benchmarks name theirs
    citations: tuple[str, ...] = ()  # keys of the BibTeX entries that `msdscore cite` prints
    warning: str = ""  # e.g. the training data contain a benchmark's images
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)


MINI_FOLDER = "package:msdscore/encoders/mini/weights"  # the embedded default, as `align export` writes it

SCHEMES = ("open_clip",)  # families whose loader interprets the text after `FAMILY:` in a name


@cache
def built_in() -> tuple[EncoderRow, ...]:
    """Return the encoders of `table.toml`."""
    return read_table("msdscore.encoders", "encoder", EncoderRow, ("loader",))


def families() -> Mapping[str, str]:
    """The loader of each family, by the `model_type` of a checkpoint's config.json."""
    loaders = {row.family: row.loader for row in built_in() if row.source}
    return {**loaders, "llava_qwen": loaders["llava_onevision"]}  # in the format of the LLaVA-NeXT repository


def languages_of(name: str) -> tuple[str, ...]:
    """The languages that an encoder reads, by its short name or its source; empty if unknown.

    >>> languages_of("clip-b32"), languages_of("models/mine")
    (('en',), ())
    """
    return next((row.languages for row in built_in() if name in (row.name, row.source)), ())


def domains_of(name: str) -> tuple[str, ...]:
    """The domains other than photographs that an encoder was trained for; empty if unknown.

    >>> domains_of("remoteclip-b32"), domains_of("mini")
    (('remote sensing',), ())
    """
    return next((row.domains for row in built_in() if name in (row.name, row.source)), ())
