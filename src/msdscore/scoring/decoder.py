"""The first part of a pipeline: image sources in, images ready for the encoder out."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Protocol

from PIL import __version__ as pillow_version
from PIL.Image import Image

from msdscore.core.arrays import is_gpu, torch_part
from msdscore.encoders.base import Capabilities, Encoder, Prepared
from msdscore.encoders.preprocessing import Preprocessing, as_prepared, read_pixels
from msdscore.errors import RowError
from msdscore.io.files import File, pixel_key
from msdscore.io.images import ImageLimits, ImageSource, file_warnings, open_image, read_source, source_name


class DecodingProcesses(Protocol):
    """Processes that read, decode and prepare the images of one run; a context manager.

    Part of `msdscore_torch`: a GPU waits for images, while a CPU would share its cores with them.
    """

    def __enter__(self) -> "DecodingProcesses": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def decode(self, sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
        """Return images ready for the encoder or errors, in order; may be called by several threads."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image ready for the encoder.

    `key` is computed from the pixels if it seeds the starts of mixtures, else 0. `image` is the decoded image, if it
    was requested.
    """

    prepared: Prepared
    key: int = 0
    image: Image | None = None


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads and decodes images for an encoder.

    With `keyed`, each image has a key computed from its pixels, which seeds the starts of its mixture. `processes` is
    the number of decoding processes of long runs; None: one per core next to a GPU, none on a CPU.
    """

    encoder: Encoder
    can: Capabilities
    limits: ImageLimits
    keyed: bool = False
    processes: int | None = None

    def decode(
        self,
        sources: Iterable[ImageSource],
        *,
        pool: Executor | None = None,
        keep: bool = False,
    ) -> list[Decoded | RowError]:
        """Return images ready for the encoder, in order, with errors in place of images that cannot be read.

        A `pool` of threads reads them in parallel. With `keep` the decoded images are included in full size.
        """
        items, read = list(sources), partial(self._read, keep=keep)
        decoded = list(map(read, items) if pool is None else pool.map(read, items))
        return self.decode_on_device(items, decoded) if self.can.cache is None else decoded

    def decode_on_device(
        self, sources: Sequence[ImageSource], decoded: Sequence[Decoded | RowError]
    ) -> list[Decoded | RowError]:
        """Decode the images that are still files, on the device or, if it cannot, with Pillow; return all images.

        Errors name them by their `sources`.
        """
        ready, steps = list(decoded), self.can.preprocessing
        if steps is None or not steps.jpeg_on_device:
            return ready
        images = {number: item for number, item in enumerate(decoded) if isinstance(item, Decoded)}
        files = {number: item for number, item in images.items() if item.prepared.pixels.ndim == 1}
        jpegs, on_cpu = [item.prepared for item in files.values()], replace(steps, jpeg_on_device=False)
        for (number, item), canvas in zip(
            files.items(), torch_part("vision.device").decode_jpegs(jpegs, steps, self.encoder.device), strict=True
        ):
            try:
                if canvas is None:
                    content = item.prepared.pixels.tobytes()
                    canvas = self._prepare(content, steps=on_cpu, name=source_name(sources[number]))
                ready[number] = replace(item, prepared=canvas)
            except RowError as error:
                ready[number] = error
        return ready

    def start_processes(self, threads: Executor) -> DecodingProcesses | None:
        """Start decoding processes for a long run, or reuse those of the last; None if not possible."""
        prepare, steps = self.can.sendable_prepare, self.can.preprocessing
        # Without steps a process needs torch, and takes seconds to start: only if processes are requested.
        wanted = is_gpu(self.encoder.device) and steps is not None if self.processes is None else self.processes
        # Only Posix systems can pass open files to other processes.
        if not wanted or prepare is None or self.can.cache or self.keyed or os.name != "posix":
            return None

        def otherwise(sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
            decoded = self.decode(sources, pool=threads)
            return [item if isinstance(item, RowError) else item.prepared for item in decoded]

        images = torch_part("feeding.images")
        started: DecodingProcesses = images.start(self.processes, prepare, steps, self.limits, otherwise)
        return started

    def _read(self, source: ImageSource, *, keep: bool) -> Decoded | RowError:
        name = source_name(source)
        try:
            if isinstance(source, File):
                source = read_source(source, limits=self.limits)
            is_file = isinstance(source, bytes)
            # A cache on disk looks files up by their bytes.
            prepare: Callable[..., Prepared] = self._prepare_file if is_file and self.can.cache else self._prepare
            # A full hash of the pixels costs as much as decoding: only drawn starts need it.
            if not (keep or self.keyed):
                return Decoded(prepare(source, name=name))
            image = open_image(source, limits=self.limits, name=name)
            # A reduced image is decoded again, so that its numbers do not depend on `keep`.
            prepared = prepare(source if is_file else image, name=name)
            return Decoded(prepared, pixel_key(image) if self.keyed else 0, image if keep else None)
        except RowError as error:
            return error

    def _prepare_file(self, content: bytes, *, name: str) -> Prepared:
        def decode() -> Prepared:
            prepared = self._prepare(content, name=name)
            (ready,) = self.decode_on_device([name], [Decoded(prepared)])
            if isinstance(ready, RowError):
                raise ready
            return ready.prepared

        # Everything that can change the pixels of a file, or reject it.
        assert self.can.cache is not None, "only a cache looks files up by their bytes"
        return self.can.cache.prepare_file(content, f"Pillow {pillow_version} {self.limits}", decode)

    def _prepare(self, source: ImageSource, *, steps: Preprocessing | None = None, name: str | None = None) -> Prepared:
        """Decode and prepare an image; a file is read by `read_pixels` if the steps require it."""
        steps = steps or self.can.preprocessing
        if steps is None or not (steps.reduced or steps.jpeg_on_device) or not isinstance(source, File):
            prepared = self.encoder.prepare(open_image(source, limits=self.limits, name=name))
        else:
            prepared = as_prepared(*read_pixels(source, steps=steps, limits=self.limits, name=name))
        warnings = file_warnings(source) if isinstance(source, bytes) else ()
        return replace(prepared, view=prepared.view._replace(warnings=warnings)) if warnings else prepared
