"""Columns of an input: which ones have images, captions, ids and references, and how their cells are read."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msdscore.errors import ImageError, InputError, shortened, unknown_name
from msdscore.io.files import File, TarImage, image_tables, is_image_name
from msdscore.io.images import from_cell, refuse_address

# In order of precedence.
IMAGE_NAMES = ("image", "image_path", "file_name", "filename", "img")
CAPTION_NAMES = ("caption", "text", "candidate", "cand", "prediction")
SEVERAL = "captions"  # a list of captions, one candidate set
REFERENCES = "references"  # a list of human captions to compare the caption with
KEY_NAMES = ("image_id", "id", "index")  # looked up in the folder of images if a row has no image column

# The number of an image in its file name. After a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")

Role = Literal["image", "caption", "id", "references"]
_USUAL: dict[Role, tuple[str, ...]] = {
    "image": IMAGE_NAMES,
    "caption": (*CAPTION_NAMES, SEVERAL),
    "id": ("id",),
    "references": (REFERENCES,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The columns of images, captions, ids and references; None means the usual names.

    >>> ColumnNames().find("image", ["Image", "caption"]), ColumnNames(image="photo").find("image", ["image"])
    ('Image', None)
    """

    image: str | None = None
    caption: str | None = None
    id: str | None = None
    references: str | None = None

    def accepted(self, role: Role) -> tuple[str, ...]:
        """Return the accepted names of a column, in order of precedence."""
        name: str | None = getattr(self, role)
        return _USUAL[role] if name is None else (name,)

    def find(self, role: Role, names: Iterable[str]) -> str | None:
        """Return the column of images, captions (or lists of captions), ids or references among these names."""
        return first_of(names, self.accepted(role))

    def check(self, names: Sequence[str], source: str, *, folder: bool, lists: bool) -> None:
        """Raise `InputError` if a required column is missing; with a `folder` images may be found by id.

        `lists` is whether a cell of the input can contain a list of captions.
        """
        for name in (self.image, self.caption, self.id, self.references):
            if name is not None and first_of(names, (name,)) is None:
                raise InputError(f"{source}: {unknown_name('column', name, names)}")
        caption = self.find("caption", names)
        if caption is not None and caption.casefold() == SEVERAL and self.caption is None and not lists:
            raise InputError(
                f"{source}: the column {caption} cannot contain lists in this format; use JSON lines or Parquet, or "
                "write one row per caption, with its image repeated and a column caption"
            )
        if caption is None:
            raise InputError(
                f"{source}: no caption column; expected one of {listed(self.accepted('caption'))}; "
                f"found: {listed(names)}; set it with --caption-column"
            )
        needs_no_image = self.image is None and self.find("references", names) is not None
        if self.find("image", names) is None and not needs_no_image and not (folder and first_of(names, KEY_NAMES)):
            raise InputError(
                f"{source}: no image column; expected one of {listed(self.accepted('image'))}, or image_id, id or "
                f"index together with a folder of images (images); found: {listed(names)}; set it with --image-column"
            )


def read_references(cell: Any) -> list[Any] | None:
    """Parse the references of a cell: a list, one reference, or a JSON list as text; None if it is empty.

    >>> read_references('["a dog", "a puppy"]'), read_references("a dog"), read_references(None)
    (['a dog', 'a puppy'], ['a dog'], None)
    """
    if isinstance(cell, str):
        text = cell.strip()
        if text.startswith("["):
            with suppress(ValueError):
                return list(json.loads(text))
        return [text] if text else None
    return list(cell) if isinstance(cell, Iterable) and not isinstance(cell, Mapping | bytes) else None


def single_name(name: str, columns: Iterable[str]) -> str:
    """Return the name of a column of lists after it is split into one caption per row.

    >>> single_name("captions", ["image", "captions"]), single_name("texts", ["image", "texts"])
    ('caption', 'texts')
    """
    return "caption" if name.casefold() == SEVERAL and first_of(columns, ("caption",)) is None else name


def first_of(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    """Return the first wanted name that is present, in its spelling there; an exact match precedes another case.

    >>> first_of(["Caption", "text"], ("caption", "text"))
    'Caption'
    """
    present = list(names)
    for name in wanted:
        if name in present:
            return name
        for other in present:
            if other.casefold() == name.casefold():
                return other
    return None


def listed(names: Iterable[str] | Mapping[str, Any]) -> str:
    """Join names for a message.

    >>> listed([])
    'none'
    """
    return ", ".join(names) or "none"


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


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None or NaN."""
    return value is None or (isinstance(value, float) and value != value)
