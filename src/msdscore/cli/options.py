"""Options that several commands share, and the scorer they ask for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.encoders.cached import CacheSettings
    from msdscore.scorer import Scorer
    from msdscore.scoring.spec import ScorerSpec

Encoder = Annotated[
    str, typer.Option("--encoder", "-e", help="Short name, hub name or folder; see `msdscore encoders`.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions:
    """The options that name a scorer, under their names on the command line."""

    encoder: Encoder = "mini"
    preset: Preset = None
    change: Change = ()  # type: ignore[assignment]
    encoder_option: EncoderOption = ()  # type: ignore[assignment]
    bank: BankFile = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    revision: Revision = None
    verify: Verify = False

    def spec(self, *, batch_size: int | None = None, max_pixels: int | None = None, **more: Any) -> "ScorerSpec":
        """The scorer that they ask for; `more` are fields of `ScorerSpec`."""
        return make_spec(
            self.encoder, self.preset, self.change, encoder_options=self.encoder_option, bank=self.bank,
            batch_size=batch_size, max_pixels=max_pixels, device=self.device, dtype=self.dtype,
            revision=self.revision, verify=self.verify, **more,
        )  # fmt: skip

    def scorer(self, *, max_pixels: int | None = None) -> "Scorer":
        """The same, loaded."""
        from msdscore.scorer import Scorer

        return Scorer.from_spec(self.spec(max_pixels=max_pixels))


def make_spec(
    encoder: str,
    preset: str | None,
    changes: list[str],
    *,
    encoder_options: list[str],
    bank: Path | None,
    batch_size: int | None,
    max_pixels: int | None,
    cache: "CacheSettings | None" = None,
    **place: Any,
) -> "ScorerSpec":
    """The description of the scorer that the options ask for."""
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
        **place,
    )


def make_scorer(encoder: str, preset: str | None, changes: list[str], **more: Any) -> "Scorer":
    """The scorer that the options ask for; `more` are those of `make_spec`."""
    from msdscore.scorer import Scorer

    return Scorer.from_spec(make_spec(encoder, preset, changes, **more))


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
