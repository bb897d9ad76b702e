"""Options that several commands share, and the scorer and cache that they ask for."""

import re
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
    from msdscore.encoders.table import ROWS  # data alone: a shell asks at every press of a key

    return [(row.name, row.family) for row in ROWS if row.name.startswith(incomplete)]


Encoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        "-e",
        help="Short name, hub name or folder; see `msdscore encoders`.",
        autocompletion=encoder_names,
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", "-p", help="evidence, short, long or authors; without it, the encoder's own.")
]
BankFile = Annotated[Path | None, typer.Option("--bank", help="Bank of background pictures for the calibration.")]
Change = Annotated[list[str], typer.Option("--set", help="Change one setting, e.g. --set alpha=0.2. Repeatable.")]
EncoderOption = Annotated[list[str], typer.Option("--encoder-option", help="An option of the encoder, e.g. pool=mean.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")]
Revision = Annotated[str | None, typer.Option(help="Revision of the weights on the hub.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read every byte of weights, images and finished outputs, however large.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Pictures per batch; found by itself if not given.")]
MaxPixels = Annotated[int | None, typer.Option(help="Refuse pictures with more pixels.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Images = Annotated[Path | None, typer.Option("--images", help="Folder of the pictures.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write: .parquet, .jsonl, .csv, .tsv or .json.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there and holds other work.")]
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
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def make_spec(
    encoder: str,
    preset: str | None,
    changes: list[str],
    *,
    encoder_options: list[str],
    bank: Path | None = None,
    batch_size: int | None = None,
    max_pixels: int | None = None,
    cache: "CacheSettings | None" = None,
    **more: Any,
) -> "ScorerSpec":
    """The scorer that the options ask for; `more` are fields of `ScorerSpec`."""
    from msdscore.io.images import ImageLimits
    from msdscore.scoring.spec import ScorerSpec

    return ScorerSpec(
        encoder=encoder,
        options=tuple(map(setting, encoder_options)),
        config=preset,
        changes=tuple(map(setting, changes)),
        bank=None if bank is None else str(bank),
        limits=ImageLimits() if max_pixels is None else ImageLimits(max_pixels=max_pixels),
        batch_size=batch_size,
        cache=cache,
        **more,
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
