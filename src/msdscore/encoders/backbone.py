"""What all encoders around a pretrained model share: where it runs, in which precision, its name, its last step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor

from msdscore.core.calibration import Bank
from msdscore.core.sphere import masked_mean, real_points, unit
from msdscore.encoders.base import Embeddings, PatchLayout, Prepared, TokenLayout
from msdscore.encoders.loading.checkpoints import Checkpoint
from msdscore.encoders.loading.transformers import load_model
from msdscore.encoders.table import languages_of
from msdscore.encoders.text.warnings import text_warnings
from msdscore.encoders.vision.preprocessing import DEVICE_FILTERS, Preprocessing, prepare_picture, whole_picture
from msdscore.errors import ConfigError, require, unknown_name

Options = TypeVar("Options")

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Layers whose numbers are read by other code, which would take the packed bits for them: SigLIP's attention pool,
# and the patches of SigLIP 2, whose dtype the pixels are turned into.
_WHOLE = ["vision_model.head", "vision_model.embeddings.patch_embedding", "lm_head"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the dtype that a model computes in there; its vectors always come out in float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as the signature spells it."""
        return str(self.dtype).removeprefix("torch.")


def place(device: str, dtype: str, *, half: torch.dtype = torch.float16) -> Placement:
    """Resolve `auto`: CUDA when there is one; float32 on CPU, `half` on CUDA.

    >>> place("cpu", "auto")
    Placement(device=device(type='cpu'), dtype=torch.float32)

    Raises:
        ConfigError: no such device or dtype.
    """
    where = _device(device)
    if dtype == "auto":
        return Placement(where, half if where.type == "cuda" else torch.float32)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype must be auto or one of {', '.join(_DTYPES)}, got {dtype!r}")
    return Placement(where, _DTYPES[dtype])


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"there is no device {device!r} here; use device='auto' or 'cpu'")
    return where


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
    jpeg: str = "full"  # or "reduced": large files are decoded at a half, a quarter or an eighth of their size
    resize: str = "pillow"  # or "device": by torch, where the network runs

    def __post_init__(self) -> None:
        require_choice("jpeg", self.jpeg, ("full", "reduced"))
        require_choice("resize", self.resize, ("pillow", "device"))
        require_choice("pool", self.pool, ("model", "mean"))
        require_choice("long_text", self.long_text, ("window", "cut"))

    @property
    def pixel_choices(self) -> tuple[str, ...]:
        """The signature's parts for pixels that are not made in the usual way."""
        jpeg = ("jpeg:reduced",) if self.jpeg == "reduced" else ()
        return (*jpeg, "resize:device") if self.resize == "device" else jpeg

    def applied(self, steps: Preprocessing) -> Preprocessing:
        """The steps of a checkpoint, done as chosen."""
        if self.resize == "device" and steps.resample not in DEVICE_FILTERS:
            raise ConfigError(
                "resize=device knows bicubic and bilinear filters, this checkpoint has another; leave it out"
            )
        return replace(steps, reduced=self.jpeg == "reduced", on_device=self.resize == "device")

    def refuse_pixel_choices(self) -> None:
        """For families that draw a picture several times or at sizes of its own."""
        if self.pixel_choices:
            raise ConfigError(f"this encoder has its own way with pictures; leave out {', '.join(self.pixel_choices)}")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a loaded encoder answers when it is asked who it is.

    `signed` is the name with the mark of the weights; `choices` are the `key:value` parts of its family.
    """

    name: str
    signed: str
    placement: Placement
    options: SharedOptions
    choices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()  # that it reads; none: as the table of encoders says

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        options = self.options
        compiled = (f"compile:{options.compile}",) if options.compile else ()
        shared = (f"pool:{options.pool}", f"long:{options.long_text}", *compiled, *options.pixel_choices)
        return ",".join((self.signed, *self.choices, *shared, f"dtype:{self.placement.dtype_name}"))


@dataclass(frozen=True, slots=True)
class States:
    """Local vectors before the last step, of any length; `pooled` are unit vectors, or None where there are none."""

    points: Float[Tensor, "batch points dim"]
    mask: Bool[Tensor, "batch points"]
    pooled: Float[Tensor, "batch pooled_dim"] | None
    layout: tuple[PatchLayout, ...] | tuple[TokenLayout, ...]


class Backbone(ABC):
    """An encoder around a pretrained model; a family says how its model sees and reads.

    Vectors come out in float32 whatever the model computes in, as plain tensors without history: heads can be
    trained on them. `prepare` makes a picture ready; given here, without the model, other processes can have it too.
    """

    def __init__(self, identity: Identity, *, prepare: Callable[[Image], Prepared] | None = None) -> None:
        self._identity, self._own_prepare = identity, prepare

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self._identity.name

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        return self._identity.signature

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""
        return self._identity.placement.device

    @property
    def precision(self) -> torch.dtype:
        """What its model computes in."""
        return self._identity.placement.dtype

    @property
    def bank(self) -> Bank | None:
        """The background that it is calibrated against; none, unless a family brings one."""
        return None

    @property
    def recommended(self) -> Mapping[str, Any] | None:
        """The settings of the score that serve it best; none, unless a family knows them."""
        return None

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The steps by which pictures are made ready, where these are all that is done; other processes can do them."""
        return None

    def prepare(self, image: Image) -> Prepared:
        """The picture as the network needs it; a family that resizes does it here, where pictures are decoded."""
        return (self.sendable_prepare or whole_picture)(image)

    @property
    def sendable_prepare(self) -> Callable[[Image], Prepared] | None:
        """`prepare` without the model, for other processes; None where a family has no way that can be sent."""
        steps = self.preprocessing
        return self._own_prepare if steps is None else partial(prepare_picture, steps=steps)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds one `PatchLayout` per item."""
        _require_items(images, "picture")
        return self._finish(self._see(images))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds one `TokenLayout` per item."""
        _require_items(texts, "caption")
        found = self._finish(self._read(texts))
        english = (self._identity.languages or languages_of(self.name)) == ("en",)
        return replace(
            found, layout=tuple(_warned(*one, english=english) for one in zip(texts, found.layout, strict=True))
        )

    @abstractmethod
    def _see(self, images: Sequence[Prepared]) -> States:
        """Patches of prepared pictures."""

    @abstractmethod
    def _read(self, texts: Sequence[str]) -> States:
        """Tokens of captions."""

    def _finish(self, states: States) -> Embeddings:
        mask = states.mask.to(states.points.device)
        real = real_points(unit(states.points), mask)
        mean = states.pooled is None or self._identity.options.pool == "mean"
        pooled = masked_mean(real, mask) if mean else states.pooled
        assert pooled is not None
        if not (torch.isfinite(real).all() & torch.isfinite(pooled).all()):
            raise ConfigError(
                f"{self.name} overflows in {self._identity.placement.dtype_name}; "
                "load it with dtype='float32' or dtype='bfloat16'"
            )
        return Embeddings(real, mask, pooled, states.layout)


def compile_towers(options: SharedOptions, *towers: Any) -> None:
    """Compile modules in place with the backend that the options name; nothing for an empty name.

    Raises:
        ConfigError: torch knows no such backend.
    """
    if not options.compile:
        return
    known = torch.compiler.list_backends(exclude_tags=None)
    if options.compile not in known:
        raise ConfigError(f"compile must be empty or one of {', '.join(sorted(known))}, got {options.compile!r}")
    for tower in towers:
        tower.compile(backend=options.compile)


def _warned(text: str, layout: PatchLayout | TokenLayout, *, english: bool) -> PatchLayout | TokenLayout:
    """The layout with what the text alone says; what its tokens say stands there already."""
    found = text_warnings(text, english=english)
    return replace(layout, warnings=(*found, *layout.warnings)) if found else layout


def _require_items(items: Sequence[object], kind: str) -> None:
    if not items:
        raise ConfigError(f"expected at least one {kind} to encode, got none")


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


def load_placed(
    kind: str, checkpoint: Checkpoint, placement: Placement, options: LargeOptions, **given: Any
) -> tuple[Any, Placement]:
    """A model of the transformers class `kind`, ready to run, and where its inputs belong.

    What is `given` goes to `from_pretrained` as it is.

    Raises:
        MissingExtraError: a spread or quantised model needs accelerate, and quantised ones bitsandbytes.
        WeightsError: the files are damaged, of another model, or do not hold every tensor.
    """
    spread = _keywords(placement, options)
    model = load_model(kind, checkpoint, dtype=placement.dtype, **spread, **given)
    if not spread:
        return model.to(device=placement.device, dtype=placement.dtype).eval(), placement
    return model.eval(), replace(placement, device=torch.device(model.device))


def _keywords(placement: Placement, options: LargeOptions) -> Mapping[str, Any]:
    if not options.bits and not options.device_map:
        return {}
    require("accelerate", extra="large")
    spread = options.device_map or {"": placement.device}
    return {"device_map": spread, **_quantised(options.bits, placement.dtype)}


def _quantised(bits: int, dtype: torch.dtype) -> Mapping[str, Any]:
    if not bits:
        return {}
    require("bitsandbytes", extra="large")
    transformers = require("transformers", extra="hf")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_WHOLE
    )
    return {"quantization_config": config}
