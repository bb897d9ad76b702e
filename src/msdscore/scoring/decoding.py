"""Pictures decoded by other processes, so that the one which feeds a GPU has its interpreter for itself.

Threads share one interpreter. Sixteen of them decode less than half of what sixteen processes do, and hold up the
thread that starts the work of the GPU (docs/performance.md).
"""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL.Image import Image

from msdscore.encoders.base import Encoder, Prepared, View
from msdscore.encoders.vision.preprocessing import Preprocessing, prepare_picture, view
from msdscore.errors import RowError
from msdscore.io.images import ImageLimits, ImageSource, open_image, open_reduced
from msdscore.io.tar import TarImage

File: TypeAlias = str | Path | bytes | TarImage  # what another process can read
Prepare: TypeAlias = Callable[[Image], Prepared]
Read: TypeAlias = Callable[[File], Prepared]
Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Sent: TypeAlias = tuple[Pixels, View] | RowError  # what comes back of one picture: (height, width, 3), and its place
TOGETHER = 8  # pictures per message

_reader: Read | None = None


def sendable_prepare(encoder: Encoder) -> Prepare | None:
    """How an encoder makes pictures ready, as something that another process can have; None where it offers none."""
    return getattr(encoder, "sendable_prepare", None)


def open_prepared(
    source: ImageSource, prepare: Prepare, *, steps: Preprocessing | None, limits: ImageLimits, name: str | None = None
) -> Prepared:
    """A picture decoded and made ready; a file at reduced size, where the `steps` of the encoder allow that."""
    if steps is None or not steps.reduced or not isinstance(source, File):
        return prepare(open_image(source, limits=limits, name=name))

    def needed(size: tuple[int, int]) -> tuple[int, int]:
        width, height = view(steps, size).resized
        return steps.reduced * width, steps.reduced * height

    picture, size = open_reduced(source, needed, limits=limits, name=name)
    return prepare_picture(picture, steps, size=size)


class DecodingProcesses:
    """Processes that read, decode and prepare files; a context manager.

    `otherwise` decodes what other processes cannot: pictures in memory, and everything once a process has died.
    """

    def __init__(
        self,
        count: int,
        read: Read,
        *,
        otherwise: Callable[[Sequence[ImageSource]], list[Prepared | RowError]],
    ) -> None:
        context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
        if hasattr(context, "set_forkserver_preload"):
            context.set_forkserver_preload([__name__])  # torch is loaded once for all of them
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(read,))
        self._otherwise = otherwise

    def __enter__(self) -> "DecodingProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def decode(self, sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
        """Prepared pictures or reasons, in order; may be called by several threads."""
        files = [source for source in sources if isinstance(source, str | Path | bytes | TarImage)]
        if len(files) < len(sources):
            return self._otherwise(sources)
        parts = [files[start : start + TOGETHER] for start in range(0, len(files), TOGETHER)]
        try:
            asked = [self._pool.submit(_read_all, part) for part in parts]
            return [_received(one) for answer in asked for one in answer.result()]
        except BrokenProcessPool:
            return self._otherwise(sources)


def _begin(read: Read) -> None:
    """Make this process ready; Ctrl-C reaches every process, and the one that asked ends the others."""
    global _reader
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _reader = read


def _read_all(sources: Sequence[File]) -> list[Sent]:
    return [_read(source) for source in sources]


def _read(source: File) -> Sent:
    assert _reader is not None, "a process of a pool was made ready first"
    try:
        prepared = _reader(source)
    except RowError as error:
        return error
    return prepared.pixels.permute(1, 2, 0).contiguous().numpy(), prepared.view


def _received(sent: Sent) -> Prepared | RowError:
    return sent if isinstance(sent, RowError) else Prepared(torch.from_numpy(sent[0]).permute(2, 0, 1), sent[1])
