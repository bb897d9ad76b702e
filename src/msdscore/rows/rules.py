"""The row to score, and the only function that makes one from the values of an input.

Every way in (`Scorer`, tables, files, tars, the service, trainers) is an adapter that names its values and passes them
to `RowMaker.rows`, so that all follow the same rules; docs/rows.md lists them for users.
"""

import ast
import json
import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from PIL.Image import Image

from msdscore.errors import CaptionError, ConfigError, ImageError, InputError, RowError, shortened, unknown_name
from msdscore.io.files import File, TarImage
from msdscore.io.images import ImageSource, from_cell, refuse_address
from msdscore.text.normal import clean

if TYPE_CHECKING:
    from msdscore.rows.files import ReferenceFile
    from msdscore.rows.images import ImageFinder

# In order of precedence.
IMAGE_NAMES = ("image", "image_path", "file_name", "filename", "img")
CAPTION_NAMES = ("caption", "text", "candidate", "cand", "prediction")
SEVERAL = "captions"  # a list of captions, one candidate set
REFERENCES = "references"  # a list of human captions to compare the caption with
GROUP = "group"  # names the candidate set
KEY_NAMES = ("image_id", "id", "index")  # looked up in the folder of images if a row has no image column
_NO_ANSWER = "Failed to obtain answer"  # written by evaluation harnesses instead of a caption
_MOST_ROLES = 256  # sets of columns whose roles are remembered
_NOT_A_LIST = 'begins like a list and is none; write it as JSON, such as ["a dog", "a puppy"]'

ImageAndCaption: TypeAlias = tuple[ImageSource, str | Sequence[str]] | Mapping[str, Any]
Role = Literal["image", "caption", "id", "references"]
_USUAL: dict[Role, tuple[str, ...]] = {
    "image": IMAGE_NAMES,
    "caption": (*CAPTION_NAMES, SEVERAL),
    "id": ("id",),
    "references": (REFERENCES,),
}


class Row(NamedTuple):  # a tuple is created in a quarter of the time of a frozen dataclass
    """One image with one caption; a row with an `error` cannot be scored.

    `set` names its candidate set; None: the captions of its image. `columns` has the names, order and values of an
    input file, except that image bytes are replaced by their path (in a tar: the name within it) or None.
    """

    image: ImageSource | None  # None: only compared with its references
    caption: str  # empty if it is missing or not text
    set: str | None
    references: tuple[str, ...] | None  # human captions with words; a row with references needs no image
    id: str  # from the input, else the position
    columns: Mapping[str, Any]
    error: RowError | None = None
    warning: str | None = None
    index: int = 0  # type: ignore[assignment]  # position among the rows, from 0; nobody searches the tuple
    has_id: bool = True  # False if `id` is the position
    lookup: str | None = None  # the id for looking up its image in the folder of images


class Roles(NamedTuple):
    """Columns of caption, image, references, image id, candidate set and id among those of an input row."""

    caption: str | None
    image: str | None
    references: str | None
    key: str | None
    group: str | None
    id: str | None


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


@dataclass(slots=True)
class RowMaker:
    """Makes rows from the values of input rows; `copied` adds those values to them.

    `finder` finds the images of paths and ids, `references` those of rows without a column of references.

    >>> made = RowMaker().rows({"image": "dog.jpg", "captions": ["a dog", ""]})
    >>> [(row.caption, row.set, str(row.error)) for row in made]
    [('a dog', 'list 0', 'None'), ('', 'list 0', 'captions[1] is empty')]
    """

    names: ColumnNames = field(default_factory=ColumnNames)
    finder: "ImageFinder | None" = None
    references: "ReferenceFile | None" = None
    copied: bool = False
    _number: int = 0  # of the next input row, which a list of captions counts once
    _index: int = 0  # of the next row
    _lists: set[int] = field(default_factory=set)  # hashes of the ids of lists
    _roles: dict[tuple[str, ...], Roles] = field(default_factory=dict)  # most input rows have the columns of others

    def rows(
        self,
        values: Mapping[str, Any],
        *,
        set: str | None = None,  # noqa: A002, the user's word
        error: str | None = None,
        warning: str | None = None,
        number: int | None = None,
        split: bool = True,
    ) -> list[Row]:
        """Return the row of these values, or one row per caption of a list, which is a candidate set.

        `set` names the candidate set of a row without a group or a list; `error` and `warning` are those of reading
        the values, and `number` is the position of the input row, if it does not follow the last one. Without `split`,
        a list is no caption.
        """
        if number is not None:
            self._number = self._index = number
        number, roles = self._number, self.roles(values)
        self._number += 1
        name, cell = roles.caption or "", None if roles.caption is None else values[roles.caption]
        captions = list_of(cell) if split else None
        shared = self._shared(values, roles, RowError(error) if error else None, warning)
        if shared.set is None and captions is None:
            shared = shared._replace(set=set)
        if captions is None:
            made = [_with_caption(shared, cell, name) if name else self._without_caption(shared, values)]
        else:
            made = self._listed(shared, captions, number, name)
        made = [row._replace(index=self._index + at) for at, row in enumerate(made)]
        self._index += len(made)
        return made

    def roles(self, values: Iterable[str]) -> Roles:
        """Return the columns of an input row by their roles."""
        columns = tuple(values)
        roles = self._roles.get(columns)
        if roles is None:
            image = self.names.find("image", columns)
            has_folder = self.finder is not None and self.finder.folder is not None
            key = first_of(columns, KEY_NAMES) if image is None and has_folder else None
            caption, references = self.names.find("caption", columns), self.names.find("references", columns)
            roles = Roles(caption, image, references, key, first_of(columns, (GROUP,)), self.names.find("id", columns))
            if len(self._roles) < _MOST_ROLES:
                self._roles[columns] = roles
        return roles

    def _shared(self, values: Mapping[str, Any], roles: Roles, error: RowError | None, warning: str | None) -> Row:
        """Return what the rows of a list of captions have in common, or the row without its caption."""
        references = image = None
        try:
            references, note = self._references(values, roles)
            warning = "; ".join(filter(None, (warning, note))) or None
            image = self._image(values, roles, needed=references is None)
        except RowError as problem:
            error = error or problem
        row_id = None if roles.id is None else text_of(values[roles.id])
        group = None if roles.group is None else text_of(values[roles.group])
        return Row(
            image,
            "",
            None if group is None else f"group {group}",
            references,
            str(self._number - 1) if row_id is None else row_id,
            self._columns(values, roles) if self.copied else {},
            error,
            warning,
            has_id=row_id is not None,
            lookup=None if roles.key is None else text_of(values[roles.key]),
        )

    def _references(self, values: Mapping[str, Any], roles: Roles) -> tuple[tuple[str, ...] | None, str | None]:
        """Return the references of a row that have words, or None, and a warning about the others."""
        found = None if roles.references is None else read_references(values[roles.references], roles.references)
        if found is None and self.references is not None:
            found = self.references.find(values)
        texts = tuple(text for text in found or () if isinstance(text, str) and not is_blank(text))
        empty = len(found or ()) - len(texts)
        note = f"{empty} of {len(found or ())} references ignored: empty or not text" if empty else None
        return texts or None, note

    def _image(self, values: Mapping[str, Any], roles: Roles, *, needed: bool) -> ImageSource | None:
        """Return the image of a row; raise `ImageError` if it is missing and `needed`, or cannot be one."""
        if roles.key is not None and self.finder is not None:
            return self.finder.find_by_id(values[roles.key], roles.key)
        if roles.image is None:
            if not needed:
                return None
            accepted = listed(self.names.accepted("image"))
            raise ImageError(f"no image; expected one of {accepted}; found: {listed(map(str, values))}")
        cell, name = values[roles.image], roles.image
        if isinstance(cell, Mapping) and not cell.keys() & {"bytes", "path"}:
            raise ImageError(f"{name} must have bytes or a path, got the names {listed(map(str, cell))}")
        image = from_cell(cell)
        if is_missing(image) or (isinstance(image, str | bytes) and not image):
            if not needed:
                return None
            raise ImageError(f"{name} is empty")
        kinds = (str, os.PathLike, bytes, bytearray, memoryview, TarImage, Image, np.ndarray)
        if not isinstance(image, kinds) and not hasattr(image, "read") and not hasattr(image, "detach"):
            raise ImageError(
                f"{name} must be a path, the bytes of a file, an open file, a Pillow image, an array or a tensor, "
                f"got {type(image).__name__}"
            )
        if isinstance(image, str):
            try:
                refuse_address(image)
            except ImageError as error:
                raise ImageError(f"{name} {error}; got {shortened(image)}") from error
        found: ImageSource = image if self.finder is None else self.finder.find(image)
        return found

    def _without_caption(self, row: Row, values: Mapping[str, Any]) -> Row:
        accepted, found = listed(self.names.accepted("caption")), listed(map(str, values))
        return row._replace(error=row.error or CaptionError(f"no caption; expected one of {accepted}; found: {found}"))

    def _columns(self, values: Mapping[str, Any], roles: Roles) -> dict[str, Any]:
        """Return the values of an input row, without the bytes of images."""
        return {
            name: value if type(value) is str else _without_image_bytes(value, is_image=name == roles.image)
            for name, value in values.items()
        }

    def _listed(self, row: Row, captions: Sequence[Any], number: int, name: str) -> list[Row]:
        """Return one row per caption of the list in column `name`, with its own id and columns.

        An empty list becomes one row with an error. Columns `group` and `candidates` of the input take precedence;
        else the group is the id of the list, if no earlier one has it.
        """
        group = None if row.set is None else row.set.removeprefix("group ")
        if group is None:
            is_new = row.has_id and hash(row.id) not in self._lists
            self._lists.add(hash(row.id))
            group = row.id if is_new else f"{row.id if row.has_id else ''}@{number}"
        id_name = self.names.find("id", row.columns) or self.names.id or "id"
        columns = {id_name: row.id, **row.columns, GROUP: group}
        columns.setdefault("candidates", len(captions))
        single, made = single_name(name, columns), list[Row]()
        row = row if row.set else row._replace(set=f"list {number}")
        for position, text in enumerate(captions or [None]):
            row_id = f"{row.id}#{position}" if captions else row.id
            values = {single if column == name else column: value for column, value in columns.items()}
            values |= {id_name: row_id, single: text}
            named = _with_caption(row, text, f"{name}[{position}]" if captions else name)
            made.append(named._replace(id=row_id, columns=values))
        return made


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


def _with_caption(row: Row, caption: Any, name: str) -> Row:
    """Return the row with its caption, or with an error if it has no usable one."""
    error = row.error or caption_error(caption, name)
    return row._replace(caption=caption if isinstance(caption, str) else "", error=error)


def caption_error(caption: Any, name: str = "caption") -> CaptionError | None:
    """Return why the value of column `name` is not a caption; None if it is one.

    >>> str(caption_error(" ")), str(caption_error(7)), caption_error("a dog")
    ('caption is empty', 'caption must be text, got int', None)
    """
    if is_missing(caption) or (isinstance(caption, str) and is_blank(caption)):
        return CaptionError(f"{name} is empty")
    if not isinstance(caption, str):
        return CaptionError(f"{name} must be text, got {type(caption).__name__}")
    if caption.startswith(_NO_ANSWER):
        return CaptionError(f"{name} reports that the model did not answer: {shortened(caption)}")
    return None


def list_of(cell: Any) -> list[Any] | None:
    """Return the captions of a cell with a list, None for any other.

    >>> list_of(["a", "b"]), list_of(np.array(["a"])), list_of("a")
    (['a', 'b'], ['a'], None)
    """
    if isinstance(cell, list | tuple):
        return list(cell)
    return cell.tolist() if getattr(cell, "ndim", 0) == 1 else None


def read_references(cell: Any, name: str = REFERENCES) -> list[Any] | None:
    """Parse the references of a cell: a list, one reference, or a list as text (JSON or Python); None if it is empty.

    Raises:
        RowError: It is neither.

    >>> read_references('["a dog", "a puppy"]'), read_references("['a dog']"), read_references("a dog")
    (['a dog', 'a puppy'], ['a dog'], ['a dog'])
    """
    if is_missing(cell):
        return None
    if isinstance(cell, str):
        text = cell.strip()
        return _listed_text(text, name) if text.startswith("[") else [text] if text else None
    listed_cell = list_of(cell)
    if listed_cell is None:
        raise RowError(f"{name} must be a list of texts, or one text, got {type(cell).__name__}")
    return listed_cell or None


def _listed_text(text: str, name: str) -> list[Any] | None:
    """Parse a list written as text; raise `RowError` if it is broken."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        try:
            values = ast.literal_eval(text)
            strings = sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(StringIO(text).readline))
        except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError) as error:
            raise RowError(f"{name} {_NOT_A_LIST}, got {shortened(text)}") from error
        if strings != sum(isinstance(value, str) for value in values):  # ['a' 'b'], as NumPy prints it, is ['ab']
            raise RowError(f"{name} has texts without a comma between them, got {shortened(text)}") from None
    return list(values) or None


def text_of(value: Any) -> str | None:
    """Return an id or the name of a candidate set as text, None if it is empty; 7, 7.0 and "7" are the same.

    >>> text_of(7.0), text_of(0), text_of(""), text_of(float("nan"))
    ('7', '0', None, None)
    """
    if type(value) is str:
        return value or None
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) or None


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or a missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def is_blank(text: str) -> bool:
    r"""Whether a text has no visible character.

    >>> is_blank(" \n"), is_blank("\u200b"), is_blank("a")
    (True, True, False)
    """
    if not text.strip():
        return True
    cleaned = None if text.isascii() and text.isprintable() else clean(text)
    return cleaned is not None and not cleaned.text.strip()


def _without_image_bytes(value: Any, *, is_image: bool) -> Any:
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["path"]
    if isinstance(value, TarImage):
        return value.name
    return None if is_image and isinstance(value, bytes) else value


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
