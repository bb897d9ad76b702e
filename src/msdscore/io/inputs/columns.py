"""Column roles of an input: by option, else by common names, in upper or lower case."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from msdscore.errors import InputError, unknown_name

# In order of precedence.
IMAGE_NAMES = ("image", "image_path", "file_name", "filename", "img")
CAPTION_NAMES = ("caption", "text", "candidate", "cand", "prediction")
SEVERAL = "captions"  # a list of captions, one candidate set
REFERENCES = "references"  # a list of human captions to compare the caption with
KEY_NAMES = ("image_id", "id", "index")  # looked up in the folder of images if a row has no image column

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
    # Cached, since the rows of a file have the same names.
    return wanted[0] if isinstance(names, dict) and wanted[0] in names else _first_of(tuple(names), tuple(wanted))


@lru_cache(maxsize=256)
def _first_of(present: tuple[str, ...], wanted: tuple[str, ...]) -> str | None:
    lower: dict[str, str] = {}
    for other in present:
        lower.setdefault(other.casefold(), other)
    for name in wanted:
        if name in present:
            return name
        if (match := lower.get(name.casefold())) is not None:
            return match
    return None


def listed(names: Iterable[str] | Mapping[str, Any]) -> str:
    """Join names for a message.

    >>> listed([])
    'none'
    """
    return ", ".join(names) or "none"
