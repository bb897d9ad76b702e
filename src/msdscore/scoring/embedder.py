"""The second part of a pipeline: decoded images and captions in, vectors out, with an error for each failed item."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from msdscore.core.arrays import (
    Array,
    Bool,
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
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
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


class Recent(Generic[Key, Value]):
    """The most recently used values by key, at most `limit` of them; thread-safe, and not locked while one is computed.

    >>> squares = Recent[int, int](limit=2)
    >>> [squares.get(number, lambda: number * number) for number in (2, 3)]
    [4, 9]
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._values, self._lock = limit, OrderedDict[Key, Value](), Lock()

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """Return the value of a key; threads that meet here with the same new one both compute it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        with self._lock:
            value = self._values.setdefault(key, value)
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
        return value


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

    def recall(
        self, keys: Iterable[str], items: Sequence[Item], encode: Callable[[Sequence[Item]], Embeddings]
    ) -> Embeddings:
        """Return the vectors of items, of which some may have equal keys; those with unknown keys are encoded once.

        `encode` is called without the lock, since it may wait for another thread that is in this method: threads that
        meet here with the same unknown item both encode it.
        """
        listed, parts = list(keys), dict[int, dict[str, int]]()
        with self._lock:
            for key in listed:
                if key in self._position:
                    number, row = self._position[key]
                    parts.setdefault(number, {})[key] = row
            recalled = [(self._batches[number][0], rows) for number, rows in parts.items()]
            for number in parts:
                self._batches.move_to_end(number)
        order = [key for _, rows in recalled for key in rows]
        found = set(order)
        missing = {key: item for key, item in zip(listed, items, strict=True) if key not in found}
        batches = [take(batch, list(rows.values())) for batch, rows in recalled]
        if missing:
            batches.append(encode(list(missing.values())))
            with self._lock:
                self._keep(batches[-1], tuple(missing))
        position = {key: row for row, key in enumerate((*order, *missing))}
        return take(join(batches), [position[key] for key in listed])

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

        def vectors(items: Sequence[Decoded]) -> Embeddings:
            images, sizes = [item.prepared for item in items], self.sizes
            encode = partial(
                encode_in_batches, encode=self.encoder.encode_images, size=sizes.images, smaller=sizes.limit_images
            )
            return self._recalled(map(prepared_key, images), images, encode, self.known_images)

        def no_points(index: int) -> ImageError:
            return ImageError("the encoder returned no vectors for the image")

        batch, rows, errors = self._encoded(decoded, vectors, no_points, wait=False)
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

        batch, rows, errors = self._encoded(distinct, self.vectors, no_words, wait=True)
        captions = tuple(str(text) for text, row in zip(distinct, rows, strict=True) if row is not None)
        return Embedded(
            batch,
            tuple(rows[index] for index in indices),
            {item: errors[index] for item, index in enumerate(indices) if index in errors},
            captions=captions,
        )

    def vectors(self, captions: Sequence[str]) -> Embeddings:
        """Encode texts as they are, in order; raise `RowError` for one that the encoder rejects."""
        sizes = self.sizes
        encode = partial(
            encode_by_length, encode=self.encoder.encode_texts, size=sizes.texts, smaller=sizes.limit_texts
        )
        return self._recalled(captions, captions, encode, self.known_texts)

    def _recalled(
        self,
        keys: Iterable[str],
        items: Sequence[Item],
        encode: Callable[[Sequence[Item]], Embeddings],
        memory: VectorMemory | None,
    ) -> Embeddings:
        """Encode items in the launching thread of a GPU, those that are not known yet if there is a memory.

        A cache on disk is read here, and only its encoder runs in that thread.
        """
        device = self.encoder.device

        def launch(items: Sequence[Item]) -> Embeddings:
            return encode(items) if self.can.cache else launched(device, lambda: encode(items))

        return launch(items) if memory is None else memory.recall(keys, items, launch)

    def _encoded(
        self,
        items: Sequence[Item | RowError],
        encode: Callable[[Sequence[Item]], Embeddings],
        no_points: Callable[[int], RowError],
        *,
        wait: bool,
    ) -> tuple[Embeddings | None, tuple[int | None, ...], dict[int, RowError]]:
        """Encode items; return their vectors, the row of every item, and an error for each item without a row.

        If the encoder rejects the batch, each item is encoded separately to find the invalid ones. An item without
        points has the error `no_points` of its index.
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
        if not batches:
            return None, (None,) * len(items), errors
        batch, finite, filled = self._checked(join(batches), wait=wait)
        usable, row_of = list[int](), dict[int, int]()
        for row, index in enumerate(index for index in valid if index not in errors):
            if finite[row] and filled[row]:
                row_of[index] = len(usable)
                usable.append(row)
            else:
                errors[index] = not_finite_error(self.encoder) if filled[row] else no_points(index)
        return take(batch, usable) if usable else None, tuple(map(row_of.get, range(len(items)))), errors

    def _checked(self, batch: Embeddings, *, wait: bool) -> tuple[Embeddings, Sequence[bool], Sequence[bool]]:
        """Return a batch whose points of length zero, which have no direction, are masked.

        Also return whether the vectors of each item are finite, and whether it has points. In a launching thread, the
        pooled vectors of items that are not usable become NaN; only with `wait`, items without points are found now.

        Raises:
            ConfigError: pooled vectors are not of unit length, or a batch overflows.
        """
        marked, finite = self.can.marks_overflow, [True] * len(batch)
        if is_launching():
            batch = batch if marked else _marked(batch)
            if wait and batch.filled is None:
                return batch, finite, [bool(row.any()) for row in to_numpy(batch.mask)]
            return batch, finite, finite if batch.filled is None else batch.filled
        lengths, xp = to_numpy(length(batch.pooled)), namespace(batch.points)
        if ((np.abs(lengths - 1) > UNIT) & (lengths > 0) & np.isfinite(lengths)).any():
            raise ConfigError(
                f"encoder {self.encoder.name!r} returned pooled vectors of length {lengths.min():.3g} to "
                f"{lengths.max():.3g}, expected unit vectors; divide them by their length"
            )
        mask = batch.mask & xp.any(batch.points != 0, axis=-1)  # NaN is not zero
        batch = batch if bool(xp.all(mask == batch.mask)) else replace(batch, mask=mask, filled=None)
        finite = _is_finite(batch).tolist()
        if marked and not all(finite):
            raise overflow(self.encoder.name, self.can.precision)
        return batch, finite, [bool(row.any()) for row in to_numpy(batch.mask)]


def _checked_caption(text: Any) -> str | CaptionError:
    if not isinstance(text, str):
        return CaptionError(f"a caption must be text, got {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # so invalid UTF-8 arrives from a command line
            return CaptionError(f"the caption {shortened(text)!r} is not valid Unicode")
    return text


def not_finite_error(encoder: Encoder) -> RowError:
    """The error of a pair whose vectors are not finite."""
    return RowError(f"encoder {encoder.name!r} returned vectors that are not finite; it may overflow in its precision")


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
