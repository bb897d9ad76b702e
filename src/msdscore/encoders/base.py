"""The `Encoder` protocol, what encoders can do beyond it, and the batching of images and texts around it.

Beyond the protocol there is one protocol per capability, looked up once per pipeline by `capabilities`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from PIL.Image import Image

from msdscore import threads
from msdscore.core.arrays import Array, Device, Float, astype, is_gpu, namespace
from msdscore.core.embeddings import Embeddings as Embeddings
from msdscore.core.embeddings import PatchLayout as PatchLayout
from msdscore.core.embeddings import TokenLayout as TokenLayout
from msdscore.core.embeddings import join, take
from msdscore.core.evidence import Bank
from msdscore.encoders.preprocessing import Prepared as Prepared
from msdscore.encoders.preprocessing import Preprocessing
from msdscore.encoders.preprocessing import View as View
from msdscore.errors import ConfigError
from msdscore.text.normal import clean, original_spans
from msdscore.text.warnings import mark_warnings, text_warnings

if TYPE_CHECKING:  # imported if vectors are cached on disk
    from msdscore.encoders.cached import CacheUse

Item = TypeVar("Item")
Capability = TypeVar("Capability")
Prepare: TypeAlias = Callable[[Image], Prepared]
UNIT = 0.01  # maximum deviation of a unit vector's length from 1; half precision needs 0.002
_MOST_THREADS = 16  # for preparing images in parallel


@runtime_checkable
class Encoder(Protocol):
    """Anything that turns images and captions into `Embeddings` of one space.

    `name` is the short name or path it was loaded by; `signature` lists every choice that can change a vector:
    weights and revision, pooling, norms, window rule, dtype; `encoder_signature` adds a hash of the code and weights of
    a user's encoder. Images are passed decoded, upright and in RGB mode. An item's vectors must not depend on the other
    items of its batch beyond rounding.
    `msdscore_torch.backbone.Backbone` implements everything except encoding images and texts.
    """

    @property
    def name(self) -> str:
        """The name it was loaded by."""

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as ``key:value`` parts joined by commas."""

    @property
    def device(self) -> Device:
        """The device of its vectors: "cpu" for an encoder that returns NumPy arrays, a torch.device for tensors."""

    @property
    def bank(self) -> Bank | None:
        """The background bank that it is calibrated against, if it has one."""

    @property
    def recommended(self) -> Mapping[str, Any] | None:
        """The recommended score settings, if they are known."""

    def prepare(self, image: Image) -> Prepared:
        """Preprocess an image right after decoding; safe to call from several threads at once."""

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` has one `PatchLayout` per item."""

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` has one `TokenLayout` per item. No tokens yield an empty mask."""


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


def prepare_all(prepare: Callable[[Image], Prepared], images: Sequence[Image]) -> list[Prepared]:
    """Preprocess decoded images in parallel: Pillow releases the GIL while it resizes."""
    if len(images) < 2:
        return [prepare(image) for image in images]
    with ThreadPoolExecutor(min(_MOST_THREADS, threads.available(), len(images))) as pool:
        return list(pool.map(prepare, images))


def prepare_and_encode(encoder: Encoder, images: Sequence[Image]) -> Embeddings:
    """Encode decoded images that are all in memory.

    >>> from msdscore.encoders.registry import load_encoder
    >>> from PIL import Image
    >>> len(prepare_and_encode(load_encoder("toy"), [Image.new("RGB", (8, 8))]))
    1
    """
    return encoder.encode_images(prepare_all(encoder.prepare, images))


def encode_in_batches(
    items: Sequence[Item],
    encode: Callable[[Sequence[Item]], Embeddings],
    *,
    size: int,
    smaller: Callable[[int], None] = lambda size: None,
) -> Embeddings:
    """Encode all items, `size` at a time; batches are halved each time the device runs out of memory.

    `smaller` is called with every new size.
    """
    batches: list[Embeddings] = []
    start = 0
    while start < len(items):
        try:
            batches.append(_as_float32(encode(items[start : start + size])))
        except _out_of_memory():
            size = min(size, len(items) - start) // 2
            if size == 0:
                raise
            sys.modules["torch"].cuda.empty_cache()
            smaller(size)
        else:
            start += size
    return join(batches)


def _as_float32(batch: Embeddings) -> Embeddings:
    """Round vectors in double precision, which an encoder of NumPy arrays has; all others are in single precision."""
    xp = namespace(batch.points)
    if batch.points.dtype != xp.float64 and batch.pooled.dtype != xp.float64:
        return batch
    return replace(batch, points=astype(batch.points, xp.float32), pooled=astype(batch.pooled, xp.float32))


def _out_of_memory() -> tuple[type[BaseException], ...]:
    """The errors of a device without memory; none without torch."""
    return (sys.modules["torch"].OutOfMemoryError,) if "torch" in sys.modules else ()


def encode_by_length(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Embeddings],
    *,
    size: int,
    smaller: Callable[[int], None] = lambda size: None,
) -> Embeddings:
    """Encode all texts in order of their length, to minimise padding; see `encode_in_batches`.

    Every text of every encoder passes through here: invisible characters are removed first, and the spans of its
    tokens refer to the original text.
    """
    cleaned = [clean(text) for text in texts]
    plain = [text if result is None else result.text for text, result in zip(texts, cleaned, strict=True)]
    order = sorted(range(len(plain)), key=lambda number: len(plain[number]))
    joined = encode_in_batches([plain[number] for number in order], encode, size=size, smaller=smaller)
    batch = take(joined, sorted(range(len(order)), key=order.__getitem__))
    if not any(cleaned):
        return batch
    layouts = list(batch.layout)
    for number, (layout, result) in enumerate(zip(batch.layout, cleaned, strict=True)):
        if result is not None and isinstance(layout, TokenLayout):
            warnings = (*mark_warnings(texts[number]), *layout.warnings)
            layouts[number] = replace(layout, spans=original_spans(result, layout.spans), warnings=warnings)
    return replace(batch, layout=tuple(layouts))


def with_text_warnings(batch: Embeddings, texts: Sequence[str], *, english: bool) -> Embeddings:
    """Add warnings about captions to their layouts; `english` if the encoder reads only English."""
    warnings = (text_warnings(text, english=english) for text in texts)
    layouts = (layout for layout in batch.layout if isinstance(layout, TokenLayout))
    return replace(
        batch,
        layout=tuple(
            replace(layout, warnings=(*messages, *layout.warnings)) if messages else layout
            for messages, layout in zip(warnings, layouts, strict=True)
        ),
    )
