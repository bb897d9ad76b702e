"""An encoder that remembers, for studies that score the same pictures and captions under several settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from PIL.Image import Image

from msdscore.core.calibration import Bank
from msdscore.encoders.base import Embeddings, Encoder, Prepared
from msdscore.io.hashing import text_key
from msdscore.scoring.batches import join, take

Item = TypeVar("Item")


class Remembered:
    """The same vectors as the encoder it wraps; each picture and text goes through it once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._images: dict[int, Embeddings] = {}
        self._texts: dict[int, Embeddings] = {}

    @property
    def name(self) -> str:
        """The name of the wrapped encoder."""
        return self._encoder.name

    @property
    def signature(self) -> str:
        """Its signature: remembering changes no vector."""
        return self._encoder.signature

    @property
    def device(self) -> torch.device:
        """Where its vectors are made."""
        return self._encoder.device

    @property
    def bank(self) -> Bank | None:
        """Its bank."""
        return self._encoder.bank

    @property
    def recommended(self) -> Mapping[str, Any] | None:
        """Its settings."""
        return self._encoder.recommended

    def prepare(self, image: Image) -> Prepared:
        """The picture as the wrapped encoder takes it."""
        return self._encoder.prepare(image)

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors."""
        keys = [hash((image.view, image.pixels.contiguous().numpy().tobytes())) for image in images]
        return _recall(images, keys, self._images, self._encoder.encode_images)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors."""
        return _recall(texts, [text_key(text) for text in texts], self._texts, self._encoder.encode_texts)


def _recall(
    items: Sequence[Item],
    keys: Sequence[int],
    known: dict[int, Embeddings],
    encode: Callable[[Sequence[Item]], Embeddings],
) -> Embeddings:
    missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
    if missing:
        batch = encode(list(missing.values()))
        known |= {key: take(batch, [row]) for row, key in enumerate(missing)}
    return join([known[key] for key in keys])
