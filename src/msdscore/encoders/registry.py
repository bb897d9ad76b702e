"""Encoder registry: the encoders of `table.toml`, of plugins and of this process; list, load and register them."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msdscore.encoders.checkpoints import (
    OPEN_CLIP,
    TRANSFORMERS,
    loading,
    local_checkpoint,
    locate,
    looks_like_hub_name,
)
from msdscore.errors import ConfigError, MissingExtraError, WeightsError, require, unknown_name
from msdscore.registry import PluginWarning, Registry, import_object, packaged_rows, resolve

if TYPE_CHECKING:
    from msdscore.encoders.base import Encoder

__all__ = [
    "EncoderRow",
    "PluginWarning",
    "encoder_folder",
    "find_row",
    "list_encoders",
    "load_encoder",
    "register_encoder",
]


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


DTYPES = ("auto", "float32", "float16", "bfloat16")
SCHEMES = ("open_clip",)  # families whose loader interprets the text after `FAMILY:` in a name


@cache
def built_in() -> tuple[EncoderRow, ...]:
    """Return the encoders of `table.toml`."""
    return packaged_rows("msdscore.encoders", "encoder", EncoderRow)


def families() -> Mapping[str, str]:
    """The loader of each family, by the `model_type` of a checkpoint's config.json."""
    loaders = {row.family: row.loader for row in built_in() if row.source}
    return {**loaders, "llava_qwen": loaders["llava_onevision"]}  # in the format of the LLaVA-NeXT repository


def built_in_row(name: str) -> EncoderRow | None:
    """The row of a built-in encoder by its short name or its source; None for any other name.

    >>> built_in_row("remoteclip-b32").domains, built_in_row("models/mine")
    (('remote sensing',), None)
    """
    return next((row for row in built_in() if name in (row.name, row.source)), None)


ENCODERS = Registry(
    "encoder", EncoderRow, built_in,
    lambda name, target: EncoderRow(name=name, loader=f"{__name__}:load_imported", family="imported"),
)  # fmt: skip
_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_CLIP_SIZE = re.compile(r"clip-vit-(base|large)-patch(\d+)(-\d+)?")


def list_encoders() -> tuple[EncoderRow, ...]:
    """Return every encoder with a short name: built in, registered, or from plugins.

    >>> [row.name for row in list_encoders()][:2]
    ['mini', 'toy']
    """
    return tuple(ENCODERS.rows().values())


def register_encoder(row: EncoderRow) -> None:
    """Register an encoder for this process; a package does so permanently with an entry point in `msdscore.encoders`.

    Raises:
        ConfigError: another encoder has that name.
    """
    ENCODERS.add(row)


def find_row(name: str, *, revision: str | None = None) -> EncoderRow:
    """Return the row of a short name, or build one for a folder or hub name from its config.json.

    A name such as `open_clip:ViT-B-32/laion2b_s34b_b79k` is passed to that library, and `mine:load` is imported.

    Raises:
        UnknownNameError: unknown encoder or model family.
        WeightsError: a folder or hub name whose config.json is missing.
    """
    row = ENCODERS.own().get(name) or (known := ENCODERS.rows()).get(name)
    if row is not None:
        return row
    scheme, _, rest = name.partition(":")
    if rest and scheme in SCHEMES:
        return EncoderRow(name=name, loader=families()[scheme], family=scheme, source=rest)
    if (row := ENCODERS.imported(name)) is not None:
        return row
    is_folder = bool(name) and Path(name).expanduser().is_dir()
    # Common aliases: the end of a hub name, or the paper's `ViT-B/32`.
    meant = [row.name for row in known.values() if _plain(name) in map(_plain, _other_names(row))][:2]
    if is_folder or (looks_like_hub_name(name) and not meant):
        checkpoint = local_checkpoint(name, TRANSFORMERS, OPEN_CLIP)
        if checkpoint is None:
            checkpoint = require("msdscore_torch.hub", extra="hf").find_config(name, revision=revision)
        kind = checkpoint.model_type()
        if kind not in families():
            raise unknown_name(f"model type of {name!r}:", kind, families())
        return EncoderRow(name=name, loader=families()[kind], family=kind, source=name)
    if (name.startswith((".", "/", "~")) or Path(name).is_absolute()) and not meant:  # with a drive on Windows
        raise WeightsError(f"folder {name!r} does not exist; pass an existing folder, a hub name or a short name")
    spelled = {_plain(other): row.name for row in known.values() for other in (*_other_names(row), row.name)}
    near = [spelled[other] for other in get_close_matches(_plain(name), spelled, n=4, cutoff=0.6)]
    raise unknown_name("encoder", name, known, near=meant or list(dict.fromkeys(near))[:2])


def load_encoder(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    verify: bool = False,
    **options: Any,
) -> "Encoder":
    """Load an encoder by short name, hub name or folder; `options` are those of its family.

    `verify` computes the SHA-256 of its weights from every byte; otherwise listed files are checked by their CRC-32,
    and others over 256 MiB by their timestamps and a sample of blocks.

    >>> load_encoder("toy").signature
    'toy@1'

    Raises:
        UnknownNameError: unknown encoder or option.
        WeightsError: its weights are missing, unreachable or damaged.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be auto or one of {', '.join(DTYPES[1:])}, got {dtype!r}")
    with loading(verify=verify):
        row = find_row(name, revision=revision)
        loader = resolve(row.loader, f"encoder {row.name!r}")
        chosen = {**row.options, **options}
        encoder: Encoder = loader(row.source, name=name, revision=revision, device=device, dtype=dtype, **chosen)
    module = (name if row.family == "imported" else row.loader).partition(":")[0]
    if module.partition(".")[0] not in ("msdscore", "msdscore_torch"):
        with suppress(AttributeError):  # of a class with slots, which is not built in
            object.__setattr__(encoder, "loaded_by", module)  # see `encoder_signature`
    return encoder


def load_imported(source: str, *, name: str, **keywords: Any) -> "Encoder":
    """Load the encoder that `module:attribute` names: an encoder, or a callable that returns one.

    A callable receives those of `device`, `dtype`, `revision` and the encoder options that it has parameters for.
    """
    from msdscore.encoders.base import Encoder

    target = import_object(name, "encoder")
    if callable(target) and (isinstance(target, type) or not isinstance(target, Encoder)):
        parameters = _parameters(name, target)
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
            for option in keywords.keys() - {"device", "dtype", "revision"} - parameters.keys():
                raise unknown_name(f"option of {name}", option, parameters)
            keywords = {option: value for option, value in keywords.items() if option in parameters}
        missing = [
            parameter.name for parameter in parameters.values()
            if parameter.default is Parameter.empty and parameter.name not in keywords and parameter.kind not in _OPEN
        ]  # fmt: skip
        if missing:
            raise ConfigError(
                f"{name}: cannot be called without {', '.join(missing)}; expected a callable that returns an encoder"
            )
        target = target(**keywords)
    if not isinstance(target, Encoder):
        raise ConfigError(
            f"{name}: expected an encoder or a callable that returns one, got {type(target).__name__}; "
            "msdscore.testing.check_encoder lists the missing members"
        )
    return target


def _parameters(name: str, target: Any) -> Mapping[str, Parameter]:
    try:
        return signature(target).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        raise ConfigError(f"{name}: expected an encoder or a function that returns one, got {target!r}") from None


def encoder_folder(name: str, *, revision: str | None = None) -> Path | None:
    """The folder of an encoder's files, without loading it; None if it has none, or if only its loader knows."""
    source = find_row(name, revision=revision).source
    try:
        folder = Path(locate(source)).expanduser()
        if source and folder.is_dir():
            return folder
        if not looks_like_hub_name(source):
            return None
        cached = require("msdscore_torch.hub", extra="hf").cached_checkpoint(source, revision)
        return None if cached is None else cached.folder
    except (WeightsError, MissingExtraError):
        return None  # the error is raised when it is loaded


def encoder_claims(signature: str) -> dict[str, Any] | None:
    """Return what was measured about verdicts and words with the settings of a signature; None if it is not known.

    Shares are in percent; `perf/claims.py` writes the file for the default encoder.
    """
    claims = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))
    measured, asked = (text.rpartition("|v:")[0] for text in (claims["signature"], signature))
    return dict(claims) if measured == asked else None


def _other_names(row: EncoderRow) -> tuple[str, ...]:
    end = row.source.rpartition("/")[2]
    if not row.source or row.source.startswith("package:"):
        return ()
    match = _CLIP_SIZE.fullmatch(end)
    if match is None:
        return (end,)
    size, patch, pixels = match[1][0].upper(), match[2], match[3] or ""
    vit = f"ViT-{size}/{patch}"
    return end, f"{vit}{pixels}", f"{vit}{pixels.replace('-', '@')}", f"clip-vit-{size}-{patch}"


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
