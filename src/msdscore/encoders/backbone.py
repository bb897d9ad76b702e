"""Base class of encoders around a pretrained model: options, signature, normalisation, compilation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypeVar, get_args, get_origin

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from msdscore.core.device import launching, sent
from msdscore.core.embeddings import masked_mean, real_points, unit
from msdscore.core.evidence import Bank
from msdscore.encoders.base import Embeddings, Encoder, Features, PatchLayout, Prepared
from msdscore.encoders.registry import built_in_row
from msdscore.encoders.tokens import TextBatch, TextSettings, pack, tokenise_all
from msdscore.encoders.vision.preprocessing import Preprocessing, patch_layout, prepare_image, stack_pixels
from msdscore.errors import ConfigError, unknown_name
from msdscore.text.warnings import text_warnings

_AS_IT_IS = Preprocessing(resize=None, crop=None)  # for networks that take any size
UNIT = 0.01  # maximum deviation of a unit vector's length from 1; half precision needs 0.002
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the dtype that a model computes in there; its vectors are always float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as written in the signature."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> torch.autocast:
        """Context in which float32 weights compute in its dtype."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def place(device: str, dtype: str, *, half: torch.dtype = torch.float16) -> Placement:
    """Resolve `auto`: CUDA if available; float32 on CPU, `half` on CUDA.

    >>> place("cpu", "auto")
    Placement(device=device(type='cpu'), dtype=torch.float32)

    Raises:
        ConfigError: no such device or dtype.
    """
    if dtype not in ("auto", *_DTYPES):
        raise ConfigError(f"dtype must be auto or one of {', '.join(_DTYPES)}, got {dtype!r}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if not _is_available(target):
        raise ConfigError(f"device {device!r} is not available; use device='auto' or 'cpu'")
    usual = half if target.type == "cuda" else torch.float32
    placement = Placement(target, _DTYPES.get(dtype, usual))
    if target.type == "cpu" and not cpu_computes(placement.dtype):
        raise ConfigError(f"this CPU has no instructions for {dtype}; use dtype='float32' or 'auto'")
    return placement


def _is_available(device: torch.device) -> bool:
    """Whether torch can compute on a device."""
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return device.type == "cpu" or (device.type == "xpu" and torch.xpu.is_available())


def cpu_computes(dtype: torch.dtype) -> bool:
    """Whether this CPU supports a dtype; otherwise torch raises errors or crashes."""
    if dtype == torch.float32:
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    return bool(getattr(torch.ops.mkldnn, names[dtype])())


Options = TypeVar("Options")

# Minimum size of a JPEG file decoded at reduced size, as a multiple of the size that the network takes.
_REDUCED = {"full": 0, "reduced": 2, "smallest": 1, "device": 0}


def read_options(kind: type[Options], keywords: Mapping[str, Any]) -> Options:
    """Build a family's options dataclass from keywords; an unknown keyword raises `UnknownNameError`."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in known:
            raise unknown_name("encoder option", name, known)
    return kind(**keywords)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """User options of every pretrained encoder."""

    pool: Literal["model", "mean"] = "model"  # "mean": of the local vectors, as in the text of the paper
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
    def pixel_choices(self) -> tuple[str, ...]:
        """The signature's parts for non-default decoding and resizing."""
        jpeg = () if self.jpeg == "full" else (f"jpeg:{self.jpeg}",)
        return (*jpeg, "resize:device") if self.resize == "device" else jpeg

    def applied(self, steps: Preprocessing) -> Preprocessing:
        """Apply the options to the preprocessing steps of a checkpoint."""
        on_device, jpeg_on_device = self.resize == "device", self.jpeg == "device"
        if on_device or jpeg_on_device:
            from msdscore.encoders.vision.device import FILTERS  # only for images that are resized by torch

            if steps.resample not in FILTERS:
                raise ConfigError(
                    f"{', '.join(self.pixel_choices)} needs one of Pillow's resize filters, "
                    "which this checkpoint does not use; omit it"
                )
        return replace(steps, reduced=_REDUCED[self.jpeg], on_device=on_device, jpeg_on_device=jpeg_on_device)

    def refuse_pixel_choices(self) -> None:
        """Raise `ConfigError` for pixel options, for families with custom preprocessing."""
        if self.pixel_choices:
            raise ConfigError(f"this encoder does custom preprocessing; omit {', '.join(self.pixel_choices)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(SharedOptions):
    """User options for loading a transformers model.

    `device_map` is passed to transformers, such as "auto"; `bits` is 4 or 8, or 0 for full-precision weights.
    """

    device_map: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.bits not in (0, 4, 8):
            raise ConfigError(f"bits must be 0, 4 or 8, got {self.bits!r}")


_CHECKED_LATE = ContextVar("checked_late", default=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Name, weights, placement and options of a loaded encoder, from which its signature is built.

    `signed` is the name with the hash of the weights; `choices` are the `key:value` parts of its family.
    """

    name: str
    signed: str
    placement: Placement
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
        shared = (f"pool:{options.pool}", f"long:{options.long_text}", *compiled, *options.pixel_choices)
        return ",".join((self.signed, *self.choices, *shared, f"dtype:{self.placement.dtype_name}"))


class Backbone(ABC):
    """An encoder around a pretrained model; a family implements `_see` and `_read`.

    Vectors are float32 whatever the model computes in, as plain tensors without gradient history: heads can be
    trained on them. `tokenizer` is one of the tokenizers library, and `text_settings` configures the text tower.
    `preprocessing` are the preprocessing steps of images; a family with custom ones overrides `prepare`. Neither
    references the model, so that both can be sent to other processes. A family that has a `bank` or `recommended`
    settings sets them.
    """

    bank: Bank | None = None
    recommended: Mapping[str, Any] | None = None

    def __init__(
        self,
        identity: Identity,
        *,
        model: Any = None,
        tokenizer: Any = None,
        text_settings: TextSettings | None = None,
        preprocessing: Preprocessing | None = None,
        prepare: Callable[[Image], Prepared] | None = None,
    ) -> None:
        self.name, self.signature = identity.name, identity.signature
        self.device, self.precision = identity.placement.device, identity.placement.dtype
        self.preprocessing = preprocessing
        self._identity, self._own_prepare = identity, prepare
        self._options: Any = identity.options  # of the family
        self._model, self._tokenizer, self._text_settings = model, tokenizer, text_settings
        if preprocessing is not None and preprocessing.jpeg_on_device and self.device.type == "cuda":
            from msdscore.encoders.vision.nvjpeg import library

            library()  # raises now if it is missing, not at the first file

    def prepare(self, image: Image) -> Prepared:
        """Preprocess an image in the thread that decodes it; a family that resizes overrides this."""
        return (self.sendable_prepare or partial(prepare_image, steps=_AS_IT_IS))(image)

    @property
    def sendable_prepare(self) -> Callable[[Image], Prepared] | None:
        """`prepare` without the model, for other processes; None if a family has no picklable one."""
        steps = self.preprocessing
        return self._own_prepare if steps is None else partial(prepare_image, steps=steps)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` has one `PatchLayout` per item."""
        if not images:
            raise ConfigError("expected at least one image to encode, got none")
        with launching(self.device):
            states = self._see(images)
        return self._finish(states)

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` has one `TokenLayout` per item."""
        if not texts:
            raise ConfigError("expected at least one caption to encode, got none")
        with launching(self.device):
            states = self._read(texts)
        embeddings = self._finish(states)
        row = built_in_row(self.name)
        english = (self._identity.languages or (row.languages if row else ())) == ("en",)
        warnings = (text_warnings(text, english=english) for text in texts)
        layout = tuple(
            replace(layout, warnings=(*messages, *layout.warnings)) if messages else layout
            for messages, layout in zip(warnings, embeddings.layout, strict=True)
        )
        return replace(embeddings, layout=layout)

    @abstractmethod
    def _see(self, images: Sequence[Prepared]) -> Features:
        """Patches of prepared images."""

    @abstractmethod
    def _read(self, texts: Sequence[str]) -> Features:
        """Tokens of captions."""

    def _pixels(self, images: Sequence[Prepared]) -> Float[Tensor, "batch 3 height width"]:
        """Prepared images as normalised pixels."""
        assert self.preprocessing is not None, "a family with custom preprocessing overrides this"
        return stack_pixels(images, self.preprocessing, self.device).to(self.precision)

    def _pack(self, texts: Sequence[str]) -> TextBatch:
        """The windows of captions as one padded batch of tokens."""
        assert self._text_settings is not None, "the family sets how its text tower reads"
        return pack(tokenise_all(self._tokenizer, texts), self._text_settings)

    def _finish(self, states: Features) -> Embeddings:
        filled = tuple(states.mask.any(dim=1).tolist()) if states.mask.device.type == "cpu" else None
        mask = sent(states.mask, states.points.device)
        real = real_points(unit(states.points), mask)
        mean = states.pooled is None or self._identity.options.pool == "mean"
        pooled = masked_mean(real, mask) if mean else states.pooled
        assert pooled is not None
        # A model's pooled vectors may have any length; those of unit length remain unchanged, bit by bit.
        length = pooled.norm(dim=-1, keepdim=True)
        pooled = torch.where((length - 1).abs() > UNIT, unit(pooled), pooled)
        finite = torch.isfinite(real).all() & torch.isfinite(pooled).all()
        if _CHECKED_LATE.get():
            pooled = pooled.masked_fill(~finite, torch.nan)
        elif not finite:
            raise overflow(self)
        return Embeddings(real, mask, pooled, states.layout, filled)


@contextmanager
def checked_late() -> Iterator[None]:
    """Defer the overflow check: on overflow all pooled vectors of the batch are NaN, and nothing waits for the device.

    The caller checks the similarities and raises `overflow`.
    """
    before = _CHECKED_LATE.set(True)
    try:
        yield
    finally:
        _CHECKED_LATE.reset(before)


def overflow(encoder: Encoder) -> ConfigError:
    """The error of an encoder whose vectors are not finite."""
    precision = str(getattr(encoder, "precision", torch.float32)).removeprefix("torch.")
    return ConfigError(f"{encoder.name} overflows in {precision}; load it with dtype='float32' or dtype='bfloat16'")


def square_layouts(images: Sequence[Prepared], config: Any) -> tuple[PatchLayout, ...]:
    """The boxes of a square vision tower's patches on each image, from the tower's transformers configuration."""
    patch = int(config.patch_size)
    side = int(config.image_size) // patch
    return tuple(patch_layout(image.view, (side, side), (patch, patch)) for image in images)


def compile_towers(options: SharedOptions, *towers: Any) -> None:
    """Compile modules in place with the backend named in the options; an empty name compiles nothing.

    Raises:
        ConfigError: unknown torch backend.
    """
    if not options.compile:
        return
    known = torch.compiler.list_backends(exclude_tags=None)
    if options.compile not in known:
        raise ConfigError(f"compile must be empty or one of {', '.join(sorted(known))}, got {options.compile!r}")
    for tower in towers:
        tower.compile(backend=options.compile)
