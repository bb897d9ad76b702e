"""Options of pretrained encoders, and the identity from which their signatures are built."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

from msdscore.core.arrays import torch_part
from msdscore.encoders.preprocessing import Preprocessing
from msdscore.errors import ConfigError, unknown_name


class Placed(Protocol):
    """Device of a model, and the dtype that it computes in."""

    @property
    def device(self) -> Any:
        """The device, as in `Encoder`."""

    @property
    def dtype_name(self) -> str:
        """The dtype as written in the signature."""


Options = TypeVar("Options")

# Minimum size of a JPEG file decoded at reduced size, as a multiple of the size that the network takes.
_REDUCED = {"full": 0, "reduced": 2, "smallest": 1, "device": 0}


def read_options(kind: type[Options], keywords: Mapping[str, Any]) -> Options:
    """Build a family's options dataclass from keywords; an unknown keyword raises `UnknownNameError`.

    >>> read_options(AlignedOptions, {"image_backbone": 2024}).image_backbone
    '2024'
    """
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    for name in keywords:
        if name not in known:
            raise unknown_name("encoder option", name, known)
    # The command line reads the name of a folder such as 2024 as a number.
    is_text = {name: known[name] is str and type(value) in (int, float) for name, value in keywords.items()}
    return kind(**{name: str(value) if is_text[name] else value for name, value in keywords.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """User options of every pretrained encoder."""

    long_text: Literal["window", "cut"] = "window"
    compile: str = ""  # a backend of torch.compile, such as "inductor"
    # "reduced", "smallest": large files are decoded at a half, a quarter or an eighth; "device": by the GPU.
    jpeg: Literal["full", "reduced", "smallest", "device"] = "full"
    resize: Literal["pillow", "device"] = "pillow"  # "device": by torch, on the device of the network

    def __post_init__(self) -> None:
        for field in fields(self):
            choices, value = get_args(field.type), getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in choices:
                raise ConfigError(f"{field.name} must be {' or '.join(map(repr, choices))}, got {value!r}")

    @property
    def has_default_vectors(self) -> bool:
        """Whether vectors are those of the default options."""
        return self == type(self)()

    @property
    def pixel_choices(self) -> tuple[str, ...]:
        """The signature's parts for non-default decoding and resizing."""
        jpeg = () if self.jpeg == "full" else (f"jpeg:{self.jpeg}",)
        return (*jpeg, "resize:device") if self.resize == "device" else jpeg

    def applied(self, steps: Preprocessing) -> Preprocessing:
        """Apply the options to the preprocessing steps of a checkpoint."""
        on_device, jpeg_on_device = self.resize == "device", self.jpeg == "device"
        if (on_device or jpeg_on_device) and steps.resample not in torch_part("vision.device").FILTERS:
            raise ConfigError(
                f"{', '.join(self.pixel_choices)} needs one of Pillow's resize filters, "
                "which this checkpoint does not use; omit it"
            )
        return replace(steps, reduced=_REDUCED[self.jpeg], on_device=on_device, jpeg_on_device=jpeg_on_device)

    def refuse_pixel_choices(self) -> None:
        """Raise `ConfigError` for pixel options, for families with custom preprocessing."""
        if self.pixel_choices:
            raise ConfigError(f"this encoder does custom preprocessing; omit {', '.join(self.pixel_choices)}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Name, weights, placement and options of a loaded encoder, from which its signature is built.

    `signed` is the name with the hash of the weights; `choices` are the `key:value` parts of its family.
    """

    name: str
    signed: str
    placement: Placed
    options: SharedOptions
    choices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()  # languages that it reads; empty: as in the table of encoders

    def choosing(self, *choices: str) -> "Identity":
        """The same identity with the choices of a family before the others."""
        return replace(self, choices=(*choices, *self.choices))

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        options = self.options
        compiled = (f"compile:{options.compile}",) if options.compile else ()
        shared = (f"long:{options.long_text}", *compiled, *options.pixel_choices)
        return ",".join((self.signed, *self.choices, *shared, f"dtype:{self.placement.dtype_name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedOptions(SharedOptions):
    """User options of an aligned encoder."""

    image_backbone: str = ""  # another location of the same weights
    text_backbone: str = ""
    runtime: Literal["auto", "onnx", "torch"] = "auto"  # library that computes; "auto": ONNX Runtime if it can

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.compile:
            raise ConfigError(f"an aligned encoder cannot be compiled; omit compile={self.compile!r}")

    @property
    def has_default_vectors(self) -> bool:
        """Whether vectors are those of the default options: locations and runtimes change none."""
        return replace(self, image_backbone="", text_backbone="", runtime="auto") == AlignedOptions()
