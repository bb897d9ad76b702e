"""What an encoder is: images and texts in, unit vectors with their places out; many items in batches."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import cpu_count
from threading import Lock
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL.Image import Image
from torch import Tensor

from msdscore.core.embeddings import Embeddings as Embeddings
from msdscore.core.embeddings import PatchLayout as PatchLayout
from msdscore.core.embeddings import TokenLayout as TokenLayout
from msdscore.core.embeddings import join, take
from msdscore.core.evidence import Bank
from msdscore.encoders.vision.canvas import View as View
from msdscore.text.normal import Clean, clean, given_spans
from msdscore.text.warnings import mark_warnings

Item = TypeVar("Item")
_TEXT_BYTES = 256 << 20  # of the texts that are kept for a run
_THREADS = min(16, cpu_count() or 1)  # that prepare images side by side


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An image made ready for one encoder: the pixels that its network reads, and where they lay on the original.

    It is all that the vectors and the boxes of the image depend on, and is small however large the image was. A JPEG
    file that the device is to decode waits as the row of its bytes.
    """

    pixels: UInt8[Tensor, "3 height width"] | UInt8[Tensor, " bytes"]
    view: View


# The windows of each caption in a batch of windows, padded with its own first one; their shares in its pooled vector.
Windows = tuple[Int[Tensor, "batch parts"], Float[Tensor, "batch parts"]]


@dataclass(frozen=True, slots=True)
class Features:
    """Local vectors of any length on their way to `Embeddings`: states of a network, or raw features under heads.

    `pooled` are vectors of the network's own, or None for the mean of the points. `whole` has the points of a second,
    global path where one is asked for. Where `windows` is given, the rows of `whole` and `pooled` are windows of
    captions, which it puts together.
    """

    points: Float[Tensor, "batch points dim"]
    mask: Bool[Tensor, "batch points"]
    pooled: Float[Tensor, "rows pooled_dim"] | None = None
    layout: tuple[PatchLayout | TokenLayout, ...] = ()
    whole: "Features | None" = None
    windows: Windows | None = None

    def __len__(self) -> int:
        return self.points.shape[0]


class PreparesImages(Protocol):
    """Anything that makes images ready for a network: an encoder, or the image tower of one."""

    def prepare(self, image: Image) -> Prepared:
        """The image as the network needs it; safe to call from several threads at once."""


@runtime_checkable
class Encoder(Protocol):
    """Anything that turns images and captions into `Embeddings` of one space.

    `name` is the short name or path it was loaded by; `signature` spells every choice that can change a vector:
    weights and revision, pooling, norms, window rule, dtype. Images come decoded, upright and in RGB mode. An
    item's vectors must not depend on the other items of its batch beyond rounding.
    `msdscore.encoders.backbone.Backbone` gives all members but the two that see and read.
    """

    @property
    def name(self) -> str:
        """The name it was loaded by."""

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as ``key:value`` parts joined by commas."""

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""

    @property
    def bank(self) -> Bank | None:
        """The background that it is calibrated against, where it brings one."""

    @property
    def recommended(self) -> Mapping[str, Any] | None:
        """The settings of the score that serve it best, where they are known."""

    def prepare(self, image: Image) -> Prepared:
        """The image as the network needs it, right after decoding; safe to call from several threads at once."""

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds one `PatchLayout` per item."""

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds one `TokenLayout` per item. No tokens give an empty mask."""


def computes_in_half(encoder: Encoder) -> bool:
    """Whether an encoder computes in half precision on a GPU: its vectors hold no more than that, whatever their type.

    >>> from msdscore.encoders.registry import load_encoder
    >>> computes_in_half(load_encoder("toy"))
    False
    """
    precision = getattr(encoder, "precision", torch.float32)
    return encoder.device.type == "cuda" and precision in (torch.float16, torch.bfloat16)


def prepare_all(encoder: PreparesImages, images: Sequence[Image]) -> list[Prepared]:
    """Decoded images made ready side by side: Pillow lets go of the interpreter while it resizes."""
    if len(images) < 2:
        return [encoder.prepare(image) for image in images]
    with ThreadPoolExecutor(min(_THREADS, len(images))) as pool:
        return list(pool.map(encoder.prepare, images))


def prepare_and_encode(encoder: Encoder, images: Sequence[Image]) -> Embeddings:
    """Patches and pooled vectors of decoded images, for callers that have them all in memory anyway.

    >>> from msdscore.encoders.registry import load_encoder
    >>> from PIL import Image
    >>> len(prepare_and_encode(load_encoder("toy"), [Image.new("RGB", (8, 8))]))
    1
    """
    return encoder.encode_images(prepare_all(encoder, images))


def encode_in_batches(
    items: Sequence[Item],
    encode: Callable[[Sequence[Item]], Embeddings],
    *,
    size: int,
    smaller: Callable[[int], None] = lambda size: None,
) -> Embeddings:
    """Embeddings of all items, `size` at a time; batches are halved each time the device's memory runs out.

    `smaller` is called with every new size.
    """
    batches: list[Embeddings] = []
    start = 0
    while start < len(items):
        try:
            batches.append(encode(items[start : start + size]))
        except torch.OutOfMemoryError:
            size = min(size, len(items) - start) // 2
            if size == 0:
                raise
            torch.cuda.empty_cache()
            smaller(size)
        else:
            start += size
    return join(batches)


def encode_by_length(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Embeddings],
    *,
    size: int,
    smaller: Callable[[int], None] = lambda size: None,
) -> Embeddings:
    """Embeddings of all texts, encoded in order of their length, so that little is padded; see `encode_in_batches`.

    Every text of every encoder passes here: invisible characters are removed before it is read, and the spans of its
    tokens refer to the text as given.
    """
    cleaned = [clean(text) for text in texts]
    plain = [text if found is None else found.text for text, found in zip(texts, cleaned, strict=True)]
    order = sorted(range(len(plain)), key=lambda number: len(plain[number]))
    joined = encode_in_batches([plain[number] for number in order], encode, size=size, smaller=smaller)
    batch = take(joined, sorted(range(len(order)), key=order.__getitem__))
    if not any(cleaned):
        return batch
    layout = tuple(
        _as_given(layout, text, found) if found is not None and isinstance(layout, TokenLayout) else layout
        for layout, text, found in zip(batch.layout, texts, cleaned, strict=True)
    )
    return replace(batch, layout=layout)


def _as_given(layout: TokenLayout, text: str, found: Clean) -> TokenLayout:
    """The layout of a cleaned text with spans of the text as given, and what was removed as warnings."""
    return replace(layout, spans=given_spans(found, layout.spans), warnings=(*mark_warnings(text), *layout.warnings))


class TextMemory:
    """The batches of texts that were embedded last, up to a number of bytes; may be used by several threads.

    Nothing is copied for a text that was never met before, and nothing waits for the device.
    """

    def __init__(self, limit: int = _TEXT_BYTES) -> None:
        self._limit, self._bytes, self._number = limit, 0, 0
        self._batches: OrderedDict[int, tuple[Embeddings, tuple[str, ...]]] = OrderedDict()
        self._place: dict[str, tuple[int, int]] = {}  # number of the batch, row in it
        self._lock = Lock()

    def recall(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Embeddings]) -> Embeddings:
        """The vectors of distinct texts, in order; those that are not known go through `encode`."""
        with self._lock:
            known = {text: self._place[text] for text in texts if text in self._place}
            missing = tuple(text for text in texts if text not in known)
            if not known:
                fresh = encode(missing)
                self._keep(fresh, missing)
                return fresh
            parts: dict[int, dict[str, int]] = {}
            for text, (number, row) in known.items():
                parts.setdefault(number, {})[text] = row
            batches = [take(self._batches[number][0], list(rows.values())) for number, rows in parts.items()]
            for number in parts:
                self._batches.move_to_end(number)
            if missing:
                batches.append(encode(missing))
                self._keep(batches[-1], missing)
        order = [text for rows in parts.values() for text in rows] + list(missing)
        place = {text: row for row, text in enumerate(order)}
        return take(join(batches), [place[text] for text in texts])

    def _keep(self, batch: Embeddings, texts: tuple[str, ...]) -> None:
        self._batches[self._number] = (batch, texts)
        self._place.update((text, (self._number, row)) for row, text in enumerate(texts))
        self._number += 1
        self._bytes += batch.nbytes
        while self._bytes > self._limit:
            number, (dropped, gone) = self._batches.popitem(last=False)
            self._bytes -= dropped.nbytes
            for text in gone:
                if self._place[text][0] == number:
                    del self._place[text]
