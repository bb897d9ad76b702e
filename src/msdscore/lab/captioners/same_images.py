"""Which rows of several scored files show the same image: by the path in the rows, checked against the images."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msdscore.errors import ImageError, InputError, shortened
from msdscore.io.hashing import source_key
from msdscore.io.images import read_source
from msdscore.io.tar import TarImage
from msdscore.report.build import scored_rows

# An absolute path, a member of a tar, or the hash of an image that the rows contain; None if it cannot be found.
Place = Path | TarImage | str | None


def image_names(
    files: Sequence[tuple[Path, Sequence[str]]], *, images: Path | None = None, rows: Path | None = None
) -> list[list[str]]:
    """Return the names of each file's rows so that equal names are the same image; `files` has the names in the rows.

    An image is known by its path as the rows write it: `val/1.png` and `test/1.png` are two images. Rows that write
    the path of one file in different ways (`1.png`, `../val/1.png`) get one name. Images that cannot be found are
    compared by name only.

    Raises:
        InputError: two rows have the same name, and the images that they show differ.
    """
    first: dict[str, tuple[Path, Place]] = {}
    name_of: dict[Place, str] = {}
    joined, content = [], cache(_content)
    for path, names in files:
        own = []
        for given, place in zip(names, _places(path, len(names), images, rows), strict=True):
            name = name_of.get(place) or os.path.normpath(given)
            own.append(name)
            if place is None:
                continue
            name_of[place] = name
            where, known = first.setdefault(name, (path, place))
            if known != place and content(known) != content(place):
                raise InputError(
                    f"{shortened(given)} is one image in {where} and another one in {path}; captioners are ranked on "
                    "the same images: give different images different paths in the rows"
                )
        joined.append(own)
    return joined


def _places(path: Path, count: int, images: Path | None, rows: Path | None) -> list[Place]:
    places: list[Place] = [None] * count
    for row in scored_rows(path, rows, images):
        source = row.image
        if source is None or row.index >= count:
            continue
        if isinstance(source, bytes):
            places[row.index] = source_key(source)
        elif isinstance(source, TarImage):
            places[row.index] = source
        elif source.is_file():
            places[row.index] = Path(os.path.abspath(source))  # noqa: PTH100, as `source_key` does
    return places


def _content(place: Place) -> str:
    """The hash of an image's bytes; of one that cannot be read, a text that only equals itself."""
    if place is None or isinstance(place, str):
        return str(place)
    try:
        return source_key(read_source(place))
    except ImageError as error:
        return f"{place}: {error}"
