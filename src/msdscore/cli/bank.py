"""`msdscore bank`: background pictures for the calibration of any encoder."""

from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.errors import ConfigError, InputError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")


def bank(
    folder: Annotated[Path, typer.Argument(help="Folder of background pictures, any that are not to be judged.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bank, a .safetensors file.")],
    captions: Annotated[Path | None, typer.Option(help="Background captions, one a line, for coverage.")] = None,
    limit: Annotated[int, typer.Option(min=2, help="How many pictures at most, spread over the folder.")] = 128,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006, typer copies it
    encoder_option: options.EncoderOption = [],  # noqa: B006
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    batch_size: options.BatchSize = 32,
) -> None:
    """Build a bank of background pictures for an encoder and its settings."""
    from msdscore.encoders.registry import load_encoder
    from msdscore.io.images import open_image
    from msdscore.scoring.bank import build_bank, save_bank
    from msdscore.scoring.config import MSDConfig
    from msdscore.scoring.pipeline import recommended_config

    chosen = dict(map(options.setting, encoder_option))
    loaded = load_encoder(encoder, device=device, dtype=dtype, revision=revision, **chosen)
    config = recommended_config(loaded) if preset is None else MSDConfig.preset(preset)
    config = config.changed(**dict(map(options.setting, change)))
    pictures = [open_image(path) for path in spread_over(folder, limit)]
    built = build_bank(loaded, config, pictures, _lines(captions) if captions else [], batch_size=batch_size)
    save_bank(built, output)
    typer.echo(f"bank {built.name} of {len(pictures)} pictures for {built.encoder} -> {output}")


def _lines(path: Path) -> list[str]:
    """The lines of a text that are not blank."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected captions in UTF-8, one a line, but it cannot be read ({error})") from error
    if not lines:
        raise InputError(f"{path}: expected captions, one a line, and it holds none")
    return lines


def spread_over(folder: Path, limit: int) -> list[Path]:
    """At most `limit` pictures of a folder, in order of their names, evenly spread."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder of pictures")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if len(found) < 2:
        raise ConfigError(f"{folder}: holds {len(found)} pictures; a bank needs at least 2")
    step = max(1.0, len(found) / limit)
    return [found[int(number * step)] for number in range(min(limit, len(found)))]
