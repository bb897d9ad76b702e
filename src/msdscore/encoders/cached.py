"""An encoder that remembers: each distinct image and text goes through the wrapped one once, in a run or for good.

Items are known by their content: an image by the bytes of its file, or by the pixels that the network reads and its
size; a text by its letters.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TypeVar

import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import normalize

from msdscore.core.embeddings import join, split
from msdscore.encoders.base import Embeddings, Encoder, Prepared, View
from msdscore.encoders.vector_files import VectorFiles
from msdscore.encoders.vision.preprocessing import preprocessing_of
from msdscore.errors import ConfigError

Item = TypeVar("Item")
_MEMORY = 512 << 20
OBJECTS = 3072  # bytes of an item beside its numbers: tensors, layout and key, measured on short captions
_IMAGE, _TEXT = "i", "t"  # first letter of a key
_HALF = ",kept:float16"  # in the signature, since rounding changes vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Where vectors are kept on disk, and how: `limit` bytes in all (None: any number), in half precision if `half`."""

    folder: str
    limit: int | None = 64 << 30
    half: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"the limit of a cache must be at least 1 byte, got {self.limit}")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How many images and texts were asked for, and how many of them the encoder had to make.

    >>> print(CacheUse(8, 2, 4, 0) + CacheUse(2, 0, 0, 0))
    8 of 10 images (80.0 %) and 4 of 4 texts (100.0 %) were there
    """

    pictures: int = 0
    pictures_made: int = 0
    texts: int = 0
    texts_made: int = 0

    def __add__(self, other: "CacheUse") -> "CacheUse":
        return CacheUse(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def since(self, before: "CacheUse | None") -> "CacheUse":
        """What came after an earlier state."""
        earlier = before or CacheUse()
        return CacheUse(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))

    def __str__(self) -> str:
        images = _share(self.pictures - self.pictures_made, self.pictures, "images")
        return f"{images} and {_share(self.texts - self.texts_made, self.texts, 'texts')} were there"


class FileImage(Prepared):
    """An image that is known by the bytes of its file, and made ready only where its vectors are not kept."""

    __slots__ = ("_make", "key")
    key: str
    _make: Callable[[], Prepared]

    def __init__(self, key: str, make: Callable[[], Prepared]) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_make", make)

    @property
    def pixels(self) -> Tensor:
        """The pixels, made when asked for."""
        return self._make().pixels

    @property
    def view(self) -> View:
        """Where they lay on the original."""
        return self._make().view

    def made(self) -> Prepared:
        """The image made ready."""
        return self._make()


class CachedEncoder:
    """The same vectors as the encoder it wraps; what was seen before is not computed again.

    `memory` is how many bytes of vectors are kept, half of them of texts; what was used longest ago is dropped first.
    `disk` keeps them in a folder too, for other processes and later runs. Vectors that are kept in half precision are
    rounded from the first time on, so that every run has the same ones, and the signature says so.
    """

    def __init__(self, encoder: Encoder, *, memory: int = _MEMORY, disk: CacheSettings | None = None) -> None:
        self._encoder = encoder
        self.name, self.device = encoder.name, encoder.device
        self.precision: torch.dtype = getattr(encoder, "precision", torch.float32)
        self.bank, self.recommended = encoder.bank, encoder.recommended
        self.preprocessing = preprocessing_of(encoder)
        # Images and texts apart: a stream of images, which are large and met once, must not push out the texts.
        self._memories = {kind: _Memory(memory // 2) for kind in (_IMAGE, _TEXT)}
        self._half = disk is not None and disk.half
        self.signature = encoder.signature + (_HALF if self._half else "")
        self.is_lasting = disk is not None  # whether vectors are kept on disk
        self._disk = None if disk is None else VectorFiles(Path(disk.folder), self.signature, limit=disk.limit)
        # What was asked for so far, and how much of it was there.
        self.use, self._counting = CacheUse(), Lock()

    def prepare(self, image: Image) -> Prepared:
        """The image as the wrapped encoder takes it."""
        return self._encoder.prepare(image)

    def prepare_file(self, content: bytes, how: str, make: Callable[[], Prepared]) -> Prepared:
        """The image of a file, decoded by `make` in the way that `how` spells; not even that where it is known."""
        digest = blake2b(f"{len(how)} {how}".encode(), digest_size=20)
        digest.update(content)
        key = f"{_IMAGE}{digest.hexdigest()}"
        if self._memories[_IMAGE].has(key) or (self._disk is not None and self._disk.has(key)):
            return FileImage(key, make)
        prepared = make()
        return FileImage(key, lambda: prepared)

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors."""

        def encode(missing: Sequence[Prepared]) -> Embeddings:
            return self._encoder.encode_images(
                [image.made() if isinstance(image, FileImage) else image for image in missing]
            )

        found, made = self._recall(images, [prepared_key(image) for image in images], encode)
        self._count(CacheUse(pictures=len(images), pictures_made=made))
        return found

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors."""
        found, made = self._recall(texts, [_text_key(text) for text in texts], self._encoder.encode_texts)
        self._count(CacheUse(texts=len(texts), texts_made=made))
        return found

    def _recall(
        self, items: Sequence[Item], keys: Sequence[str], encode: Callable[[Sequence[Item]], Embeddings]
    ) -> tuple[Embeddings, int]:
        """The vectors of all items, and how many had to be made."""
        if not items:
            return encode(items), 0
        known = {key: found for key in dict.fromkeys(keys) if (found := self._find(key)) is not None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        if missing:
            made = split(encode(list(missing.values())))
            fresh = dict(zip(missing, map(_halved, made) if self._half else made, strict=True))
            for key, found in fresh.items():
                self._keep(key, found)
            known |= fresh
        joined = join([known[key] for key in keys])
        return _restored(joined) if self._half else joined, len(missing)

    def _count(self, use: CacheUse) -> None:
        with self._counting:
            self.use += use

    def _find(self, key: str) -> Embeddings | None:
        found = self._memories[key[0]].find(key)
        if found is None and self._disk is not None:
            found = self._disk.find(key, self.device)
            if found is not None:
                self._memories[key[0]].keep(key, found)
        return found

    def _keep(self, key: str, found: Embeddings) -> None:
        self._memories[key[0]].keep(key, found)
        if self._disk is not None:
            self._disk.keep(key, found)


def unrounded(signature: str) -> str:
    """The signature of the encoder itself, whatever the precision in which its vectors are kept.

    >>> unrounded("toy@1,kept:float16"), unrounded("toy@1")
    ('toy@1', 'toy@1')
    """
    return signature.removesuffix(_HALF)


def prepared_key(image: Prepared) -> str:
    """A hash of all that the vectors and boxes of a prepared image depend on."""
    if isinstance(image, FileImage):
        return image.key
    digest = blake2b(repr((image.view, tuple(image.pixels.shape))).encode(), digest_size=20)
    # One layout for equal pixels: Pillow's bytes lie row by row with the colours innermost.
    digest.update(image.pixels.permute(1, 2, 0).contiguous().cpu().numpy().tobytes())
    return f"{_IMAGE}{digest.hexdigest()}"


def _text_key(text: str) -> str:
    return f"{_TEXT}{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=20).hexdigest()}"


class _Memory:
    """The vectors that were used last, up to a number of bytes; several threads may ask at once."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._known: OrderedDict[str, Embeddings] = OrderedDict()

    def has(self, key: str) -> bool:
        return key in self._known

    def find(self, key: str) -> Embeddings | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def keep(self, key: str, found: Embeddings) -> None:
        with self._lock:
            if key in self._known:
                return
            self._known[key] = found
            self._bytes += _size(found)
            while self._bytes > self._limit:
                self._bytes -= _size(self._known.popitem(last=False)[1])


def _size(one: Embeddings) -> int:
    return one.nbytes + OBJECTS


def _halved(one: Embeddings) -> Embeddings:
    """Vectors of 32 bits in 16; those of 16 bits are left as they are."""
    if one.points.dtype != torch.float32:
        return one
    return replace(one, points=one.points.half(), pooled=one.pooled.half())


def _restored(batch: Embeddings) -> Embeddings:
    """Rounded vectors as unit vectors of 32 bits."""
    if batch.points.dtype != torch.float16:
        return batch
    return replace(
        batch, points=normalize(batch.points.float(), dim=-1), pooled=normalize(batch.pooled.float(), dim=-1)
    )


def _share(part: int, whole: int, what: str) -> str:
    return f"{part:,} of {whole:,} {what} ({100 * part / whole:.1f} %)" if whole else f"0 of 0 {what}"
