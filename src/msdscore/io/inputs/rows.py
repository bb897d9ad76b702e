"""Rows to score, from every input format."""

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from glob import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from msdscore.errors import ImageError, InputError, RunError, shortened
from msdscore.io.hashing import file_key
from msdscore.io.images import from_cell, refuse_address
from msdscore.io.inputs.columns import (
    IMAGE_NAMES,
    KEY_NAMES,
    REFERENCES,
    SEVERAL,
    ColumnNames,
    first_of,
    listed,
    read_references,
    single_name,
)
from msdscore.io.inputs.formats import Record, open_records
from msdscore.io.stores import is_address, stem
from msdscore.io.tar import File, FileState, TarImage, file_state, is_image_name

if TYPE_CHECKING:  # imported only for rows with tables of images
    from msdscore.io.parquet_images import StoredImage

_USUAL = ColumnNames()
_REFERENCE_TEXTS = (REFERENCES, SEVERAL, "caption")  # columns of a file of references
_SAMPLE = 20  # records from which the columns of a format without a header are inferred
_NO_ANSWER = "Failed to obtain answer"  # written by VLMEvalKit instead of a prediction
# After a prefix only a padded number counts: "1_2.jpg" is not the image of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_DIGITS = re.compile(r"[0-9]{1,19}$")
_CACHED_ROLES = 256  # sets of column names whose roles are cached
_Roles: TypeAlias = tuple[str | None, str | None, str | None, str | None]


class Row(NamedTuple):  # a tuple is created in a quarter of the time of a frozen dataclass
    """One image with one caption, and the other values of its input row.

    `columns` has the names, order and values of the input, except that image bytes are replaced by their path (in a
    tar: the name within it) or None. A row with an `error` cannot be scored.
    """

    index: int  # type: ignore[assignment]  # position in the input, from 0; nobody searches the tuple
    id: str  # from the input, else the position
    source: File | None  # of the image; a path is text, to avoid an object per row
    caption: str | None
    group: str | None
    columns: Mapping[str, Any]
    error: str | None = None
    lookup: str | None = None  # the id for looking up its image in the folder of images
    warning: str | None = None
    has_id: bool = True  # False if `id` is the position
    references: tuple[Any, ...] | None = None  # human captions; a row with references needs no image

    @property
    def image(self) -> Path | bytes | TarImage | None:
        """The image: the path of a file, its bytes, or one in a tar."""
        return Path(self.source) if isinstance(self.source, str) else self.source


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


class ReferenceFile:
    """References by image: COCO annotations, JSON lines with an image or id and `references`, or an object id → list.

    An image is identified by its file name with or without suffix, or by its id. Rows of one image are merged.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; expected a file of references")
        self.path, self.fingerprint = Path(path), file_key(Path(path))
        self._lists: dict[str, list[str]] = {}
        self.without = set[str]()  # images that were looked up in vain
        with ExitStack() as stack:
            for number, record in enumerate(open_records(path, format=None, until=stack).read(), start=1):
                name = first_of(record.values, _REFERENCE_TEXTS)
                keys = list(_reference_keys(record.values))
                if record.error or name is None or not keys:
                    wanted = "an image or id, and references, captions or caption"
                    raise InputError(f"{path}: item {number}: {record.error or f'expected {wanted}'}")
                texts = [text for text in read_references(record.values[name]) or () if isinstance(text, str)]
                for key in dict.fromkeys(keys):
                    self._lists.setdefault(key, []).extend(texts)

    def __len__(self) -> int:
        return len(self._lists)

    def find(self, values: Mapping[str, Any]) -> list[str] | None:
        """Return the references of a row's image; None if the file has none."""
        keys = list(_reference_keys(values))
        references = next((self._lists[key] for key in keys if key in self._lists), None)
        if references is None and keys:
            self.without.add(keys[0])
        return references

    @property
    def example(self) -> str:
        """One of the images of the file."""
        return next(iter(self._lists), "")


def _reference_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the possible keys of a row's image, the most specific first."""
    image = first_of(values, IMAGE_NAMES)
    cell = None if image is None else values[image]
    cell = cell.get("path") if isinstance(cell, Mapping) else cell
    if isinstance(cell, str) and cell:
        yield Path(cell).name
        yield Path(cell).stem
    for name in KEY_NAMES:
        if isinstance(key := values.get(name), str | int) and not isinstance(key, bool):
            yield str(key)


class RowSource(ExitStack):
    """An opened input. Closing it deletes spooled input.

    `columns` is None if columns may differ between rows; then `seen` are those of the first rows. `schema` has the
    types of `Row.columns`, if the format has types.
    """

    def __init__(
        self,
        source: str | Path,
        images: str | Path | None,
        format: str | None,  # noqa: A002, the user's word
        names: ColumnNames,
        references: ReferenceFile | None = None,
        *,
        hashed: bool = True,
    ) -> None:
        super().__init__()
        self._references = references
        try:
            self._open(str(source), images, format, names)
            if hashed:
                _ = self.fingerprint  # before the rows are read
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, images: str | Path | None, form: str | None, names: ColumnNames) -> None:
        self._image_folder = None if images is None else ImageFolder(Path(images))
        self.images = None if images is None else str(Path(images).resolve())  # the folder of images
        self._records = open_records(name, format=form, until=self)
        self.name, self.names, self.columns = name, names, self._records.columns
        self.path = name if name == "-" else str(Path(name).resolve())
        first = islice(self._records.read(), _SAMPLE) if self.columns is None else ()
        self.seen = self.columns or tuple(dict.fromkeys(name for record in first for name in record.values))
        self.id_name = names.find("id", self.seen) or names.id or "id"
        schema = self._records.schema
        if self.seen or self.columns is not None:
            can_list = self.columns is None or bool(schema)
            names.check(self.seen, name, folder=images is not None, lists=can_list)
        caption = names.find("caption", self.seen)
        self.schema: pa.Schema | None = None
        self.without_bytes: tuple[str, ...] = ()  # columns of image bytes, of which rows only have the paths
        self._has_lists = True
        if schema is not None:
            plain = _without_bytes(schema, names.find("image", schema.names))
            self.without_bytes = tuple(
                column for column in schema.names if plain.field(column).type != schema.field(column).type
            )
            self._has_lists = isinstance(schema.field(caption).type, _LISTS)
            self.schema = _split_schema(plain, caption or "", self.id_name) if self._has_lists else plain
        path, folder = Path(name), Path() if images is None else Path(images)
        if images is None and name != "-" and (path.is_dir() or path.is_file()):
            folder = path if path.is_dir() else path.parent
        self._folder = "" if folder == Path() else str(folder)
        self._tables = () if images is not None else image_tables(name)
        self._stored: Mapping[str, StoredImage] = {}
        if self._tables:
            from msdscore.io.parquet_images import stored_images

            self._stored = stored_images(self._tables, "file_name")
        self._states = self._file_states()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content."""
        return self._content()

    @property
    def total(self) -> int | None:
        """Number of input rows, for lines of text an upper bound; None if it is unknown before reading.

        A row with a list of captions counts once.
        """
        if self._records.total is None:
            _ = self.fingerprint  # lines are counted in the same pass
        return self._records.total

    def read(self) -> Iterator[Row]:
        """Iterate over the rows in order; an input row with a list of captions yields one row per caption."""
        index, cached = 0, dict[tuple[str, ...], _Roles]()
        for number, record in enumerate(self._records.read()):
            names = tuple(record.values)
            if (roles := cached.get(names)) is None:
                if len(cached) >= _CACHED_ROLES:
                    cached.clear()
                roles = cached[names] = self._roles(names)
            row, name = self._row(number, index, record, roles), roles[0]
            captions = None if name is None else record.values[name]
            if name is None or not isinstance(captions, list):
                yield row
                index += 1
                continue
            for split in _split(row, captions, name, self.id_name):
                yield split
                index += 1

    def read_at(self, indices: Collection[int]) -> Iterator[Row]:
        """Iterate over the rows with these indices; of a Parquet file only their row groups are read."""
        if self._has_lists:
            rows = islice(self.read(), max(indices, default=-1) + 1)
            yield from (row for row in rows if row.index in indices)
            return
        for number, record in self._records.read_at(indices):
            yield self._row(number, number, record, self._roles(tuple(record.values)))

    def count(self) -> int:
        """Return the number of rows; those of a table without lists of captions are not read."""
        exact = self.total if self.schema is not None and not self._has_lists else None
        return sum(1 for _ in self.read()) if exact is None else exact

    def check_unchanged(self, reread: Callable[[], bool] = lambda: True) -> None:
        """Raise if the input has changed since it was opened.

        Files that were rewritten with the same content may have had other content when they were read; then `reread`
        returns whether their rows are the same.

        Raises:
            RunError: its content has changed.
        """
        if self._file_states() == self._states:
            return
        try:
            is_same = self._content() == self.fingerprint
        except OSError as error:
            raise RunError(
                f"{shortened(self.name)}: can no longer be read ({error.strerror or error}); put the file back and "
                "run the command again, which resumes after the finished parts"
            ) from error
        if not is_same or not reread():
            raise RunError(
                f"{shortened(self.name)}: was changed while it was scored; finished parts are kept: put the file back "
                "and run the command again, or score the new one with --overwrite or into another -o"
            )

    def _file_states(self) -> list[FileState | None]:
        return [file_state(path) for path in (*self._records.files, *self._tables)]

    def _content(self) -> str:
        content = [self._records.fingerprint(), *map(file_key, self._tables)]
        return "+".join([*content, *([self._references.fingerprint] if self._references else [])])

    def _roles(self, names: tuple[str, ...]) -> _Roles:
        """Return the columns of caption, image, references and image id among these names."""
        image = self.names.find("image", names)
        key = first_of(names, KEY_NAMES) if image is None and self._image_folder is not None else None
        return self.names.find("caption", names), image, self.names.find("references", names), key

    def _row(self, number: int, index: int, record: Record, roles: _Roles) -> Row:
        values, image, error = record.values, None, record.error
        caption_name, image_name, references_name, key_name = roles
        row_id = _text(values.get(self.id_name))
        references = None if references_name is None else read_references(values[references_name])
        if references is None and self._references is not None:
            references = self._references.find(values)
        if not references or key_name is not None or not (image_name is None or _is_missing(values[image_name])):
            try:
                image = self._find_image(values, image_name, key_name)
            except ImageError as image_error:
                error = error or str(image_error)
        caption = None
        if caption_name is None:
            accepted = listed(self.names.accepted("caption"))
            error = error or f"no caption; expected one of {accepted}; found: {listed(values)}"
        elif not (isinstance(values[caption_name], list) and values[caption_name]):  # else each caption becomes a row
            caption, caption_error = _checked_caption(values[caption_name], caption_name)
            error = error or caption_error
        return Row(
            index,
            str(number) if row_id is None else row_id,
            image,
            caption,
            _text(values.get("group")),
            {
                name: value if type(value) is str else _without_image_bytes(value, is_image=name == image_name)
                for name, value in values.items()
            },
            error,
            None if key_name is None else _text(values[key_name]),
            record.warning,
            row_id is not None,
            None if references is None else tuple(references),
        )

    def _find_image(self, values: Mapping[str, Any], image_name: str | None, key_name: str | None) -> File:
        if image_name is not None:
            if isinstance(values[image_name], TarImage):
                return values[image_name]
            value = from_cell(values[image_name])
            if _is_missing(value) or value in ("", b""):
                raise ImageError(f"{image_name} is empty")
            if isinstance(value, bytes):
                return value
            if not isinstance(value, str):
                raise ImageError(f"{image_name} must be a path or bytes, got {type(value).__name__}")
            try:
                refuse_address(value)
            except ImageError as error:
                raise ImageError(f"{image_name} {error}; got {shortened(value)}") from error
            if self._stored and (stored := self._stored.get(value.rpartition("/")[2])):
                return stored.read()
            path = os.path.join(self._folder, value)  # noqa: PTH118
            # Normalised as by `Path`, without creating an object for a plain path.
            is_plain = os.sep == "/" and "//" not in path and "/." not in path and path[:2] != "./"
            return path if is_plain else str(Path(path))
        if self._image_folder is None or key_name is None:
            accepted = listed(self.names.accepted("image"))
            raise ImageError(f"no image; expected one of {accepted}; found: {listed(values)}")
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
    references: ReferenceFile | None = None,
    hashed: bool = True,
) -> RowSource:
    """Open rows from a file by its suffix, a saved dataset, or `-` for JSON lines on standard input.

    Relative images are looked up in `images`, else in tables `NAME.images*.parquet` next to the rows (columns
    `file_name` and `image`), else next to the rows. Rows without an image column are matched with the images in
    `images` by `image_id` or `id`. `columns` sets column names that differ from the usual ones.

    A row whose caption is a list, such as `{"id": "7", "image": …, "captions": [a, b]}`, becomes one row per caption
    with the ids `7#0` and `7#1`; they are one candidate set, named by the columns `group` and `candidates`.

    The column `references` has human captions; `references` is a file of them for rows without. A row with
    references needs no image. With `hashed` the whole input is hashed at once, which resuming a run needs.
    """
    return RowSource(source, images, format, columns, references, hashed=hashed)


def image_tables(source: str) -> tuple[Path, ...]:
    """Return the Parquet files of images next to a file of rows: `NAME.images*.parquet`."""
    path = Path(source)
    if is_address(source) or not path.is_file() or path.suffix.lower() == ".tar":
        return ()
    return tuple(sorted(path.parent.glob(f"{escape(stem(source))}.images*.parquet")))


def _checked_caption(caption: Any, name: str) -> tuple[str | None, str | None]:
    """Return the caption, or None and an error."""
    if _is_missing(caption) or (isinstance(caption, str) and not caption.strip()) or caption == []:
        return None, f"{name} is empty"
    if not isinstance(caption, str):
        return None, f"{name} must be text, got {type(caption).__name__}"
    if name == "prediction" and caption.startswith(_NO_ANSWER):
        return None, f"{name} reports that the model did not answer: {shortened(caption)}"
    return caption, None


def _split(row: Row, captions: list[Any], name: str, id_name: str) -> Iterator[Row]:
    """Yield one row per caption of a list, with the position in its `id`; together they are one candidate set.

    An empty list becomes one row with an error. Columns `group` and `candidates` of the input take precedence.
    """
    group = row.id if row.group is None else row.group
    columns = {id_name: row.id, **row.columns, "group": group}
    columns.setdefault("candidates", len(captions))
    single = single_name(name, columns)
    for position, text in enumerate(captions or [None]):
        caption, error = _checked_caption(text, f"{name}[{position}]")
        row_id, index = f"{row.id}#{position}" if captions else row.id, row.index + position
        values = {single if column == name else column: value for column, value in columns.items()}
        values |= {id_name: row_id, single: text}
        error = row.error or error
        yield row._replace(index=index, id=row_id, caption=caption, group=group, columns=values, error=error)


def _split_schema(schema: pa.Schema, name: str, id_name: str) -> pa.Schema:
    """Return the types of rows with one caption each, for a column `name` of lists of captions."""
    kinds = {id_name: pa.string()} | {entry.name: entry.type for entry in schema}
    kinds |= {id_name: pa.string(), name: schema.field(name).type.value_type, "group": pa.string()}
    kinds.setdefault("candidates", pa.int64())
    single = single_name(name, kinds)
    return pa.schema([(single if column == name else column, kind) for column, kind in kinds.items()])


def _text(value: Any) -> str | None:
    if type(value) is str:
        return value or None
    if _is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _without_image_bytes(value: Any, *, is_image: bool) -> Any:
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["path"]
    if isinstance(value, TarImage):
        return value.name
    return None if is_image and isinstance(value, bytes) else value


def _without_bytes(schema: pa.Schema, image: str | None) -> pa.Schema:
    """Return the types of columns without image bytes."""
    kinds = {entry.name: entry.type for entry in schema}
    for name, kind in kinds.items():
        is_cell = pa.types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}
        is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        if is_cell or (name == image and is_binary):
            kinds[name] = pa.string()
    return pa.schema(list(kinds.items()))
