"""Finds the image of a row: in the folder of images, next to the rows, or in tables of images next to them."""

import os
import re
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

from msdscore.errors import ImageError, InputError, shortened
from msdscore.io.files import image_tables, is_image_name
from msdscore.io.images import ImageSource

# The number of an image in its file name. After a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")


class ImageFinder:
    """The images of an input: in the folder `images`, else next to the rows or in image tables next to them.

    A file takes precedence over an image of the same name in a table.
    """

    def __init__(self, source: str, images: Path | None) -> None:
        if images is not None and not images.is_dir():
            raise InputError(f"{images}: no such folder of images")
        self.folder = images
        self.tables = image_tables(source) if images is None else ()
        self._stored = None
        if self.tables:  # imported only for rows with image tables
            from msdscore.io.parquet_images import StoredImages

            self._stored = StoredImages(self.tables, "file_name")
        path, base = Path(source), images or Path()
        if images is None and source != "-" and (path.is_dir() or path.is_file()):
            base = path if path.is_dir() else path.parent
        self._base = "" if base == Path() else str(base)

    def find(self, image: ImageSource) -> ImageSource:
        """Return the image of a path that is relative to the folder; anything but a path is returned unchanged.

        Raises:
            ImageError: Several images of a table have this name.
        """
        if not isinstance(image, str | os.PathLike):
            return image
        name = os.fspath(image)
        path = os.path.join(self._base, name)  # noqa: PTH118
        if self._stored is not None and not os.path.exists(path):  # noqa: PTH110
            stored = self._stored.find(name)
            if stored is not None:
                return stored.read()
        # Normalised as by `Path`, without creating an object for a plain path.
        is_plain = os.sep == "/" and "//" not in path and "/." not in path and path[:2] != "./"
        return path if is_plain else str(Path(path))

    def find_by_id(self, key: Any, name: str) -> str:
        """Return the image directly in the folder of images with the id of column `name`; raise unless it is one.

        The image of 42 may be called `42.jpg`, `000000000042.png` or `COCO_val2014_000000000042.jpg`. A text id
        is first taken as a name; a number matches all spellings alike.
        """
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ImageError(f"{name} must be text or a whole number, got {shortened(repr(key))}")
        assert self.folder is not None
        stems, numbers = self._names
        if not isinstance(key, str):
            names = numbers.get(key, [])
        elif key in stems.get(key.rpartition(".")[0], ()):
            names = [key]
        else:
            as_number = int(key) if key.isascii() and key.isdigit() else None
            names = stems.get(key) or ([] if as_number is None else numbers.get(as_number, []))
        if not names:
            raise ImageError(f"no image for id {shortened(str(key))} in {self.folder}")
        if len(names) > 1:
            several = ", ".join(sorted(names)[:4])
            raise ImageError(f"several images for id {shortened(str(key))} in {self.folder}: {several}")
        return str(self.folder / names[0])

    @cached_property
    def _names(self) -> tuple[dict[str, list[str]], dict[int, list[str]]]:
        """The names in the folder of images by stem, and by the number at the end of the stem."""
        assert self.folder is not None
        stems, numbers = defaultdict[str, list[str]](list), defaultdict[int, list[str]](list)
        for entry in self.folder.iterdir():
            if is_image_name(entry):
                stems[entry.stem].append(entry.name)
                if _NUMBER.fullmatch(entry.stem) and (digits := _DIGITS.search(entry.stem)):
                    numbers[int(digits[0])].append(entry.name)
        return stems, numbers
