"""Decoding processes of a run: they read, decode and prepare files while the encoder runs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TypeAlias

import numpy as np
from PIL.Image import Image

from msdscore import threads
from msdscore.core.arrays import to_numpy
from msdscore.encoders.base import Prepared, View
from msdscore.encoders.preprocessing import Pixels, Preprocessing, as_prepared, read_pixels
from msdscore.errors import RowError
from msdscore.io.files import File
from msdscore.io.images import (
    ImageLimits,
    ImageSource,
    file_warnings,
    open_image,
    read_source,
    source_name,
)
from msdscore_torch.feeding.processes import ARENA, MESSAGE_FILES, Decoded, DecodersLostError, borrow, give_back

Prepare: TypeAlias = Callable[[Image], Prepared]
Read: TypeAlias = Callable[[File], tuple[Pixels, View]]
Otherwise: TypeAlias = Callable[[Sequence[ImageSource]], list[Prepared | RowError]]
_ANY_SIZE = 1 << 20  # bytes of an image that is not resized; a larger one is sent through a pipe
_FILE_SIZE = 1 << 18  # and of one that is not decoded
# Batches that a GPU or the host is working on, and minimum and maximum of the decoded batches that wait for them, which
# depend on the memory for decoded images.
GPU_BATCHES = 3
GPU_AHEAD = (3, 6)
MOST_PROCESSES = 32  # that decode for one GPU, unless more are requested


def batches_ahead(images: int, steps: Preprocessing | None) -> int:
    """Return how many batches may be decoded or scored at once for a GPU, if all runs together have `images` in one."""
    waiting = ARENA // (images * _room_per_image(steps)) - 2 * GPU_BATCHES
    return GPU_BATCHES + min(max(waiting, GPU_AHEAD[0]), GPU_AHEAD[1])


def start(
    count: int | None, prepare: Prepare, steps: Preprocessing | None, limits: ImageLimits, otherwise: Otherwise
) -> "DecodingProcesses":
    """Start decoding processes, or reuse those of the last run; without `steps` they import what `prepare` needs."""
    decode = partial(_prepare, prepare=prepare) if steps is None else partial(read_pixels, steps=steps)
    read = partial(_read, decode=partial(decode, limits=limits), limits=limits)
    return DecodingProcesses(count, read, room=_room_per_image(steps), otherwise=otherwise)


def _room_per_image(steps: Preprocessing | None) -> int:
    """Bytes of shared memory that a prepared image takes."""
    if steps is not None and steps.jpeg_on_device:
        return _FILE_SIZE
    if steps is None or steps.on_device:
        return _ANY_SIZE
    canvas = steps.crop or steps.resize
    return 3 * canvas[0] * canvas[1] if isinstance(canvas, tuple) else _ANY_SIZE


class DecodingProcesses:
    """Processes that read, decode and prepare files for one run; a context manager.

    They outlive it, for the next run. The default `count` is one per core, `room` the bytes of a prepared image.
    `otherwise` decodes sources that other processes cannot: images in memory, and all of them if no process can be
    started.
    """

    def __init__(self, count: int | None, read: Read, *, room: int, otherwise: Otherwise) -> None:
        count = count or min(threads.available(), MOST_PROCESSES)
        self._read, self._otherwise = read, otherwise
        self._decoders = borrow(count, MESSAGE_FILES * room)
        self._pending: set[Future[list[Decoded]]] = set()
        self._lock = Lock()

    def __enter__(self) -> "DecodingProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for future in self._pending:
                future.cancel()  # a batch that a process has started is finished, and dropped
        give_back(self._decoders)

    def decode(self, sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
        """Return images ready for the encoder or errors, in order; may be called by several threads."""
        files = [source for source in sources if isinstance(source, File)]
        if len(files) < len(sources):
            return self._otherwise(sources)
        try:
            futures = self._decoders.submit(self._read, files)
            with self._lock:
                self._pending = {future for future in self._pending if not future.done()} | set(futures)
            images = (image for part in futures for image in part.result())
            return [image if isinstance(image, RowError) else as_prepared(*image) for image in images]
        except DecodersLostError:
            return self._otherwise(sources)


def _read(source: File, *, decode: Callable[..., tuple[Pixels, View]], limits: ImageLimits) -> tuple[Pixels, View]:
    content = read_source(source, limits=limits)
    pixels, view = decode(content, name=source_name(source))
    return pixels, view._replace(warnings=file_warnings(content))


def _prepare(content: bytes, *, prepare: Prepare, limits: ImageLimits, name: str) -> tuple[Pixels, View]:
    prepared = prepare(open_image(content, limits=limits, name=name))
    return np.ascontiguousarray(to_numpy(prepared.pixels).transpose(1, 2, 0)), prepared.view
