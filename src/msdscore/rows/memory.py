"""Rows of images and captions in memory: pairs, candidate sets, and streams of mappings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msdscore.errors import ConfigError
from msdscore.io.files import File
from msdscore.io.images import ImageSource
from msdscore.rows.rules import Row, RowMaker

ImageAndCaption: TypeAlias = tuple[ImageSource, str | Sequence[str]] | Mapping[str, Any]


def pair_rows(
    images: Sequence[Any],
    captions: Sequence[Any],
    owner: Sequence[int],
    *,
    sets: Sequence[object],
    references: Sequence[Any] = (),
    error: str | None = None,
) -> list[Row]:
    """Return one row per caption; `owner` has the index of its image (-1: none) and of its `references`.

    Captions with equal values in `sets` are one candidate set. An `error` is that of all rows.
    """
    maker, rows = RowMaker(), list[Row]()
    for caption, image, candidates in zip(captions, owner, sets, strict=True):
        values = {"image": images[image] if image >= 0 else None, "caption": caption}
        if references:
            values["references"] = references[image]
        # A caption that is a list would become several rows: here it is one caption that is not text.
        rows += maker.rows(values, set=f"pair {candidates}", error=error, split=False)
    return rows


def stream_rows(items: Iterable[ImageAndCaption]) -> Iterator[Row]:
    """Yield the rows of pairs (image, caption) and of mappings, in which a caption may be a list of captions.

    Rows of one image that follow each other are a candidate set.
    """
    maker, number = RowMaker(), 0
    previous: ImageSource | None = None
    for item in items:
        if isinstance(item, Mapping):
            values = item
        elif isinstance(item, tuple | list) and len(item) == 2:
            values = {"image": item[0], "caption": item[1]}
        else:
            raise ConfigError(f"expected a row (image, caption) or a mapping with both, got {type(item).__name__}")
        for row in maker.rows(values):
            # Objects are compared while both exist: a later one may have the address of an earlier one.
            is_same = row.image is previous or (isinstance(row.image, File) and row.image == previous)
            number, previous = number if is_same and row.image is not None else number + 1, row.image
            yield row if row.set is not None else row._replace(set=f"image {number}")
