"""The second part of a pipeline: decoded images and captions in, vectors out, with an error for each failed item."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from msdscore.core.arrays import (
    Array,
    Bool,
    Float,
    is_gpu,
    is_launching,
    launched,
    masked,
    namespace,
    to_numpy,
)
from msdscore.core.embeddings import join, length, take
from msdscore.encoders.base import (
    UNIT,
    Capabilities,
    Embeddings,
    Encoder,
    encode_by_length,
    encode_in_batches,
    overflow,
)
from msdscore.encoders.preprocessing import prepared_key
from msdscore.errors import CaptionError, ConfigError, ImageError, RowError, shortened
from msdscore.io.files import text_key
from msdscore.scoring.decoder import Decoded

Item = TypeVar("Item")
# The batch, the row of every item, and the errors of the items without a row.
EncodedItems = tuple[Embeddings | None, tuple[int | None, ...], dict[int, RowError]]
# Images per batch on a CPU and on a GPU: enough to fill it; halved when its memory runs out.
BATCH_SIZES = (32, 256)
# Texts per batch: texts of similar length together, so that little is padded; for a GPU larger batches, since each one
# costs time on the host.
MOST_TEXTS = (128, 256)
MEMORY = 256 << 20  # bytes of the vectors of images, and of captions, that are cached for a run
OBJECTS = 3072  # bytes of a cached item in addition to its vectors: layout and key, measured on short captions


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded items: item i is row `rows[i]` of `batch`, or has an error in `errors`; equal captions share a row.

    `image_keys` has one key per row of images, `captions` one text per row of captions. `batch` is None if no item
    could be embedded.
    """

    batch: Embeddings | None
    rows: tuple[int | None, ...]
    errors: Mapping[int, RowError]
    image_keys: tuple[int, ...] = ()
    captions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> Embeddings:
        """The batch; at least one item must have been embedded."""
        assert self.batch is not None, "no item was embedded; check the errors first"
        return self.batch

    @property
    def keys(self) -> tuple[int, ...]:
        """One integer per row, computed from the content of the item."""
        return self.image_keys or tuple(map(text_key, self.captions))

    def row(self, item: int) -> int:
        """Return the row of an item that was embedded."""
        row = self.rows[item]
        assert row is not None, f"item {item} was not embedded: {self.errors[item]}"
        return row

    def require(self) -> "Embedded":
        """Return itself, or raise the first error if an item could not be embedded."""
        if self.errors:
            raise self.errors[min(self.errors)]
        return self


class BatchSizes:
    """Images and texts per batch of an encoder; reduced when its device runs out of memory.

    All pipelines of one scorer share it, so that a later call starts with the size that fitted.
    """

    def __init__(self, encoder: Encoder, images: int | None = None) -> None:
        if images is not None and (not isinstance(images, int) or images < 1):
            raise ConfigError(f"batch_size must be a whole number of at least 1, got {images!r}")
        self._lock = Lock()
        self.images = images or BATCH_SIZES[is_gpu(encoder.device)]
        self.texts = min(4 * self.images, MOST_TEXTS[is_gpu(encoder.device)])

    def limit_images(self, size: int) -> None:
        """Limit batches to this many images, and four times as many texts, from now on."""
        with self._lock:
            self.images, self.texts = min(self.images, size), min(self.texts, 4 * size)

    def limit_texts(self, size: int) -> None:
        """Limit batches to this many texts from now on."""
        with self._lock:
            self.texts = min(self.texts, size)


class VectorMemory:
    """The most recently used batches of vectors, up to a number of bytes; thread-safe.

    Nothing is copied for an item that was never seen before, and no call waits for the device.
    """

    def __init__(self, limit: int = MEMORY) -> None:
        self._limit, self._bytes, self._number = limit, 0, 0
        self._batches: OrderedDict[int, tuple[Embeddings, tuple[str, ...]]] = OrderedDict()
        self._position: dict[str, tuple[int, int]] = {}  # batch number, row in the batch
        self._lock = Lock()
        self.encoded = 0  # items that were not known

    def recall(self, items: Mapping[str, Item], encode: Callable[[Sequence[Item]], Embeddings]) -> Embeddings:
        """Return the vectors of distinct items, in order; those with unknown keys are passed to `encode`.

        `encode` is called without the lock, since it may wait for another thread that is in this method: threads that
        meet here with the same unknown item both encode it.
        """
        parts: dict[int, dict[str, int]] = {}
        with self._lock:
            for key in items:
                if key in self._position:
                    number, row = self._position[key]
                    parts.setdefault(number, {})[key] = row
            known = [(self._batches[number][0], rows) for number, rows in parts.items()]
            for number in parts:
                self._batches.move_to_end(number)
        order = [key for _, rows in known for key in rows]
        found = set(order)
        missing = tuple(key for key in items if key not in found)
        batches = [_in_order(batch, list(rows.values())) for batch, rows in known]
        if missing:
            batches.append(encode([items[key] for key in missing]))
            with self._lock:
                self._keep(batches[-1], missing)
        position = {key: row for row, key in enumerate((*order, *missing))}
        return _in_order(join(batches), [position[key] for key in items])

    def _keep(self, batch: Embeddings, keys: tuple[str, ...]) -> None:
        self._batches[self._number] = (batch, keys)
        self._position.update((key, (self._number, row)) for row, key in enumerate(keys))
        self._number += 1
        self.encoded += len(keys)
        self._bytes += batch.nbytes + OBJECTS * len(keys)
        while self._bytes > self._limit:
            number, (dropped, gone) = self._batches.popitem(last=False)
            self._bytes -= dropped.nbytes + OBJECTS * len(gone)
            for key in gone:
                if key in self._position and self._position[key][0] == number:  # it may be in two batches
                    del self._position[key]


@dataclass(frozen=True, slots=True)
class Embedder:
    """Encodes images and captions in batches; known ones are not encoded again, if there is a memory for them.

    `signature` is the `encoder_signature` of the encoder.
    """

    encoder: Encoder
    can: Capabilities
    sizes: BatchSizes
    signature: str
    known_images: VectorMemory | None = None
    known_texts: VectorMemory | None = None

    def images(self, decoded: Sequence[Decoded | RowError]) -> Embedded:
        """Encode decoded images, batch by batch."""

        def compute(items: Sequence[Decoded]) -> Embeddings:
            images, sizes = [item.prepared for item in items], self.sizes
            return self._launched(
                lambda: encode_in_batches(
                    images, self.encoder.encode_images, size=sizes.images, smaller=sizes.limit_images
                )
            )

        def encode(items: Sequence[Decoded]) -> Embeddings:
            return _recalled(items, (prepared_key(item.prepared) for item in items), compute, self.known_images)

        batch, rows, errors = self._checked(
            _encode_items(decoded, encode),
            lambda index: ImageError("the encoder returned no vectors for the image"),
            wait=False,
        )
        keys = tuple(
            item.key for item, row in zip(decoded, rows, strict=True) if row is not None and isinstance(item, Decoded)
        )
        return Embedded(batch, rows, errors, keys)

    def texts(self, captions: Sequence[str]) -> Embedded:
        """Encode captions, each distinct one once; a caption without readable words gets an error."""
        # Errors are compared by identity: every caption that is not text remains a separate item.
        checked = [_checked_caption(text) for text in captions]
        index_of = {text: index for index, text in enumerate(dict.fromkeys(checked))}
        distinct, indices = list(index_of), [index_of[text] for text in checked]

        def no_words(index: int) -> CaptionError:
            return CaptionError(f"the caption {str(distinct[index])[:40]!r} has no words that the encoder can read")

        batch, rows, errors = self._checked(_encode_items(distinct, self.vectors), no_words, wait=True)
        captions = tuple(str(text) for text, row in zip(distinct, rows, strict=True) if row is not None)
        return Embedded(
            batch,
            tuple(rows[index] for index in indices),
            {item: errors[index] for item, index in enumerate(indices) if index in errors},
            captions=captions,
        )

    def _checked(self, encoded: EncodedItems, no_points: Callable[[int], RowError], *, wait: bool) -> EncodedItems:
        """Return the items with usable vectors, and an error for each of the others; `no_points` by its index.

        An item is not usable if it has no points, or if its vectors are not finite. Points of length zero have no
        direction, and are masked. In a launching thread, the pooled vectors of items that are not usable become NaN;
        only with `wait`, items without points are found now.

        Raises:
            ConfigError: pooled vectors are not of unit length, or a batch overflows.
        """
        batch, rows, errors = encoded
        if batch is None:
            return encoded
        filled: Any
        marked = self.can.marks_overflow
        if is_launching():
            batch, finite = batch if marked else _marked(batch), [True] * len(batch)
            filled = batch.filled or finite
            if wait and batch.filled is None:
                filled = [bool(row.any()) for row in to_numpy(batch.mask)]
        else:
            self._check_lengths(batch.pooled)
            batch = _masked(batch)
            finite, filled = _is_finite(batch).tolist(), to_numpy(batch.mask).any(axis=1).tolist()
            if marked and not all(finite):
                raise overflow(self.encoder.name, self.can.precision)
        items = {index: row for index, row in enumerate(rows) if row is not None}
        usable = {index: row for index, row in items.items() if finite[row] and filled[row]}
        if len(usable) == len(items):
            return batch, rows, errors
        for index in items.keys() - usable.keys():
            errors[index] = no_points(index) if not filled[items[index]] else not_finite(self.encoder)
        row_of = {index: row for row, index in enumerate(usable)}
        return take(batch, list(usable.values())) if usable else None, tuple(map(row_of.get, range(len(rows)))), errors

    def _check_lengths(self, pooled: Float[Array, "batch dim"]) -> None:
        lengths = to_numpy(length(pooled))
        if ((np.abs(lengths - 1) > UNIT) & (lengths > 0) & np.isfinite(lengths)).any():
            raise ConfigError(
                f"encoder {self.encoder.name!r} returned pooled vectors of length {lengths.min():.3g} to "
                f"{lengths.max():.3g}, expected unit vectors; divide them by their length"
            )

    def _launched(self, encode: Callable[[], Embeddings]) -> Embeddings:
        """Encode in the launching thread of a GPU; a cache on disk is read here, and only its encoder runs there."""
        return encode() if self.can.cache else launched(self.encoder.device, encode)

    def vectors(self, captions: Sequence[str]) -> Embeddings:
        """Encode texts as they are, in order; raise `RowError` for one that the encoder rejects."""

        def compute(texts: Sequence[str]) -> Embeddings:
            encode, sizes = self.encoder.encode_texts, self.sizes
            return self._launched(lambda: encode_by_length(texts, encode, size=sizes.texts, smaller=sizes.limit_texts))

        return _recalled(captions, captions, compute, self.known_texts)


def _recalled(
    items: Sequence[Item],
    keys: Iterable[str],
    encode: Callable[[Sequence[Item]], Embeddings],
    memory: VectorMemory | None,
) -> Embeddings:
    """Encode items of which some may be equal, each distinct and unknown one once if there is a memory."""
    if memory is None:
        return encode(items)
    listed = list(keys)
    distinct = dict(zip(listed, items, strict=True))
    batch = memory.recall(distinct, encode)
    row_of = {key: row for row, key in enumerate(distinct)}
    return _in_order(batch, [row_of[key] for key in listed])


def _in_order(batch: Embeddings, rows: list[int]) -> Embeddings:
    """Return rows of a batch; the batch itself if these are all of its rows in order."""
    return batch if rows == list(range(len(batch))) else take(batch, rows)


def _checked_caption(text: Any) -> str | CaptionError:
    if not isinstance(text, str):
        return CaptionError(f"a caption must be text, got {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # so invalid UTF-8 arrives from a command line
            return CaptionError(f"the caption {shortened(text)!r} is not valid Unicode")
    return text


def _encode_items(items: Sequence[Item | RowError], encode: Callable[[Sequence[Item]], Embeddings]) -> EncodedItems:
    """Encode items; return the batch, the row of every item, and an error for each item without a row.

    If the encoder rejects the batch, each item is encoded separately to find the invalid ones.
    """
    errors = {index: item for index, item in enumerate(items) if isinstance(item, RowError)}
    valid = {index: item for index, item in enumerate(items) if not isinstance(item, RowError)}
    batches: list[Embeddings] = []
    try:
        batches += [encode(list(valid.values()))] if valid else []
    except RowError:
        for index, item in valid.items():
            try:
                batches.append(encode([item]))
            except RowError as error:
                errors[index] = error
    row_of = {index: row for row, index in enumerate(index for index in valid if index not in errors)}
    return join(batches) if batches else None, tuple(map(row_of.get, range(len(items)))), errors


def not_finite(encoder: Encoder) -> RowError:
    """The error of a pair whose vectors are not finite."""
    return RowError(f"encoder {encoder.name!r} returned vectors that are not finite; it may overflow in its precision")


def _masked(batch: Embeddings) -> Embeddings:
    """Mask points of length zero."""
    xp = namespace(batch.points)
    mask = batch.mask & xp.any(batch.points != 0, axis=-1)  # NaN is not zero
    return batch if bool(xp.all(mask == batch.mask)) else replace(batch, mask=mask, filled=None)


def _is_finite(batch: Embeddings) -> Bool[Array, " batch"]:
    xp = namespace(batch.points)
    points = xp.all(xp.isfinite(batch.points), axis=-1) | ~batch.mask
    return xp.all(points, axis=1) & xp.all(xp.isfinite(batch.pooled), axis=1)


def _marked(batch: Embeddings) -> Embeddings:
    """Mask points of length zero, and set the pooled vectors of unusable items to NaN, without waiting for a GPU.

    Their points become zero, so that no computation on the batch meets numbers that are not finite.
    """
    xp = namespace(batch.points)
    mask = batch.mask & xp.any(batch.points != 0, axis=-1)
    usable = _is_finite(batch) & xp.any(mask, axis=1)
    points = masked(batch.points, usable[:, None, None], 0.0)
    return replace(batch, points=points, mask=mask, filled=None, pooled=masked(batch.pooled, usable[:, None], xp.nan))
