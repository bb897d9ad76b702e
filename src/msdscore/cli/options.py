"""Options shared by several commands, as dataclasses that are flattened into the options of a command."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli.progress import tell
from msdscore.errors import ConfigError

if TYPE_CHECKING:
    from msdscore.encoders.cached import CacheSettings, CacheUse
    from msdscore.scoring.spec import ScorerSpec


def encoder_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the names and families of the encoders that begin with a text, for shell completion.

    >>> encoder_names("min")
    [('mini', 'msdscore-aligned')]
    """
    from msdscore.encoders.registry import built_in  # without torch: the shell calls this at each key press

    return [(row.name, row.family) for row in built_in() if row.name.startswith(incomplete)]


INPUT, OUTPUT, SCORING, SPEED = "Input", "Output", "Scoring", "Speed"
CACHE_SIZE = "64GB"
SOME_FAILED = 3  # exit code if some rows could not be scored
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def option_in(panel: str | None, *names: str, help: str, **more: Any) -> Any:  # noqa: A002, as in Typer
    """Return the annotation of an option that help shows in this panel, for types that several commands share."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def option(panel: str | None, default: Any, *names: str, **more: Any) -> Any:
    """Return an option as the default of a parameter or of a dataclass field; `...` means that it is required.

    `flattened` passes it to Typer, as the annotation that `option_in` returns.
    """
    metadata = {"option": option_in(panel, *names, **more)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=MISSING if default is ... else default, metadata=metadata)


Device = Annotated[str, option_in(SPEED, help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, option_in(SPEED, help="auto, float32, float16 or bfloat16.")]
Json = Annotated[bool, option_in(OUTPUT, "--json", help="Print JSON.")]
Images = Annotated[Path | None, option_in(INPUT, "--images", help="Folder of the images.")]
Rows = Annotated[Path | None, option_in(INPUT, "--rows", help="The scored file or folder, if it contains the images.")]
Overwrite = Annotated[bool, option_in(OUTPUT, "--overwrite", help="Replace an existing output of another run.")]
_NAMED = "Short name (see `msdscore encoders`), hub name, folder or module:attribute."
EncoderName = Annotated[str, option_in(SCORING, "--encoder", "-e", help=_NAMED, autocompletion=encoder_names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Encoder, its settings and its device."""

    encoder: EncoderName = "mini"
    form: str | None = option(
        SCORING, None, "--form", help="evidence (MSD-E), paper (as published), short, long …; default: the encoder's."
    )
    change: list[str] = option(SCORING, [], "--set", help="Change one setting, e.g. --set alpha=0.2. Repeatable.")
    encoder_option: list[str] = option(SCORING, [], help="Option of the encoder, e.g. long_text=cut. Repeatable.")
    revision: str | None = option(SCORING, None, help="Hub revision of the weights.")
    verify: bool = option(INPUT, False, "--verify", help="Hash all bytes of the weights, even of large files.")
    device: Device = "auto"
    dtype: Dtype = "auto"
    threads: int | None = option(
        SPEED, None, min=1, help="CPU threads of each process; default: one per core that it may use, two per worker."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Batch size and embedding cache."""

    batch_size: int | None = option(SPEED, None, min=1, help="Images per batch; default: chosen for the device.")
    cache: Path | None = option(SPEED, None, help="Folder for cached embeddings, reused by runs with other settings.")
    cache_size: str = option(
        SPEED, CACHE_SIZE, help="Maximum cache size, e.g. 200GB; least recently used entries are removed."
    )

    def settings(self) -> "CacheSettings | None":
        """Return the cache settings, or None without a cache folder."""
        if self.cache is None:
            if self.cache_size != CACHE_SIZE:
                raise ConfigError("--cache-size needs a cache folder; add --cache DIR")
            return None
        from msdscore.encoders.cached import CacheSettings

        return CacheSettings(folder=str(self.cache), limit=byte_count(self.cache_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions(ModelOptions):
    """All options that affect a score."""

    bank: Path | None = option(SCORING, None, help="Bank of background images; see `msdscore bank`.")
    max_pixels: int | None = option(INPUT, None, help="Reject images with more pixels.")
    verdict_at: str | None = option(
        SCORING, None, help="Matches from which the verdict is unsure and on topic; default: 0.2,0.5."
    )

    def spec(self, batch: BatchOptions | None = None, *, decoders: int | None = None) -> "ScorerSpec":
        """Return the spec of the scorer that these options describe."""
        from msdscore.core.evidence import VERDICT_AT
        from msdscore.io.images import ImageLimits
        from msdscore.scoring.spec import ScorerSpec

        return ScorerSpec(
            encoder=self.encoder, options=parsed(self.encoder_option), device=self.device, dtype=self.dtype,
            revision=self.revision, verify=self.verify, form=self.form, changes=parsed(self.change),
            bank=None if self.bank is None else str(self.bank),
            limits=ImageLimits() if self.max_pixels is None else ImageLimits(max_pixels=self.max_pixels),
            batch_size=None if batch is None else batch.batch_size, decoders=decoders,
            threads=self.threads, cache=None if batch is None else batch.settings(),
            verdict_at=VERDICT_AT if self.verdict_at is None else _value(self.verdict_at),
        )  # fmt: skip


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command for Typer: one parameter per field of each dataclass, and the options of `option` as types.

    >>> def show(scorer: ScorerOptions): return scorer.encoder, scorer.device
    >>> flattened(show)(**dict.fromkeys(inspect.signature(flattened(show)).parameters, "toy"))
    ('toy', 'toy')
    """
    groups: dict[str, type] = {}
    members: list[tuple[str, Any, Any]] = []
    for given in inspect.signature(command, eval_str=True).parameters.values():
        if isinstance(given.annotation, type) and is_dataclass(given.annotation):
            groups[given.name] = given.annotation
            members += [(part.name, part.type, part) for part in fields(given.annotation)]
        else:
            members.append((given.name, given.annotation, given.default))
    parameters: list[inspect.Parameter] = []
    for name, annotation, default in members:
        if isinstance(default, Field):
            info = default.metadata.get("option")
            annotation = annotation if info is None else Annotated[annotation, info]
            default = default.default if default.default_factory is MISSING else default.default_factory()
        default = inspect.Parameter.empty if default is MISSING else default
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, annotation=annotation, default=default))

    @functools.wraps(command)
    def call(**values: Any) -> Any:
        built = {
            name: group(**{part.name: values.pop(part.name) for part in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **built)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def parsed(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Return the names and values of texts such as `alpha=0.2`.

    >>> parsed(["kappa=30", "gate=support"])
    (('kappa', 30), ('gate', 'support'))
    """
    return tuple(map(setting, texts))


def setting(text: str) -> tuple[str, Any]:
    """Parse `name=value`; numbers, lists of numbers and true/false are converted.

    >>> setting("kappa=30"), setting("components=5,3"), setting("gate=support"), setting("patch_norm=true")
    (('kappa', 30), ('components', (5, 3)), ('gate', 'support'), ('patch_norm', True))
    >>> setting("image_backbone=/data/a,b"), setting("length=1_0")
    (('image_backbone', '/data/a,b'), ('length', '1_0'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"expected a setting of the form name=value, got {text!r}")
    return name.strip(), _value(value.strip())


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    parts = text.split(",")
    if not all(map(_NUMBER.fullmatch, parts)):
        return text
    numbers = tuple(int(part) if part.lstrip("+-").isdecimal() else float(part) for part in parts)
    return numbers if len(numbers) > 1 else numbers[0]


def byte_count(text: str) -> int:
    """Parse a number of bytes such as `500MB`, `2.5 GB` or `1T`.

    >>> byte_count("500MB"), byte_count("2.5 gb"), byte_count("1")
    (500000000, 2500000000, 1)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)b?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"expected a size such as 500MB or 64GB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def print_cache_use(spec: "ScorerSpec", use: "CacheUse | None") -> None:
    """Print on standard error how many embeddings came from the cache."""
    if spec.cache is not None and use is not None:
        tell(f"cache {spec.cache.folder}: {use}")
