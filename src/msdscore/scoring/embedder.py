"""The second part of a pipeline: decoded images and captions in, vectors out, with an error for each failed item."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from msdscore.core.embeddings import join, take
from msdscore.encoders.backbone import UNIT
from msdscore.encoders.base import Embeddings, Encoder, TextMemory, encode_by_length, encode_in_batches
from msdscore.errors import CaptionError, ConfigError, RowError
from msdscore.io.hashing import text_key
from msdscore.scoring.decoder import Decoded

Item = TypeVar("Item")
# The batch, the row of every item, and the errors of the items without a row.
EncodedItems = tuple[Embeddings | None, tuple[int | None, ...], dict[int, RowError]]
# Images per batch by kind of device: enough to fill it; halved when its memory runs out.
BATCH_SIZES = {"cpu": 32, "cuda": 256}
# Texts per batch: texts of similar length together, so that little is padded; for a GPU larger batches, since each one
# costs time on the host.
MOST_TEXTS = {"cpu": 128, "cuda": 256}


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded items: item i is row `rows[i]` of `batch`, or has an error in `errors`; equal captions share a row.

    `keys` has one key per row, `captions` one text per row (none for images). `batch` is None if no item could be
    embedded.
    """

    batch: Embeddings | None
    rows: tuple[int | None, ...]
    errors: Mapping[int, RowError]
    keys: tuple[int, ...]
    captions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> Embeddings:
        """The batch; at least one item must have been embedded."""
        assert self.batch is not None, "no item was embedded; check the errors first"
        return self.batch

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
        kind = encoder.device.type
        self._lock = Lock()
        self.images = images or BATCH_SIZES.get(kind, BATCH_SIZES["cpu"])
        self.texts = min(4 * self.images, MOST_TEXTS.get(kind, MOST_TEXTS["cpu"]))

    def limit_images(self, size: int) -> None:
        """Limit batches to this many images, and four times as many texts, from now on."""
        with self._lock:
            self.images, self.texts = min(self.images, size), min(self.texts, 4 * size)

    def limit_texts(self, size: int) -> None:
        """Limit batches to this many texts from now on."""
        with self._lock:
            self.texts = min(self.texts, size)


@dataclass(frozen=True, slots=True)
class Embedder:
    """Encodes images and captions in batches; with `memory`, known captions are not encoded again."""

    encoder: Encoder
    sizes: BatchSizes
    memory: TextMemory | None = None

    def images(self, decoded: Sequence[Decoded | RowError]) -> Embedded:
        """Encode decoded images, batch by batch."""

        def encode(items: Sequence[Decoded]) -> Embeddings:
            return encode_in_batches(
                [item.prepared for item in items],
                self.encoder.encode_images,
                size=self.sizes.images,
                smaller=self.sizes.limit_images,
            )

        batch, rows, errors = _encode_items(decoded, encode)
        self._check(batch)
        keys = tuple(
            item.key for item, row in zip(decoded, rows, strict=True) if row is not None and isinstance(item, Decoded)
        )
        return Embedded(batch, rows, errors, keys)

    def texts(self, captions: Sequence[str]) -> Embedded:
        """Encode captions, each distinct one once; a caption without readable words gets an error."""
        # Errors are compared by identity: every caption that is not text remains a separate item.
        checked = [
            text if isinstance(text, str) else CaptionError(f"a caption must be text, got {type(text).__name__}")
            for text in captions
        ]
        index_of = {text: index for index, text in enumerate(dict.fromkeys(checked))}
        distinct, indices = list(index_of), [index_of[text] for text in checked]
        memory = self.memory
        encode = self.vectors if memory is None else lambda texts: memory.recall(texts, self.vectors)
        batch, rows, errors = _encode_items(distinct, encode)
        if batch is not None:
            batch, rows, errors = _without_empty(distinct, batch, rows, errors)
        self._check(batch)
        captions = tuple(str(text) for text, row in zip(distinct, rows, strict=True) if row is not None)
        return Embedded(
            batch,
            tuple(rows[index] for index in indices),
            {item: errors[index] for item, index in enumerate(indices) if index in errors},
            tuple(map(text_key, captions)),
            captions,
        )

    def _check(self, batch: Embeddings | None) -> None:
        """Raise `ConfigError` for pooled vectors that are not of unit length, without waiting for a GPU."""
        if batch is None or batch.pooled.device.type != "cpu":
            return
        lengths = batch.pooled.norm(dim=-1)
        if bool((((lengths - 1).abs() > UNIT) & (lengths > 0)).any()):
            raise ConfigError(
                f"encoder {self.encoder.name!r} returned pooled vectors of length {lengths.min():.3g} to "
                f"{lengths.max():.3g}, expected unit vectors; divide them by their length"
            )

    def vectors(self, captions: Sequence[str]) -> Embeddings:
        """Encode texts as they are, in order; raise `RowError` for one that the encoder rejects."""
        sizes = self.sizes
        return encode_by_length(captions, self.encoder.encode_texts, size=sizes.texts, smaller=sizes.limit_texts)


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


def _without_empty(
    texts: Sequence[str | RowError], batch: Embeddings, rows: tuple[int | None, ...], errors: dict[int, RowError]
) -> EncodedItems:
    """Remove captions without tokens; each gets an error."""
    has_tokens = batch.mask.any(dim=1).tolist() if batch.filled is None else batch.filled
    encoded = {index: row for index, row in enumerate(rows) if row is not None}
    filled = {index: row for index, row in encoded.items() if has_tokens[row]}
    if len(filled) == len(encoded):
        return batch, rows, errors
    for index in encoded.keys() - filled.keys():
        text = str(texts[index])[:40]
        errors[index] = CaptionError(f"the caption {text!r} has no words that the encoder can read")
    row_of = {index: row for row, index in enumerate(filled)}
    return take(batch, list(filled.values())) if filled else None, tuple(map(row_of.get, range(len(rows)))), errors
