"""The first part of a pipeline: image sources in, images ready for the encoder out."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import __version__ as pillow_version
from PIL.Image import Image

from msdscore.encoders.base import Encoder, Prepared
from msdscore.encoders.cached import CachedEncoder
from msdscore.encoders.vision.canvas import read_pixels
from msdscore.encoders.vision.device import decode_jpegs
from msdscore.encoders.vision.preprocessing import Preprocessing, as_prepared, preprocessing_of
from msdscore.errors import RowError
from msdscore.io.hashing import pixel_key
from msdscore.io.images import ImageLimits, ImageSource, open_image, read_source, source_name
from msdscore.io.tar import File, TarImage

if TYPE_CHECKING:  # imported when decoding processes are used
    from msdscore.scoring.decoding import DecodingProcesses


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image ready for the encoder.

    `key` is computed from the pixels if it seeds the starts of mixtures, else 0. `image` is the decoded image if it was
    requested.
    """

    prepared: Prepared
    key: int = 0
    image: Image | None = None


def open_prepared(
    source: ImageSource,
    prepare: Callable[[Image], Prepared],
    *,
    steps: Preprocessing | None,
    limits: ImageLimits,
    name: str | None = None,
) -> Prepared:
    """Decode and prepare an image; a file is read by `read_pixels` if the `steps` require it."""
    if steps is None or not (steps.reduced or steps.jpeg_on_device) or not isinstance(source, File):
        return prepare(open_image(source, limits=limits, name=name))
    return as_prepared(*read_pixels(source, steps=steps, limits=limits, name=name))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads and decodes images for an encoder.

    With `keyed`, each image has a key computed from its pixels, which seeds the starts of its mixture. `processes` is
    the number of decoding processes of long runs; None: one per core next to a GPU, none on a CPU.
    """

    encoder: Encoder
    limits: ImageLimits
    keyed: bool = False
    processes: int | None = None

    def decode(
        self, sources: Iterable[ImageSource], *, pool: Executor | None = None, keep: bool = False
    ) -> list[Decoded | RowError]:
        """Return images ready for the encoder, in order, with errors in place of images that cannot be read.

        A `pool` of threads reads them in parallel. With `keep` the decoded images are included in full size.
        """
        items = list(sources)

        def read(source: ImageSource) -> Decoded | RowError:
            try:
                return self._read(source, keep=keep)
            except RowError as error:
                return error

        decoded = list(map(read, items) if pool is None else pool.map(read, items))
        if not self._by_content(keep=keep):
            self._finish_on_device(items, decoded)
        return decoded

    def decode_on_device(
        self, sources: Sequence[ImageSource], images: Sequence[Prepared | RowError]
    ) -> list[Prepared | RowError]:
        """Decode the images that are still files, on the device or, if it cannot, with Pillow; return all images."""
        ready, steps = list(images), preprocessing_of(self.encoder)
        if steps is None or not steps.jpeg_on_device:
            return ready
        files = {n: image for n, image in enumerate(images) if isinstance(image, Prepared) and image.pixels.dim() == 1}
        for number, canvas in zip(files, decode_jpegs(list(files.values()), steps, self.encoder.device), strict=True):
            try:
                ready[number] = canvas or self._prepare(sources[number], steps=replace(steps, jpeg_on_device=False))
            except RowError as error:
                ready[number] = error
        return ready

    def start_processes(self, threads: Executor, *, ahead: int) -> "DecodingProcesses | None":
        """Start decoding processes for a long run, at most `ahead` images ahead of their use; None if not possible."""
        prepare, steps = getattr(self.encoder, "sendable_prepare", None), preprocessing_of(self.encoder)
        # Without steps a process needs torch, and takes seconds to start: only if processes are requested.
        wanted = self.encoder.device.type == "cuda" and steps is not None if self.processes is None else self.processes
        # Only Posix systems can pass open files to other processes.
        if not wanted or prepare is None or self.keyed or os.name != "posix":
            return None
        from msdscore.scoring.decoding import DecodingProcesses, reader, room_per_image

        def otherwise(sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
            decoded = self.decode(sources, pool=threads)
            return [image.prepared if isinstance(image, Decoded) else image for image in decoded]

        return DecodingProcesses(
            self.processes,
            reader(prepare, steps=steps, limits=self.limits),
            room=room_per_image(steps),
            ahead=ahead,
            otherwise=otherwise,
        )

    def _by_content(self, *, keep: bool) -> bool:
        """Return whether a cache on disk looks files up by their bytes; keys and full-size images need the pixels."""
        return isinstance(self.encoder, CachedEncoder) and self.encoder.is_lasting and not (keep or self.keyed)

    def _read(self, source: ImageSource, *, keep: bool) -> Decoded:
        if self._by_content(keep=keep) and isinstance(source, str | Path | bytes | TarImage):
            return Decoded(self._prepare_file(source))
        # A full hash of the pixels costs as much as decoding: only drawn starts need it.
        if not (keep or self.keyed):
            return Decoded(self._prepare(source))
        image = open_image(source, limits=self.limits)
        # A reduced image is decoded again, so that its numbers do not depend on `keep`.
        prepared = self._prepare(source if isinstance(source, File) else image)
        return Decoded(prepared, pixel_key(image) if self.keyed else 0, image if keep else None)

    def _finish_on_device(self, sources: Sequence[ImageSource], decoded: list[Decoded | RowError]) -> None:
        images = [item.prepared if isinstance(item, Decoded) else item for item in decoded]
        for number, image in enumerate(self.decode_on_device(sources, images)):
            item = decoded[number]
            if isinstance(item, Decoded):
                decoded[number] = image if isinstance(image, RowError) else replace(item, prepared=image)

    def _prepare_file(self, source: str | Path | bytes | TarImage) -> Prepared:
        assert isinstance(self.encoder, CachedEncoder), "files are looked up by content in a cache"
        content = read_source(source, limits=self.limits)

        def make() -> Prepared:
            prepared = self._prepare(content, name=source_name(source))
            (ready,) = self.decode_on_device([source], [prepared])
            if isinstance(ready, RowError):
                raise ready
            return ready

        # Everything that can change the pixels of a file, or reject it.
        return self.encoder.prepare_file(content, f"Pillow {pillow_version} {self.limits}", make)

    def _prepare(self, source: ImageSource, *, steps: Preprocessing | None = None, name: str | None = None) -> Prepared:
        steps = steps or preprocessing_of(self.encoder)
        return open_prepared(source, self.encoder.prepare, steps=steps, limits=self.limits, name=name)
