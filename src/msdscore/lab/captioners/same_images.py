"""Match rows of several scored files that show the same image, by their paths, checked against the images."""

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
Location = Path | TarImage | str | None


def image_names(
    files: Sequence[tuple[Path, Sequence[str]]], *, images: Path | None = None, rows: Path | None = None
) -> list[list[str]]:
    """Return the names of each file's rows so that equal names are the same image; `files` has the names in the rows.

    An image is identified by its path in the rows: `val/1.png` and `test/1.png` are two images. Rows that write
    the path of one file in different ways (`1.png`, `../val/1.png`) get one name. Images that cannot be found are
    compared by name only.

    Raises:
        InputError: If two rows have the same name but different images.
    """
    first: dict[str, tuple[Path, Location]] = {}
    name_of: dict[Location, str] = {}
    joined, content = [], cache(_content)
    for path, names in files:
        own = []
        for given, location in zip(names, _locations(path, len(names), images, rows), strict=True):
            name = name_of.get(location) or os.path.normpath(given)
            own.append(name)
            if location is None:
                continue
            name_of[location] = name
            where, known = first.setdefault(name, (path, location))
            if known != location and content(known) != content(location):
                raise InputError(
                    f"{shortened(given)} is one image in {where} and another one in {path}; captioners are ranked on "
                    "the same images: use different paths for different images in the rows"
                )
        joined.append(own)
    return joined


def _locations(path: Path, count: int, images: Path | None, rows: Path | None) -> list[Location]:
    locations: list[Location] = [None] * count
    for row in scored_rows(path, rows, images):
        source = row.image
        if source is None or row.index >= count:
            continue
        if isinstance(source, bytes):
            locations[row.index] = source_key(source)
        elif isinstance(source, TarImage):
            locations[row.index] = source
        elif source.is_file():
            locations[row.index] = Path(os.path.abspath(source))  # noqa: PTH100, as `source_key` does
    return locations


def _content(location: Location) -> str:
    """Return the hash of an image's bytes; for an unreadable image, a text that only equals itself."""
    if location is None or isinstance(location, str):
        return str(location)
    try:
        return source_key(read_source(location))
    except ImageError as error:
        return f"{location}: {error}"
