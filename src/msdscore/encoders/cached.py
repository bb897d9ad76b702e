"""An encoder that remembers: each distinct picture and text goes through the wrapped one once, in a run or for good.

Items are known by their content: a picture by the bytes that the network reads and its size, a text by its letters. On
disk every item is a file of its own under the encoder's signature, put in place in one step with a checksum in front: a
crash, two processes at once or a full or damaged disk can lose an item, which is then made again, but never give wrong
vectors.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import torch
from PIL.Image import Image
from safetensors.torch import load, save

from msdscore.core.calibration import Bank
from msdscore.encoders.base import Embeddings, Encoder, PatchLayout, Prepared, TokenLayout
from msdscore.encoders.batches import join, split
from msdscore.errors import RunError

Item = TypeVar("Item")
_CHECK = 16  # bytes of the checksum before the content of a file
_MEMORY = 512 << 20
_PICTURE, _TEXT = "i", "t"  # first letter of a key
_SPELLED = "layout"  # name of the tensor that holds a layout as JSON bytes


class CachedEncoder:
    """The same vectors as the encoder it wraps; what was seen before is not computed again.

    `memory` is how many bytes of vectors are kept, half of them of texts; what was used longest ago is dropped first.
    `folder` keeps all on disk too, for other processes and later runs.
    """

    def __init__(self, encoder: Encoder, *, memory: int = _MEMORY, folder: Path | None = None) -> None:
        self._encoder = encoder
        # Pictures and texts apart: a stream of pictures, which are large and met once, must not push out the texts.
        self._memories = {kind: _Memory(memory // 2) for kind in (_PICTURE, _TEXT)}
        self._disk = None if folder is None else _Disk(folder, encoder.signature)

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
        return self._recall(images, [picture_key(image) for image in images], self._encoder.encode_images)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors."""
        return self._recall(texts, [_text_key(text) for text in texts], self._encoder.encode_texts)

    def _recall(
        self, items: Sequence[Item], keys: Sequence[str], encode: Callable[[Sequence[Item]], Embeddings]
    ) -> Embeddings:
        if not items:
            return encode(items)
        known = {key: found for key in dict.fromkeys(keys) if (found := self._find(key)) is not None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, split(encode(list(missing.values()))), strict=True))
            for key, found in fresh.items():
                self._keep(key, found)
            known |= fresh
        return join([known[key] for key in keys])

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


def picture_key(image: Prepared) -> str:
    """A hash of all that the vectors and boxes of a prepared picture depend on."""
    digest = blake2b(repr((image.view, tuple(image.pixels.shape))).encode(), digest_size=20)
    # One layout for equal pixels: Pillow's bytes lie row by row with the colours innermost.
    digest.update(image.pixels.permute(1, 2, 0).contiguous().numpy().tobytes())
    return f"{_PICTURE}{digest.hexdigest()}"


def _text_key(text: str) -> str:
    return f"{_TEXT}{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=20).hexdigest()}"


class _Memory:
    """The vectors that were used last, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._known: OrderedDict[str, Embeddings] = OrderedDict()

    def find(self, key: str) -> Embeddings | None:
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: str, found: Embeddings) -> None:
        if key in self._known:
            return
        self._known[key] = found
        self._bytes += _size(found)
        while self._bytes > self._limit:
            self._bytes -= _size(self._known.popitem(last=False)[1])


class _Disk:
    """One file per item in a folder of the encoder's signature."""

    def __init__(self, folder: Path, signature: str) -> None:
        self._folder = folder / blake2b(signature.encode(), digest_size=10).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not (self._folder / "signature.txt").is_file():
                _replace(self._folder / "signature.txt", f"{signature}\n".encode())
        except OSError as error:
            raise RunError(
                f"{folder}: vectors cannot be kept here ({error.strerror or error}); choose another"
            ) from error

    def find(self, key: str, device: torch.device) -> Embeddings | None:
        with suppress(OSError):
            content = self._path(key).read_bytes()
            if blake2b(content[_CHECK:], digest_size=_CHECK).digest() == content[:_CHECK]:
                return _read(content[_CHECK:], device)
        return None

    def keep(self, key: str, found: Embeddings) -> None:
        content = _written(found)
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            _replace(path, blake2b(content, digest_size=_CHECK).digest() + content)

    def _path(self, key: str) -> Path:
        return self._folder / key[:3] / key[3:]


def _replace(path: Path, content: bytes) -> None:
    """Put a file in place in one step; the checksum stands in for waiting until it is on the disk."""
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105, the same call by its clearer name
    finally:
        temporary.unlink(missing_ok=True)


def _written(found: Embeddings) -> bytes:
    (layout,) = found.layout
    tensors = {"points": found.points[0], "mask": found.mask[0], "pooled": found.pooled[0]}
    if isinstance(layout, PatchLayout):
        tensors["boxes"] = layout.boxes
        facts: dict[str, Any] = {"size": layout.size, "grid": layout.grid, "warnings": layout.warnings}
    else:
        facts = asdict(layout)
    tensors[_SPELLED] = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _read(content: bytes, device: torch.device) -> Embeddings:
    tensors = load(content)
    facts = json.loads(bytes(tensors[_SPELLED].tolist()))
    warnings = tuple(facts["warnings"])
    layout: PatchLayout | TokenLayout
    if "boxes" in tensors:
        layout = PatchLayout(tuple(facts["size"]), tuple(facts["grid"]), tensors["boxes"], warnings)
    else:
        layout = TokenLayout(tuple(map(tuple, facts["spans"])), facts["windows"], facts["cut"], warnings)
    points, mask, pooled = (tensors[name].to(device).unsqueeze(0) for name in ("points", "mask", "pooled"))
    return Embeddings(points, mask, pooled, (layout,))


def _size(one: Embeddings) -> int:
    return one.points.nbytes + one.mask.nbytes + one.pooled.nbytes
