"""`msdscore bank`: build a bank of background images to calibrate an encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option
from msdscore.errors import ConfigError, InputError

if TYPE_CHECKING:
    from msdscore.encoders.banks import BankQuality


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """Captions and captioned images that the bank is calibrated on."""

    captions: Path | None = option(
        INPUT,
        None,
        help="Background captions: a text file with one per line, or a file of rows. With --pairs: other captions.",
    )
    pairs: list[str] = option(
        INPUT, [], help="Rows of at least 50 captioned images (image, captions), for the evidence form. Repeatable."
    )
    limit: int = option(INPUT, 128, min=2, help="Maximum number of background images.")


def bank(
    folder: Annotated[
        Path, typer.Argument(help="Folder (with --pairs, or Parquet) of background images that will not be scored.")
    ],
    *,
    output: Path = option(OUTPUT, ..., "--output", "-o", help="Output file (.safetensors)."),
    learning: LearningOptions,
    model: options.ModelOptions,
    batch: options.BatchOptions,
    overwrite: options.Overwrite = False,
) -> None:
    """Build a bank of background images for an encoder and its settings.

    With --pairs, the reliability of each word, the information of a caption about an image and the probability of a
    match are estimated from captioned images.
    """
    from msdscore.encoders.banks import bank_bytes, build_bank
    from msdscore.encoders.cached import CachedEncoder
    from msdscore.encoders.registry import load_encoder
    from msdscore.forms.evidence import Evidence
    from msdscore.forms.registry import find_form
    from msdscore.io.images import open_image
    from msdscore.io.targets import check_target, is_standard_output, put
    from msdscore.scoring.pipeline import recommended_form
    from msdscore.threads import use as use_threads
    from msdscore_lab.bank.calibrate import calibrated_bank

    check_target(output, (".safetensors",), inputs=[learning.captions, *learning.pairs])
    use_threads(model.threads)
    plain = load_encoder(
        model.encoder, device=model.device, dtype=model.dtype, revision=model.revision, verify=model.verify,
        **dict(options.parsed(model.encoder_option)),
    )  # fmt: skip
    # With a cache, other settings of the same encoder do not encode any image again.
    cache = batch.settings()
    loaded = plain if cache is None else CachedEncoder(plain, cache)
    form = recommended_form(loaded) if model.form is None else find_form(model.form)
    changes, size = dict(options.parsed(model.change)), batch.batch_size or 32
    texts = _read_captions(learning.captions) if learning.captions else []
    if learning.pairs:
        from msdscore_lab.pairs import DataSource, image_content, open_pairs

        evidence = (form if isinstance(form, Evidence) else Evidence()).changed(**changes)
        # In the order of the rows.
        items = open_pairs(DataSource(tuple(learning.pairs), (str(folder),), None)).items
        images = [open_image(image_content(pair.image)) for pair in items]
        known = [pair.captions for pair in items]
        built = calibrated_bank(
            loaded, evidence, images, known, background=learning.limit, others=texts, batch_size=size
        )
    else:
        images = [open_image(path) for path in spread_over(folder, learning.limit)]
        built = build_bank(loaded, form.changed(**changes), images, texts, batch_size=size)
    put(output, bank_bytes(built.bank, encoder=built.encoder), overwrite=overwrite)
    line = f"bank {built.name} of {len(built.bank.images)} images for {built.encoder} -> {output}"
    typer.echo(line, err=is_standard_output(output))
    if built.quality is not None:
        _report(built.quality, err=is_standard_output(output))


def _report(quality: "BankQuality", *, err: bool) -> None:
    """Print the AUC on held-out images, and a warning for each value at chance level."""
    areas = f"words {quality.words:.3f}, match {quality.match:.3f}"
    typer.echo(f"on {quality.images} held-out images, AUC (0.5 is chance): {areas}", err=err)
    for subject, value in (("words are", quality.words), ("match is", quality.match)):
        if value <= quality.chance:
            typer.echo(
                f"warning: {subject} at chance (AUC {value:.3f}; random values reach {quality.chance:.3f}): "
                "check that the captions belong to their images, add pairs, or choose another encoder",
                err=True,
            )


def _read_captions(path: Path) -> list[str]:
    """Return the captions of a file of rows, else the non-blank lines of a text file."""
    from contextlib import ExitStack

    from msdscore.io.files import has_input_suffix
    from msdscore.rows.formats import open_records
    from msdscore.rows.rules import ColumnNames

    lines: list[str] = []
    if has_input_suffix(path):
        with ExitStack() as stack:
            for record in open_records(path, format=None, until=stack).read():
                name = ColumnNames().find("caption", record.values)
                lines.append(str(record.values[name] or "") if name else "")
    else:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: expected captions in UTF-8, one per line: {error}") from error
    captions = [caption for caption in lines if caption.strip()]
    if not captions:
        raise InputError(f"{path}: expected captions, one per line or in a column caption, found none")
    return captions


def spread_over(folder: Path, limit: int) -> list[Path]:
    """Return at most `limit` images of a folder, sorted by name and evenly spread."""
    from msdscore.io.files import is_image_name

    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder of images")
    paths = sorted(filter(is_image_name, folder.rglob("*")))
    if len(paths) < 2:
        raise ConfigError(f"{folder}: contains {len(paths)} images; a bank needs at least 2")
    step = max(1.0, len(paths) / limit)
    return [paths[int(number * step)] for number in range(min(limit, len(paths)))]
