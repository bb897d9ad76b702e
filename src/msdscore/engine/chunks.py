"""One chunk scored: pictures decoded, everything encoded and compared, bad rows set aside with their reason."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL.Image import Image

from msdscore.encoders.base import Embeddings
from msdscore.engine.plan import Chunk
from msdscore.errors import RowError
from msdscore.io.hashing import pixel_key, text_key
from msdscore.io.images import ImageLimits, open_image
from msdscore.scoring.batches import join, take
from msdscore.scoring.comparison import Encoded
from msdscore.scoring.measurement import Numbers, numbers
from msdscore.scoring.scorer import Scorer, unreadable

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Scored:
    """What became of one row: numbers, or the reason why there are none."""

    row: int
    numbers: Numbers | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A chunk whose pictures are read; a picture that could not be is its reason."""

    chunk: Chunk
    pictures: tuple[Image | RowError, ...]


def decode(chunk: Chunk, limits: ImageLimits, pool: ThreadPoolExecutor) -> Decoded:
    """Read all pictures of a chunk, side by side."""

    def read(source: Path | bytes) -> Image | RowError:
        try:
            return open_image(source, limits=limits)
        except RowError as error:
            return error

    return Decoded(chunk, tuple(pool.map(read, chunk.images)))


def score_chunk(scorer: Scorer, decoded: Decoded) -> list[Scored]:
    """Numbers or a reason for every row of the chunk, in the chunk's order."""
    chunk = decoded.chunk
    captions = [row.caption or "" for row in chunk.rows]
    images = _encode(decoded.pictures, scorer.embed_pictures)
    texts = _encode(captions, scorer.embed_captions)
    reasons = {**texts.errors, **_empty(texts, captions)}
    reasons |= {place: images.errors[owner] for place, owner in enumerate(chunk.owner) if owner in images.errors}
    good = [place for place in range(len(chunk.rows)) if place not in reasons]
    found = dict(zip(good, _compare(scorer, decoded, images, texts, good), strict=True))
    return [Scored(row.index, found.get(place), reasons.get(place)) for place, row in enumerate(chunk.rows)]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Items through an encoder: `places` are their rows in the batch, `errors` the reasons of those without one."""

    batch: Embeddings | None
    places: dict[int, int]
    errors: dict[int, str]


def _encode(items: Sequence[Item | RowError], encode: Callable[[Sequence[Item]], Embeddings]) -> _Encoded:
    """Encode what can be encoded; if the batch is refused, find out item by item which one it was."""
    whole = {number: item for number, item in enumerate(items) if not isinstance(item, RowError)}
    errors = {number: str(item) for number, item in enumerate(items) if isinstance(item, RowError)}
    batches: list[Embeddings] = []
    try:
        batches += [encode(list(whole.values()))] if whole else []
        kept = list(whole)
    except RowError:
        singles = {number: _encode_one(item, encode) for number, item in whole.items()}
        errors |= {number: str(single) for number, single in singles.items() if isinstance(single, RowError)}
        kept = [number for number in whole if number not in errors]
        batches += [single for single in singles.values() if not isinstance(single, RowError)]
    return _Encoded(join(batches) if batches else None, {number: place for place, number in enumerate(kept)}, errors)


def _encode_one(item: Item, encode: Callable[[Sequence[Item]], Embeddings]) -> Embeddings | RowError:
    try:
        return encode([item])
    except RowError as error:
        return error


def _empty(texts: _Encoded, captions: Sequence[str]) -> dict[int, str]:
    """The reasons of captions that the encoder found no token in."""
    if texts.batch is None:
        return {}
    filled = texts.batch.mask.any(dim=1).tolist()
    return {number: unreadable(captions[number]) for number, place in texts.places.items() if not filled[place]}


def _compare(
    scorer: Scorer, decoded: Decoded, images: _Encoded, texts: _Encoded, good: Sequence[int]
) -> tuple[Numbers, ...]:
    """Numbers of the good rows of a chunk."""
    if not good or images.batch is None or texts.batch is None:
        return ()
    chunk = decoded.chunk
    pictures = tuple(picture for number in images.places if isinstance(picture := decoded.pictures[number], Image))
    encoded = Encoded(
        pictures,
        images.batch,
        take(texts.batch, [texts.places[place] for place in good]),
        image_keys=tuple(map(pixel_key, pictures)),
        text_keys=tuple(text_key(chunk.rows[place].caption or "") for place in good),
    )
    measured = scorer.compare(encoded, [images.places[chunk.owner[place]] for place in good])
    return numbers(measured, scorer.config)
