"""What a user can choose about pretrained encoders, checked when it is given."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from msdscore.encoders.vision.preprocessing import DEVICE_FILTERS, Preprocessing
from msdscore.errors import ConfigError, unknown_name

Options = TypeVar("Options")

# How many times as large as what the network takes a JPEG file must still be when it is decoded at reduced size.
_REDUCED = {"full": 0, "reduced": 2, "smallest": 1}


def read_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Build a family's options dataclass from keywords; an unknown keyword answers with the known ones."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise unknown_name("encoder option", name, known)
    return kind(**given)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ConfigError: the value is none of them.
    """
    if value not in choices:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def require_no_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse options for an encoder that has none.

    Raises:
        ConfigError: there are some.
    """
    if given:
        raise ConfigError(f"encoder {name!r} has no options, got {', '.join(sorted(given))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """What a user can choose about every pretrained encoder."""

    pool: str = "model"  # or "mean": of the local vectors, as the paper's text has it
    long_text: str = "window"  # or "cut"
    compile: str = ""  # a backend of torch.compile, such as "inductor"
    jpeg: str = "full"  # or "reduced", "smallest": large files are decoded at a half, a quarter or an eighth
    resize: str = "pillow"  # or "device": by torch, where the network runs

    def __post_init__(self) -> None:
        require_choice("jpeg", self.jpeg, tuple(_REDUCED))
        require_choice("resize", self.resize, ("pillow", "device"))
        require_choice("pool", self.pool, ("model", "mean"))
        require_choice("long_text", self.long_text, ("window", "cut"))

    @property
    def pixel_choices(self) -> tuple[str, ...]:
        """The signature's parts for pixels that are not made in the usual way."""
        jpeg = () if self.jpeg == "full" else (f"jpeg:{self.jpeg}",)
        return (*jpeg, "resize:device") if self.resize == "device" else jpeg

    def applied(self, steps: Preprocessing) -> Preprocessing:
        """The steps of a checkpoint, done as chosen."""
        if self.resize == "device" and steps.resample not in DEVICE_FILTERS:
            raise ConfigError(
                "resize=device knows bicubic and bilinear filters, this checkpoint has another; leave it out"
            )
        return replace(steps, reduced=_REDUCED[self.jpeg], on_device=self.resize == "device")

    def refuse_pixel_choices(self) -> None:
        """For families that draw a picture several times or at sizes of its own."""
        if self.pixel_choices:
            raise ConfigError(f"this encoder has its own way with pictures; leave out {', '.join(self.pixel_choices)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(SharedOptions):
    """What can be chosen about how a transformers model is loaded.

    `device_map` is what transformers takes, such as "auto"; `bits` is 4 or 8, or 0 for whole weights.
    """

    device_map: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.bits not in (0, 4, 8):
            raise ConfigError(f"bits must be 0, 4 or 8, got {self.bits!r}")

    @property
    def bits_choice(self) -> tuple[str, ...]:
        """The signature's part for quantised weights; where a layer lies does not change a vector."""
        return (f"bits:{self.bits}",) if self.bits else ()
