"""Options that several commands share, and the scorer and cache that they ask for."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli.progress import tell
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.encoders.cached import CacheSettings, CacheUse
    from msdscore.scoring.spec import ScorerSpec


def encoder_names(incomplete: str) -> list[tuple[str, str]]:
    """The encoders whose names begin so, with their families, as a shell completes them.

    >>> encoder_names("min")
    [('mini', 'msdscore-aligned')]
    """
    from msdscore.encoders.table import built_in  # data alone: a shell asks at every press of a key

    return [(row.name, row.family) for row in built_in() if row.name.startswith(incomplete)]


Encoder = Annotated[
    str,
    typer.Option(
        "--encoder", "-e", help="Short name, hub name or folder; see `msdscore encoders`.", autocompletion=encoder_names
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", "-p", help="evidence, short, long or authors; without it, the encoder's own.")
]
BankFile = Annotated[Path | None, typer.Option("--bank", help="Bank of background images for the calibration.")]
Change = Annotated[list[str], typer.Option("--set", help="Change one setting, e.g. --set alpha=0.2. Repeatable.")]
EncoderOption = Annotated[list[str], typer.Option("--encoder-option", help="An option of the encoder, e.g. pool=mean.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")]
Revision = Annotated[str | None, typer.Option(help="Revision of the weights on the hub.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read every byte of weights, images and finished outputs, however large.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per batch; found by itself if not given.")]
MaxPixels = Annotated[int | None, typer.Option(help="Refuse images with more pixels.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Images = Annotated[Path | None, typer.Option("--images", help="Folder of the images.")]
Rows = Annotated[
    Path | None, typer.Option("--rows", help="The file that was scored, where it holds the images themselves.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there and holds other work.")]
ReaderOption = Annotated[
    list[str], typer.Option("--option", help="Of the benchmark's reader, e.g. split=valid. Repeatable.")
]
Samples = Annotated[int, typer.Option(min=1, help="Resamples behind intervals and tests.")]
Seed = Annotated[int, typer.Option(help="Of every draw: wrong images, changes, resampling.")]
Cache = Annotated[
    Path | None, typer.Option("--cache", help="Folder that keeps embeddings: runs with other settings reuse them.")
]
CacheSize = Annotated[
    str, typer.Option("--cache-size", help="What the cache may take, e.g. 200GB; what was used longest ago goes first.")
]
CacheHalf = Annotated[
    bool, typer.Option("--cache-half", help="Keep embeddings in half precision: half the room, and a new signature.")
]
CACHE_SIZE = "64GB"
SOME_FAILED = 3  # exit code where some rows could not be scored
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SPEC_FIELDS = ("encoder", "batch_size", "decoders", "device", "dtype", "revision", "verify")  # of the same name


def make_spec(asked: Mapping[str, Any]) -> "ScorerSpec":
    """The scorer that the options of a command (`context.params`) ask for."""
    from msdscore.io.images import ImageLimits
    from msdscore.scoring.spec import ScorerSpec

    bank, pixels = asked.get("bank"), asked.get("max_pixels")
    return ScorerSpec(
        **{name: asked[name] for name in _SPEC_FIELDS if name in asked},
        options=tuple(map(setting, asked.get("encoder_option") or ())),
        config=asked.get("preset"),
        changes=tuple(map(setting, asked.get("change") or ())),
        bank=None if bank is None else str(bank),
        limits=ImageLimits() if pixels is None else ImageLimits(max_pixels=pixels),
        cache=cache_settings(asked["cache"], asked["cache_size"], asked["cache_half"])
        if "cache_half" in asked
        else None,
    )


def setting(text: str) -> tuple[str, Any]:
    """A name and a value from `name=value`; numbers, pairs of numbers and true/false are read as such.

    >>> setting("kappa=30"), setting("components=5,3"), setting("gate=support"), setting("patch_norm=true")
    (('kappa', 30), ('components', (5, 3)), ('gate', 'support'), ('patch_norm', True))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"a setting looks like name=value, got {text!r}")
    return name.strip(), _value(value.strip())


def _value(text: str) -> Any:
    if "," in text:
        return tuple(_value(part) for part in text.split(","))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def cache_settings(folder: Path | None, size: str = CACHE_SIZE, half: bool = False) -> "CacheSettings | None":
    """The cache that the three options ask for; None without a folder."""
    from msdscore.encoders.cached import CacheSettings

    if folder is None:
        if half or size != CACHE_SIZE:
            raise ConfigError("--cache-size and --cache-half say how embeddings are kept; say where: --cache DIR")
        return None
    return CacheSettings(folder=str(folder), limit=byte_count(size), half=half)


def byte_count(text: str) -> int:
    """A number of bytes from a text such as `500MB`, `2.5 GB` or `1T`.

    >>> byte_count("500MB"), byte_count("2.5 gb"), byte_count("12")
    (500000000, 2500000000, 12)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)b?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"expected a size such as 500MB or 64GB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def print_cache_use(folder: Path | None, use: "CacheUse | None") -> None:
    """Print on standard error how many embeddings came from the cache."""
    if folder is not None and use is not None:
        tell(f"cache {folder}: {use}")
