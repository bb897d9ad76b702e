"""Images of rows: bytes, files next to the rows or in a folder of images, and cells of image tables."""

import os
import re
from collections import defaultdict
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

from msdscore.errors import ImageError, InputError, shortened
from msdscore.io.files import File, TarImage, is_address, is_image_name, stem
from msdscore.io.images import from_cell, refuse_address

# After a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")


class ImageFinder:
    """The images of an input: in the folder `images`, else next to the rows or in image tables next to them.

    A file takes precedence over an image of the same name in a table.
    """

    def __init__(self, source: str, images: Path | None) -> None:
        self.folder = None if images is None else ImageFolder(images)
        self.tables = image_tables(source) if images is None else ()
        self._stored = None
        if self.tables:  # imported only for rows with image tables
            from msdscore.io.parquet_images import StoredImages

            self._stored = StoredImages(self.tables, "file_name")
        path, base = Path(source), images or Path()
        if images is None and source != "-" and (path.is_dir() or path.is_file()):
            base = path if path.is_dir() else path.parent
        self._base = "" if base == Path() else str(base)

    def find(self, cell: Any, name: str) -> File:
        """Return the image in the cell of column `name`; raise `ImageError` if there is none."""
        if isinstance(cell, TarImage):
            return cell
        value = from_cell(cell)
        if is_missing(value) or value in ("", b""):
            raise ImageError(f"{name} is empty")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise ImageError(f"{name} must be a path or bytes, got {type(value).__name__}")
        try:
            refuse_address(value)
        except ImageError as error:
            raise ImageError(f"{name} {error}; got {shortened(value)}") from error
        path = os.path.join(self._base, value)  # noqa: PTH118
        if self._stored is not None and not os.path.exists(path):  # noqa: PTH110
            stored = self._stored.find(value)
            if stored is not None:
                return stored.read()
        # Normalised as by `Path`, without creating an object for a plain path.
        is_plain = os.sep == "/" and "//" not in path and "/." not in path and path[:2] != "./"
        return path if is_plain else str(Path(path))

    def find_by_id(self, key: Any, name: str) -> str:
        """Return the image with the id of column `name` in the folder of images."""
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ImageError(f"{name} must be text or a whole number, got {shortened(repr(key))}")
        assert self.folder is not None
        return self.folder.find(key)


class ImageFolder:
    """The images directly in a folder, by name and by the number at the end of their name.

    The image of 42 may be called `42.jpg`, `000000000042.png` or `COCO_val2014_000000000042.jpg`. A text id
    is first taken as a name; a number matches all spellings alike. If several images match, none is chosen.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder of images")
        self.path = path

    @cached_property
    def _names(self) -> tuple[dict[str, list[str]], dict[int, list[str]]]:
        """File names by stem, and by the number at the end of the stem."""
        stems, numbers = defaultdict[str, list[str]](list), defaultdict[int, list[str]](list)
        for entry in self.path.iterdir():
            if is_image_name(entry):
                stems[entry.stem].append(entry.name)
                if _NUMBER.fullmatch(entry.stem) and (digits := _DIGITS.search(entry.stem)):
                    numbers[int(digits[0])].append(entry.name)
        return stems, numbers

    def find(self, key: str | int) -> str:
        """Return the path of the image with this id; raise `ImageError` unless exactly one matches."""
        stems, numbers = self._names
        if not isinstance(key, str):
            names = numbers.get(key, [])
        elif key in stems.get(key.rpartition(".")[0], ()):
            names = [key]
        else:
            as_number = int(key) if key.isascii() and key.isdigit() else None
            names = stems.get(key) or ([] if as_number is None else numbers.get(as_number, []))
        if not names:
            raise ImageError(f"no image for id {shortened(str(key))} in {self.path}")
        if len(names) > 1:
            raise ImageError(
                f"several images for id {shortened(str(key))} in {self.path}: {', '.join(sorted(names)[:4])}"
            )
        return str(self.path / names[0])


def image_tables(source: str) -> tuple[Path, ...]:
    """Return the Parquet files of images next to a file of rows: `NAME.images*.parquet`."""
    path = Path(source)
    if is_address(source) or not path.is_file() or path.suffix.lower() == ".tar":
        return ()
    return tuple(sorted(path.parent.glob(f"{escape(stem(source))}.images*.parquet")))


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None or NaN."""
    return value is None or (isinstance(value, float) and value != value)
