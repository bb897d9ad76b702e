"""Many pairs in little memory: some pictures at a time, the next ones decoded while these are scored."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from msdscore.errors import RowError
from msdscore.io.images import ImageSource
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.pipeline import Decoded, Pipeline

DECODERS = 8  # threads that read pictures


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

    Every distinct caption is embedded once, in whichever requests it appears. With `worst`, the numbers name so many
    of the least supported words.
    """
    remembering = pipeline.remembering()
    with ThreadPoolExecutor(DECODERS) as pool, ThreadPoolExecutor(1) as reader:
        waiting: deque[tuple[Request, Future[list[Decoded | RowError]]]] = deque()

        def score() -> list[Numbers | RowError]:
            request, decoded = waiting.popleft()
            return remembering.score(decoded.result(), request.captions, request.owner, worst=worst)

        for request in requests:
            waiting.append((request, reader.submit(pipeline.decode, request.images, pool=pool)))
            if len(waiting) > 1:
                yield score()
        while waiting:
            yield score()


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
