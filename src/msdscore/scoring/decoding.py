"""Decoding processes of a run: files are read, decoded and made ready for the encoder beside it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TypeAlias

from msdscore.encoders.base import Prepared, View
from msdscore.encoders.vision.canvas import Pixels, read_pixels
from msdscore.encoders.vision.preprocessing import Preprocessing, as_prepared
from msdscore.errors import RowError
from msdscore.io.decoders import TOGETHER, DecodersLostError, Seen, borrow, cores, give_back
from msdscore.io.images import ImageLimits, ImageSource, open_image
from msdscore.io.tar import File
from msdscore.scoring.embedded import Prepare

Read: TypeAlias = Callable[[File], tuple[Pixels, View]]
Otherwise: TypeAlias = Callable[[Sequence[ImageSource]], list[Prepared | RowError]]
_ANY_SIZE = 1 << 20  # bytes of an image that is kept in its own size; those of a larger one come through a pipe
_FILE_SIZE = 1 << 18  # and of one that is not decoded
MOST_PROCESSES = 32  # that decode for one GPU, unless more are asked for


def reader(prepare: Prepare, *, steps: Preprocessing | None, limits: ImageLimits) -> Read:
    """`open_prepared` for another process; one that needs no torch there, where the encoder only takes `steps`."""
    if steps is not None:
        return partial(read_pixels, steps=steps, limits=limits)
    return partial(_read_prepared, prepare=prepare, limits=limits)


def room_per_image(steps: Preprocessing | None) -> int:
    """Bytes of shared memory that a prepared image takes."""
    if steps is not None and steps.jpeg_on_device:
        return _FILE_SIZE
    if steps is None or steps.on_device:
        return _ANY_SIZE
    canvas = steps.crop or steps.resize
    return 3 * canvas[0] * canvas[1] if isinstance(canvas, tuple) else _ANY_SIZE


class DecodingProcesses:
    """Processes that read, decode and prepare files for one run; a context manager.

    They outlive it, for the next run. Unless their `count` is given there is one per core. `ahead` images at most are
    decoded and not yet used. `otherwise` decodes what other processes cannot: images in memory, and everything where no
    process can be started.
    """

    def __init__(self, count: int | None, read: Read, *, room: int, ahead: int, otherwise: Otherwise) -> None:
        count = count or min(cores(), MOST_PROCESSES)
        self._read, self._otherwise = read, otherwise
        self._decoders = borrow(count, TOGETHER * room, 2 * count + -(-ahead // TOGETHER))
        self._asked: set[Future[list[Seen]]] = set()
        self._lock = Lock()

    def __enter__(self) -> "DecodingProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for future in self._asked:
                future.cancel()  # what a process has already is finished, and dropped
        give_back(self._decoders)

    def decode(self, sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
        """Prepared images or reasons, in order; may be called by several threads."""
        files = [source for source in sources if isinstance(source, File)]
        if len(files) < len(sources):
            return self._otherwise(sources)
        try:
            asked = self._decoders.submit(self._read, files)
            with self._lock:
                self._asked = {future for future in self._asked if not future.done()} | set(asked)
            images = (image for part in asked for image in part.result())
            return [image if isinstance(image, RowError) else as_prepared(*image) for image in images]
        except DecodersLostError:
            return self._otherwise(sources)


def _read_prepared(source: File, *, prepare: Prepare, limits: ImageLimits) -> tuple[Pixels, View]:
    prepared = prepare(open_image(source, limits=limits))
    return prepared.pixels.permute(1, 2, 0).contiguous().numpy(), prepared.view
