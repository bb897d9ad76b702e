"""Rows to score, from every input format."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from msdscore.errors import ImageError, InputError, RunError, shortened
from msdscore.io.hashing import file_key, text_key
from msdscore.io.images import from_cell, refuse_address
from msdscore.io.inputs.columns import KEY_NAMES, ColumnNames, first_of, listed, single_name
from msdscore.io.inputs.formats import Record, Records, open_records, seen_columns
from msdscore.io.inputs.shards import stem
from msdscore.io.stores import is_address
from msdscore.io.tar import TarImage, is_image_name

if TYPE_CHECKING:  # imported where tables of images lie beside the rows
    from msdscore.io.parquet_images import StoredImage

_USUAL = ColumnNames()
_NO_ANSWER = "Failed to obtain answer"  # what VLMEvalKit writes in place of a prediction
# Behind a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")


@dataclass(frozen=True, slots=True)
class Row:
    """One image with one caption, and everything else that its input row holds.

    `columns` has the input's names, order and values, except that images given as bytes are left out: their
    path stands there (in a tar: the name within), or None. A row with an `error` cannot be scored and says why.
    """

    index: int  # position in the input, from 0
    id: str  # as given, else the position
    image: Path | bytes | TarImage | None
    caption: str | None
    group: str | None
    columns: Mapping[str, Any]
    error: str | None = None
    lookup: str | None = None  # the id by which its image is looked for in the folder of images
    warning: str | None = None
    has_id: bool = True  # False where `id` is the position

    @property
    def key(self) -> int:
        """A number that stands for the position and everything the row says; images given as bytes are left out."""
        offset = self.image.offset if isinstance(self.image, TarImage) else None
        return text_key(repr((self.index, offset, self.id, self.caption, self.group, self.columns)))


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The images lying directly in a folder, by name and by the number that ends their name.

    The image of 42 may be called `42.jpg`, `000000000042.png` or `COCO_val2014_000000000042.jpg`. A text id
    is first taken as a name; a number fits all spellings alike. Where several images fit, none is chosen.
    """

    path: Path
    _stems: dict[str, list[str]] = field(init=False, repr=False)
    _numbers: dict[int, list[str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise InputError(f"{self.path}: no such folder of images")
        object.__setattr__(self, "_stems", defaultdict(list))
        object.__setattr__(self, "_numbers", defaultdict(list))

    def find(self, key: str | int) -> Path:
        """The one image of this id, or an `ImageError` that says why there is none."""
        self._list_once()
        names = self._named(key) if isinstance(key, str) else self._numbered(key)
        if not names:
            raise ImageError(f"no image for id {shortened(str(key))} in {self.path}")
        if len(names) > 1:
            raise ImageError(
                f"several images for id {shortened(str(key))} in {self.path}: {', '.join(sorted(names)[:4])}"
            )
        return self.path / names[0]

    def _named(self, key: str) -> list[str]:
        stem = key.rpartition(".")[0]
        if key in self._stems.get(stem, ()):
            return [key]
        if names := self._stems.get(key, []):
            return names
        return self._numbered(int(key)) if key.isascii() and key.isdigit() else []

    def _numbered(self, number: int) -> list[str]:
        return self._numbers.get(number, [])

    def _list_once(self) -> None:
        if self._stems:
            return
        for entry in self.path.iterdir():
            if is_image_name(entry):
                self._stems[entry.stem].append(entry.name)
                if _NUMBER.fullmatch(entry.stem) and (digits := _DIGITS.search(entry.stem)):
                    self._numbers[int(digits[0])].append(entry.name)


@dataclass(frozen=True, slots=True)
class RowSource:
    """An opened input; `fingerprint` is a hash of its content. Closing it drops spooled input."""

    name: str
    fingerprint: str
    columns: tuple[str, ...] | None
    schema: pa.Schema | None  # of `Row.columns`, where the format has types
    names: ColumnNames
    seen: tuple[str, ...]  # the columns, or those of the first rows where every row may have its own
    id_name: str
    _may_list: bool = field(repr=False)  # whether a row may hold several captions
    _records: Records = field(repr=False)
    _folder: Path = field(repr=False)
    _image_folder: ImageFolder | None = field(repr=False)
    _tables: tuple[Path, ...] = field(repr=False)
    _stored: "Mapping[str, StoredImage]" = field(repr=False)
    _opened: ExitStack = field(repr=False)

    @property
    def images(self) -> str | None:
        """The folder of images, if one was given."""
        return None if self._image_folder is None else str(self._image_folder.path.resolve())

    @property
    def place(self) -> str:
        """The whole path of the input, or `-`."""
        return self.name if self.name == "-" else str(Path(self.name).resolve())

    def count(self) -> int:
        """The number of rows."""
        return sum(1 for _ in self.read()) if self._may_list else self._records.count()

    def read(self) -> Iterator[Row]:
        """The rows in order; an input row with a list of captions gives one row per caption."""
        rows = (row for number, record in enumerate(self._records.read()) for row in self._rows(number, record))
        return (replace(row, index=index) if row.index != index else row for index, row in enumerate(rows))

    def check_unchanged(self) -> None:
        """Refuse an input that is not what it was when it was opened.

        Raises:
            RunError: its content has changed.
        """
        if _fingerprint(self._records, self._tables) != self.fingerprint:
            raise self.changed()

    def changed(self) -> RunError:
        """The error for an input that has changed while it was read."""
        return RunError(
            f"{shortened(self.name)}: was changed while it was scored; finished parts are kept: put the file back and "
            "run the command again, or score the new one with --overwrite or into another -o"
        )

    def close(self) -> None:
        """Delete what was spooled."""
        self._opened.close()

    def __enter__(self) -> "RowSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, number: int, record: Record) -> Iterator[Row]:
        name = self.names.caption_in(record.values)
        row = self._row(number, record, name)
        if name is None or not isinstance(record.values[name], list):
            return iter((row,))
        return _split(row, record.values[name], name, self.id_name)

    def _row(self, number: int, record: Record, caption_name: str | None) -> Row:
        values = record.values
        given = _text(values.get(self.id_name))
        own = self.names.image_in(values)
        key_name = first_of(values, KEY_NAMES) if self._image_folder is not None and own is None else None
        image, image_error = None, None
        try:
            image = self._find_image(values, own)
        except ImageError as error:
            image_error = str(error)
        caption, caption_error = self._caption(values, caption_name)
        errors = (record.error, image_error, caption_error)
        return Row(
            index=number,
            id=str(number) if given is None else given,
            image=image,
            caption=caption,
            group=_text(values.get("group")),
            columns={
                name: value if isinstance(value, str) else _path_alone(value, is_image=name == own)
                for name, value in values.items()
            },
            error=next((error for error in errors if error is not None), None),
            lookup=None if key_name is None else _text(values[key_name]),
            warning=record.warning,
            has_id=given is not None,
        )

    def _caption(self, values: Mapping[str, Any], name: str | None) -> tuple[str | None, str | None]:
        if name is None:
            return None, f"no caption; expected one of {self.names.caption_names()}; found: {listed(values)}"
        if values[name] and isinstance(values[name], list):
            return None, None  # each of its members has a row of its own
        return _checked_caption(values[name], name)

    def _find_image(self, values: Mapping[str, Any], own: str | None) -> Path | bytes | TarImage:
        if own is not None:
            content = _image_content(own, values[own])
            if not isinstance(content, str):
                return content
            stored = self._stored.get(PurePosixPath(content).name)
            return self._folder / content if stored is None else stored.read()
        key_name = first_of(values, KEY_NAMES)
        if self._image_folder is None or key_name is None:
            raise ImageError(f"no image; expected one of {self.names.image_names()}; found: {listed(values)}")
        key = values[key_name]
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ImageError(f"{key_name} must be text or a whole number, got {shortened(repr(key))}")
        return self._image_folder.find(key)


def open_rows(
    source: str | Path,
    *,
    images: str | Path | None = None,
    format: str | None = None,  # noqa: A002, the user's word
    columns: ColumnNames = _USUAL,
) -> RowSource:
    """Open rows from a file by its suffix, a saved dataset, or `-` for JSON lines on standard input.

    Relative images are looked for in `images`, else in tables `NAME.images*.parquet` beside the rows (columns
    `file_name` and `image`), else beside the rows. Rows without an image column are matched with the images in
    `images` by `image_id` or `id`. `columns` names columns that are not called as usual.

    A row whose caption is a list, such as `{"id": "7", "image": …, "captions": [a, b]}`, becomes one row per caption
    with the ids `7#0` and `7#1`; they are one candidate set, named by the columns `group` and `candidates`.
    """
    with ExitStack() as stack:
        image_folder = None if images is None else ImageFolder(Path(images))
        records = open_records(source, format=format, until=stack)
        names = seen_columns(records)
        caption, id_name = columns.caption_in(names), columns.id_in(names) or columns.id or "id"
        schema = records.schema
        if names or records.columns is not None:
            columns.check(
                names, str(source), folder=image_folder is not None, lists=records.columns is None or bool(schema)
            )
        tables = () if images is not None else image_tables(str(source))
        return RowSource(
            name=str(source),
            fingerprint=_fingerprint(records, tables),
            columns=records.columns,
            schema=None
            if schema is None
            else _split_schema(_schema_without_bytes(schema, columns.image_in(schema.names)), caption, id_name),
            names=columns,
            seen=names,
            id_name=id_name,
            _may_list=records.columns is None
            or (schema is not None and caption is not None and _holds_lists(schema, caption)),
            _records=records,
            _folder=_base(source) if image_folder is None else image_folder.path,
            _image_folder=image_folder,
            _tables=tables,
            _stored=_stored_images(tables),
            _opened=stack.pop_all(),
        )


def image_tables(source: str) -> tuple[Path, ...]:
    """The Parquet files of images that lie beside a file of rows under its name: `NAME.images*.parquet`."""
    path = Path(source)
    if is_address(source) or not path.is_file() or path.suffix.lower() == ".tar":
        return ()
    return tuple(sorted(path.parent.glob(f"{escape(stem(source))}.images*.parquet")))


def _stored_images(tables: tuple[Path, ...]) -> "Mapping[str, StoredImage]":
    if not tables:
        return {}
    from msdscore.io.parquet_images import stored_images

    return stored_images(tables, "file_name")


def _fingerprint(records: Records, tables: tuple[Path, ...]) -> str:
    return "+".join([records.fingerprint(), *map(file_key, tables)])


def _base(source: str | Path) -> Path:
    path = Path(source)
    if str(source) == "-" or not (path.is_file() or path.is_dir()):
        return Path()
    return path if path.is_dir() else path.parent


def _checked_caption(caption: Any, name: str) -> tuple[str | None, str | None]:
    """The caption, or why it is none."""
    if _is_missing(caption) or (isinstance(caption, str) and not caption.strip()) or caption == []:
        return None, f"{name} is empty"
    if not isinstance(caption, str):
        return None, f"{name} must be text, got {type(caption).__name__}"
    if name == "prediction" and caption.startswith(_NO_ANSWER):
        return None, f"{name} says that the model gave no answer: {shortened(caption)}"
    return caption, None


def _split(row: Row, captions: list[Any], name: str, id_name: str) -> Iterator[Row]:
    """One row per caption of a list, told apart by the position in their `id`; together they are one candidate set.

    An empty list stays one row, with its error. The input's own `group` and `candidates` go before ours.
    """
    group = row.id if row.group is None else row.group
    columns = {id_name: row.id, **row.columns, "group": group}
    columns.setdefault("candidates", len(captions))
    single = single_name(name, columns)
    for position, text in enumerate(captions or [None]):
        caption, error = _checked_caption(text, f"{name}[{position}]")
        own = f"{row.id}#{position}" if captions else row.id
        values = {single if column == name else column: value for column, value in columns.items()}
        values |= {id_name: own, single: text}
        yield replace(row, id=own, caption=caption, group=group, columns=values, error=row.error or error)


def _split_schema(schema: pa.Schema, name: str | None, id_name: str) -> pa.Schema:
    """The types of rows with one caption each, where the column `name` holds lists of captions."""
    if name is None or not _holds_lists(schema, name):
        return schema
    kinds = {id_name: pa.string()} | {entry.name: entry.type for entry in schema}
    kinds |= {id_name: pa.string(), name: schema.field(name).type.value_type, "group": pa.string()}
    kinds.setdefault("candidates", pa.int64())
    single = single_name(name, kinds)
    return pa.schema([(single if column == name else column, kind) for column, kind in kinds.items()])


def _holds_lists(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _image_content(name: str, value: Any) -> str | bytes | TarImage:
    if isinstance(value, TarImage):
        return value
    value = from_cell(value)
    if _is_missing(value) or value in ("", b""):
        raise ImageError(f"{name} is empty")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ImageError(f"{name} must be a path or bytes, got {type(value).__name__}")
    try:
        refuse_address(value)
    except ImageError as error:
        raise ImageError(f"{name} {error}; got {shortened(value)}") from error
    return value


def _text(value: Any) -> str | None:
    if _is_missing(value) or value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _path_alone(value: Any, *, is_image: bool) -> Any:
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["path"]
    if isinstance(value, TarImage):
        return value.name
    return None if is_image and isinstance(value, bytes) else value


def _schema_without_bytes(schema: pa.Schema, image: str | None) -> pa.Schema:
    return pa.schema([pa.field(entry.name, _type_without_bytes(entry, image)) for entry in schema])


def _type_without_bytes(entry: pa.Field, image: str | None) -> pa.DataType:
    kind = entry.type
    if pa.types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}:
        return pa.string()
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.string() if entry.name == image and is_binary else kind
