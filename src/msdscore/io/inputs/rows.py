"""Rows to score, from every input format."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from msdscore.errors import ImageError, RunError, shortened
from msdscore.io.arrow import pa
from msdscore.io.files import File, FileState, TarImage, file_key, file_state
from msdscore.io.inputs.columns import KEY_NAMES, ColumnNames, first_of, listed, read_references, single_name
from msdscore.io.inputs.finder import ImageFinder, is_missing
from msdscore.io.inputs.formats import Record, Records, open_records
from msdscore.io.inputs.references import ReferenceFile

_USUAL = ColumnNames()
_SAMPLE = 20  # records from which the columns of a format without a header are inferred
_NO_ANSWER = "Failed to obtain answer"  # written by VLMEvalKit instead of a prediction
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_CACHED_ROLES = 256  # sets of column names whose roles are cached


class Row(NamedTuple):  # a tuple is created in a quarter of the time of a frozen dataclass
    """One image with one caption, and the other values of its input row.

    `columns` has the names, order and values of the input, except that image bytes are replaced by their path (in a
    tar: the name within it) or None. A row with an `error` cannot be scored.
    """

    index: int  # type: ignore[assignment]  # position in the input, from 0; nobody searches the tuple
    id: str  # from the input, else the position
    source: File | None  # of the image; a path is text, to avoid an object per row
    caption: str | None
    group: str | None  # names its candidate set
    columns: Mapping[str, Any]
    error: str | None = None
    lookup: str | None = None  # the id for looking up its image in the folder of images
    warning: str | None = None
    has_id: bool = True  # False if `id` is the position
    references: tuple[Any, ...] | None = None  # human captions; a row with references needs no image
    list_number: int | None = None  # number of the input row whose list of captions is its candidate set

    @property
    def image(self) -> Path | bytes | TarImage | None:
        """The image: the path of a file, its bytes, or one in a tar."""
        return Path(self.source) if isinstance(self.source, str) else self.source


class Roles(NamedTuple):
    """Columns of caption, image, references and image id among the columns of a record."""

    caption: str | None
    image: str | None
    references: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of an input, as far as they are known before its rows are read.

    `columns` is None if columns may differ between rows; then `seen` are those of the first rows. `schema` has the
    types of `Row.columns`, if the format has types. `without_bytes` are columns of image bytes, of which rows only
    have the paths. `has_lists` is whether a cell may be a list of captions.
    """

    columns: tuple[str, ...] | None
    seen: tuple[str, ...]
    id_name: str
    schema: pa.Schema | None = None
    without_bytes: tuple[str, ...] = ()
    has_lists: bool = True

    @classmethod
    def of(cls, records: Records, names: ColumnNames, source: str, *, has_folder: bool) -> "Layout":
        """Return the layout of an input; raise `InputError` if a required column is missing."""
        columns, schema = records.columns, records.schema
        first = islice(records.read(), _SAMPLE) if columns is None else ()
        seen = columns or tuple(dict.fromkeys(name for record in first for name in record.values))
        is_empty = not seen and schema is not None and records.total == 0  # a table without columns and rows
        if (seen or columns is not None) and not is_empty:
            names.check(seen, source, folder=has_folder, lists=columns is None or schema is not None)
        id_name = names.find("id", seen) or names.id or "id"
        if schema is None or is_empty:
            return cls(columns, seen, id_name)
        plain, caption = _without_bytes(schema, names.find("image", seen)), names.find("caption", seen) or ""
        without_bytes = tuple(name for name in seen if plain.field(name).type != schema.field(name).type)
        has_lists = isinstance(schema.field(caption).type, _LISTS)
        kinds = _split_schema(plain, caption, id_name) if has_lists else plain
        return cls(columns, seen, id_name, kinds, without_bytes, has_lists)


class RowSource:
    """An opened input; closing it deletes spooled input."""

    def __init__(
        self,
        name: str,
        records: Records,
        names: ColumnNames,
        images: ImageFinder,
        references: ReferenceFile | None,
        close: Callable[[], None],
    ) -> None:
        self.name, self.names = name, names
        self.layout = Layout.of(records, names, name, has_folder=images.folder is not None)
        self.close = close
        self._records, self._images, self._references = records, images, references
        self._states = self._file_states()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The absolute path of the input, or `-`."""
        return self.name if self.name == "-" else str(Path(self.name).resolve())

    @property
    def images(self) -> str | None:
        """The absolute path of the folder of images."""
        return None if self._images.folder is None else str(self._images.folder.path.resolve())

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
        index, cached, groups = 0, dict[tuple[str, ...], Roles](), set[int]()
        for number, record in enumerate(self._records.read()):
            names = tuple(record.values)
            if (roles := cached.get(names)) is None:
                if len(cached) >= _CACHED_ROLES:
                    cached.clear()
                roles = cached[names] = self._roles(names)
            row, name = self._row(number, index, record, roles), roles.caption
            captions = None if name is None else record.values[name]
            if name is None or not isinstance(captions, list):
                yield row
                index += 1
                continue
            group = _list_group(row, number, groups)
            for split in _split(row._replace(list_number=number), captions, name, self.layout.id_name, group):
                yield split
                index += 1

    def read_at(self, indices: Collection[int]) -> Iterator[Row]:
        """Iterate over the rows with these indices; of a Parquet file only their row groups are read."""
        if self.layout.has_lists:
            rows = islice(self.read(), max(indices, default=-1) + 1)
            yield from (row for row in rows if row.index in indices)
            return
        for number, record in self._records.read_at(indices):
            yield self._row(number, number, record, self._roles(tuple(record.values)))

    def count(self) -> int:
        """Return the number of rows; those of a table without lists of captions are not read."""
        exact = self.total if self.layout.schema is not None and not self.layout.has_lists else None
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
        return [file_state(path) for path in (*self._records.files, *self._images.tables)]

    def _content(self) -> str:
        content = [self._records.fingerprint(), *map(file_key, self._images.tables)]
        return "+".join([*content, *([self._references.fingerprint] if self._references else [])])

    def _roles(self, names: tuple[str, ...]) -> Roles:
        image = self.names.find("image", names)
        key = first_of(names, KEY_NAMES) if image is None and self._images.folder is not None else None
        return Roles(self.names.find("caption", names), image, self.names.find("references", names), key)

    def _row(self, number: int, index: int, record: Record, roles: Roles) -> Row:
        values, row_id = record.values, _text(record.values.get(self.layout.id_name))
        image, references, error = self._image_and_references(values, roles)
        caption, caption_error = self._caption(values, roles.caption)
        return Row(
            index,
            str(number) if row_id is None else row_id,
            image,
            caption,
            _text(values.get("group")),
            {
                name: value if type(value) is str else _without_image_bytes(value, is_image=name == roles.image)
                for name, value in values.items()
            },
            record.error or error or caption_error,
            None if roles.key is None else _text(values[roles.key]),
            record.warning,
            row_id is not None,
            None if references is None else tuple(references),
        )

    def _caption(self, values: Mapping[str, Any], name: str | None) -> tuple[str | None, str | None]:
        """Return the caption, or None and an error; a list has neither, since each of its captions becomes a row."""
        if name is None:
            accepted = listed(self.names.accepted("caption"))
            return None, f"no caption; expected one of {accepted}; found: {listed(values)}"
        if isinstance(values[name], list) and values[name]:
            return None, None
        return _checked_caption(values[name], name)

    def _image_and_references(
        self, values: Mapping[str, Any], roles: Roles
    ) -> tuple[File | None, Sequence[Any] | None, str | None]:
        """Return the image, the references and an error of a row; a row with references needs no image."""
        references = None if roles.references is None else read_references(values[roles.references])
        try:
            if references is None and self._references is not None:
                references = self._references.find(values)
            has_image = roles.key is not None or not (roles.image is None or is_missing(values[roles.image]))
            if references and not has_image:
                return None, references, None
            if roles.image is not None:
                return self._images.find(values[roles.image], roles.image), references, None
            if roles.key is not None:
                return self._images.find_by_id(values[roles.key], roles.key), references, None
        except ImageError as error:
            return None, references, str(error)
        accepted = listed(self.names.accepted("image"))
        return None, references, f"no image; expected one of {accepted}; found: {listed(values)}"


def open_rows(
    source: str | Path,
    *,
    images: str | Path | None = None,
    format: str | None = None,  # noqa: A002, the user's word
    columns: ColumnNames = _USUAL,
    references: ReferenceFile | None = None,
    hashed: bool = True,
) -> RowSource:
    """Open rows from a file by its suffix, or `-` for JSON lines on standard input.

    Relative images are looked up in `images`, else next to the rows, else in tables `NAME.images*.parquet` next to the
    rows (columns `file_name` and `image`). Rows without an image column are matched with the images in `images` by
    `image_id` or `id`. `columns` sets column names that differ from the usual ones.

    A row whose caption is a list, such as `{"id": "7", "image": …, "captions": [a, b]}`, becomes one row per caption
    with the ids `7#0` and `7#1`; they are one candidate set, named by the columns `group` and `candidates`.

    The column `references` has human captions; `references` is a file of them for rows without. A row with
    references needs no image. With `hashed` the whole input is hashed at once, which resuming a run needs.
    """
    name = str(source)
    finder, spooled = ImageFinder(name, None if images is None else Path(images)), ExitStack()
    try:
        records = open_records(name, format=format, until=spooled)
        rows = RowSource(name, records, columns, finder, references, spooled.close)
        if hashed:
            _ = rows.fingerprint  # before the rows are read
    except BaseException:
        spooled.close()
        raise
    return rows


def _checked_caption(caption: Any, name: str) -> tuple[str | None, str | None]:
    """Return the caption, or None and an error."""
    if is_missing(caption) or (isinstance(caption, str) and not caption.strip()) or caption == []:
        return None, f"{name} is empty"
    if not isinstance(caption, str):
        return None, f"{name} must be text, got {type(caption).__name__}"
    if name == "prediction" and caption.startswith(_NO_ANSWER):
        return None, f"{name} reports that the model did not answer: {shortened(caption)}"
    return caption, None


def _list_group(row: Row, number: int, earlier: set[int]) -> str:
    """Return the value of column `group` for a list of captions: its own, else its id if no earlier list has it."""
    if row.group is not None:
        return row.group
    has_own = row.has_id and hash(row.id) not in earlier
    earlier.add(hash(row.id))
    return row.id if has_own else f"{row.id if row.has_id else ''}@{number}"


def _split(row: Row, captions: list[Any], name: str, id_name: str, group: str) -> Iterator[Row]:
    """Yield one row per caption of a list, with the position in its `id`; together they are one candidate set.

    An empty list becomes one row with an error. Columns `group` and `candidates` of the input take precedence.
    """
    columns = {id_name: row.id, **row.columns, "group": group}
    columns.setdefault("candidates", len(captions))
    single = single_name(name, columns)
    for position, text in enumerate(captions or [None]):
        caption, error = _checked_caption(text, f"{name}[{position}]")
        row_id, index = f"{row.id}#{position}" if captions else row.id, row.index + position
        values = {single if column == name else column: value for column, value in columns.items()}
        values |= {id_name: row_id, single: text}
        error = row.error or error
        yield row._replace(index=index, id=row_id, caption=caption, columns=values, error=error)


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
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


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
