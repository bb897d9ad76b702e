"""Many pairs in little memory: some pictures at a time, the next ones decoded while these are scored."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from msdscore.encoders.base import Prepared
from msdscore.encoders.vision.preprocessing import preprocessing_of
from msdscore.errors import RowError
from msdscore.io.decoders import ARENA
from msdscore.io.images import ImageSource
from msdscore.scoring.decoding import room_per_picture
from msdscore.scoring.embedded import Decoded
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Pipeline

DECODERS = (8, 32)  # threads that read pictures: the cores of this process, at least and at most so many
# Requests that are scored side by side on a GPU, and requests that wait for their turn with their pictures decoded: at
# least and at most so many, as the memory for decoded pictures allows.
GPU_REQUESTS = 3
GPU_AHEAD = (3, 6)


@dataclass(frozen=True, slots=True)
class Request:
    """Captions to score together; `owner[i]` is the number of the picture of caption i."""

    images: Sequence[ImageSource]
    captions: Sequence[str]
    owner: Sequence[int]


def score_requests(
    pipeline: Pipeline, requests: Iterable[Request], *, worst: int = 0
) -> Iterator[list[Numbers | RowError]]:
    """Numbers or a reason for every caption of each request, in order.

    Every distinct picture and caption is embedded once, in whichever requests it appears; on a GPU only captions,
    because recognising a picture costs as much as encoding it. With `worst`, the numbers name up to that many of the
    least supported words.
    """
    # A GPU works on one request while the host finishes another; on a CPU both would share the same cores.
    on_gpu = pipeline.encoder.device.type == "cuda"
    ahead = GPU_REQUESTS + waiting_requests(pipeline) if on_gpu else 1
    remembering = pipeline.remembering_texts() if on_gpu else pipeline.remembering()
    with (
        ThreadPoolExecutor(min(max(torch.get_num_threads(), DECODERS[0]), DECODERS[1])) as pool,
        ThreadPoolExecutor(ahead) as reader,
        ThreadPoolExecutor(GPU_REQUESTS) as scorers,
        pipeline.decoding_processes(pool, ahead=pipeline.streams * (ahead + GPU_REQUESTS) * pipeline.batch_size)
        or nullcontext() as processes,
    ):
        waiting: deque[Callable[[], list[Numbers | RowError]]] = deque()

        def score(request: Request, decoded: Future[list[Decoded | RowError]]) -> list[Numbers | RowError]:
            return remembering.score(decoded.result(), request.captions, request.owner, worst=worst)

        def decode(sources: Sequence[ImageSource]) -> list[Decoded | RowError]:
            if processes is None:
                return pipeline.decode(sources, pool=pool)
            ready = pipeline.decode_on_device(sources, processes.decode(sources))
            return [Decoded(one) if isinstance(one, Prepared) else one for one in ready]

        try:
            for request in requests:
                decoded = reader.submit(decode, request.images)
                work = partial(score, request, decoded)
                waiting.append(scorers.submit(work).result if on_gpu else work)
                if len(waiting) > ahead:
                    yield waiting.popleft()()
            while waiting:
                yield waiting.popleft()()
        finally:
            # A caller that stops iterating does not wait for pictures that are still to be read.
            for some in (scorers, reader, pool):
                some.shutdown(wait=False, cancel_futures=True)


def waiting_requests(pipeline: Pipeline) -> int:
    """How many requests may wait beside a GPU with their pictures decoded."""
    each = pipeline.streams * pipeline.batch_size * room_per_picture(preprocessing_of(pipeline.encoder))
    return min(max(ARENA // each - 2 * GPU_REQUESTS, GPU_AHEAD[0]), GPU_AHEAD[1])


def by_picture(owner: Sequence[int], *, size: int) -> Iterator[list[int]]:
    """Numbers of the captions, those of one picture together, those of `size` pictures at a time.

    >>> list(by_picture([0, 1, 0, 2], size=2))
    [[0, 2, 1], [3]]
    """
    captions: dict[int, list[int]] = {}
    for caption, picture in enumerate(owner):
        captions.setdefault(picture, []).append(caption)
    sets = list(captions.values())
    for start in range(0, len(sets), size):
        yield [caption for one in sets[start : start + size] for caption in one]


def request(
    images: Sequence[ImageSource], captions: Sequence[str], owner: Sequence[int], chosen: Sequence[int]
) -> Request:
    """The request for some of the captions, with their pictures alone."""
    pictures = list(dict.fromkeys(owner[caption] for caption in chosen))
    place = {picture: number for number, picture in enumerate(pictures)}
    return Request(
        [images[picture] for picture in pictures],
        [captions[caption] for caption in chosen],
        [place[owner[caption]] for caption in chosen],
    )
