"""What an encoder can do beyond the `Encoder` protocol: one protocol per capability, looked up once per pipeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar

from PIL.Image import Image

from msdscore.core.arrays import Array, Float, is_gpu
from msdscore.encoders.base import Encoder, Prepared
from msdscore.encoders.preprocessing import Preprocessing
from msdscore.errors import ConfigError

if TYPE_CHECKING:  # imported if vectors are cached on disk
    from msdscore.encoders.cached import CacheUse

Prepare: TypeAlias = Callable[[Image], Prepared]
Capability = TypeVar("Capability")


class Preprocesses(Protocol):
    """It prepares images by these steps (None: in another way), so that files are decoded as the steps require."""

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The steps."""


class Sendable(Protocol):
    """Its `prepare` can be sent to other processes, without the network."""

    @property
    def sendable_prepare(self) -> Prepare | None:
        """The function to send; None if there is none."""


class HasPrecision(Protocol):
    """Its network computes in this dtype, whatever the dtype of its vectors."""

    @property
    def precision(self) -> Any:
        """A torch.dtype, or its name."""


class MarksOverflow(Protocol):
    """In a launching thread it sets the pooled vectors of an overflow to NaN: a check would wait for the device."""

    @property
    def marks_overflow(self) -> bool:
        """Whether it does."""


class EncodesSentences(Protocol):
    """It has sentence vectors of texts, to compare texts with."""

    def encode_sentences(self, texts: Sequence[str]) -> Float[Array, "texts dim"]:
        """One vector per text."""


class Published(Protocol):
    """It has a form on which the metrics of others, such as CLIPScore, are defined."""

    def as_published(self) -> Encoder:
        """Return that form."""


class Cache(Protocol):
    """It reads vectors from a disk, and so waits for those of every item, even on a GPU."""

    @property
    def use(self) -> "CacheUse":
        """Statistics so far."""

    def prepare_file(self, content: bytes, how: str, make: Callable[[], Prepared]) -> Prepared:
        """The image of a file; `make` decodes it as described by `how`, and is called only if it is not cached."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of one encoder, or None for those that it lacks."""

    preprocessing: Preprocessing | None = None
    sendable_prepare: Prepare | None = None
    precision: str = "float32"
    marks_overflow: bool = False
    encode_sentences: Callable[[Sequence[str]], Float[Array, "texts dim"]] | None = None
    as_published: Callable[[], Encoder] | None = None
    cache: Cache | None = None
    computes_in_half: bool = False


def capabilities(encoder: Encoder) -> Capabilities:
    """Look up the capabilities of an encoder.

    >>> from msdscore.encoders.registry import load_encoder
    >>> capabilities(load_encoder("toy")) == Capabilities()
    True
    """
    precision = str(encoder.precision).removeprefix("torch.") if offers(encoder, HasPrecision) else "float32"
    return Capabilities(
        preprocessing=preprocessing_of(encoder),
        sendable_prepare=encoder.sendable_prepare if offers(encoder, Sendable) else None,
        precision=precision,
        marks_overflow=offers(encoder, MarksOverflow) and encoder.marks_overflow,
        encode_sentences=encoder.encode_sentences if offers(encoder, EncodesSentences) else None,
        as_published=encoder.as_published if offers(encoder, Published) else None,
        cache=encoder if offers(encoder, Cache) else None,
        computes_in_half=is_gpu(encoder.device) and "float16" in precision,
    )


def offers(encoder: object, capability: Callable[..., Capability]) -> TypeGuard[Capability]:
    """Whether an encoder has the members of a protocol, also if it delegates them to another one by `__getattr__`."""
    return all(hasattr(encoder, name) for name in vars(capability) if not name.startswith("_"))


def preprocessing_of(encoder: object) -> Preprocessing | None:
    """The preprocessing steps of an encoder or a tower; None if it does anything else."""
    return encoder.preprocessing if offers(encoder, Preprocesses) else None


def overflow(name: str, precision: object) -> ConfigError:
    """The error of an encoder whose vectors are not finite."""
    shown = str(precision).removeprefix("torch.")
    return ConfigError(f"{name} overflows in {shown}; load it with dtype='float32' or dtype='bfloat16'")
