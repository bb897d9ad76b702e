"""Rows to score, from every input format."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from msdscore.errors import ImageError, MSDScoreError, RunError, shortened
from msdscore.io.arrow import pa
from msdscore.io.files import File, TarImage, file_key, file_state, is_address
from msdscore.io.targets import Source, file_in, load, run_files
from msdscore.rows.formats import Record, Records, has_input_suffix, open_records
from msdscore.rows.rules import (
    KEY_NAMES,
    ColumnNames,
    ImageFinder,
    first_of,
    is_missing,
    listed,
    read_references,
    single_name,
)

if TYPE_CHECKING:
    from msdscore.rows.references import ReferenceFile

_USUAL = ColumnNames()
_SAMPLE = 20  # records from which the columns of a format without a header are inferred
_NO_ANSWER = "Failed to obtain answer"  # written by VLMEvalKit instead of a prediction
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


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


def _layout(records: Records, names: ColumnNames, source: str, *, has_folder: bool) -> Layout:
    """Return the layout of an input; raise `InputError` if a required column is missing."""
    columns, schema = records.columns, records.schema
    first = islice(records.read(), _SAMPLE) if columns is None else ()
    seen = columns or tuple(dict.fromkeys(name for record in first for name in record.values))
    is_empty = not seen and schema is not None and records.total == 0  # a table without columns and rows
    if (seen or columns is not None) and not is_empty:
        names.check(seen, source, folder=has_folder, lists=columns is None or schema is not None)
    id_name = names.find("id", seen) or names.id or "id"
    if schema is None or is_empty:
        return Layout(columns, seen, id_name)
    image, caption = names.find("image", seen), names.find("caption", seen) or ""
    # Rows have the paths of images rather than their bytes.
    without_bytes = tuple(name for name in seen if _has_bytes(schema.field(name).type, is_image=name == image))
    kinds = {name: pa.string() if name in without_bytes else schema.field(name).type for name in seen}
    has_lists = isinstance(kinds.get(caption), _LISTS)
    if has_lists:  # each row has one of the captions, in the columns of `_split`
        kinds = {id_name: pa.string(), **kinds}
        kinds |= {id_name: pa.string(), caption: kinds[caption].value_type, "group": pa.string()}
        kinds.setdefault("candidates", pa.int64())
        single = single_name(caption, kinds)
        kinds = {single if name == caption else name: kind for name, kind in kinds.items()}
    return Layout(columns, seen, id_name, pa.schema(list(kinds.items())), without_bytes, has_lists)


def _has_bytes(kind: pa.DataType, *, is_image: bool) -> bool:
    """Return whether a column has the bytes of images, as such or in cells of the datasets library."""
    if pa.types.is_struct(kind):
        return {part.name for part in kind} == {"bytes", "path"}
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return is_image and is_binary


class RowSource:
    """An opened input; closing it deletes spooled input."""

    def __init__(
        self,
        name: str,
        records: Records,
        names: ColumnNames,
        images: ImageFinder,
        references: "ReferenceFile | None",
        close: Callable[[], None],
    ) -> None:
        self.name, self.names, self.close = name, names, close
        self.layout = _layout(records, names, name, has_folder=images.folder is not None)
        self._records, self._images, self._references = records, images, references
        self._files = (*records.files, *images.tables)
        self._states = list(map(file_state, self._files))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def images(self) -> str | None:
        """The absolute path of the folder of images."""
        return None if self._images.folder is None else str(self._images.folder.resolve())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content."""
        return self._content()

    def _content(self) -> str:
        hashes = [self._records.fingerprint(), *map(file_key, self._images.tables)]
        return "+".join(hashes if self._references is None else [*hashes, self._references.fingerprint])

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
        index, groups = 0, set[int]()
        roles_of = lru_cache(maxsize=256)(self._roles)  # most records have the columns of others
        for number, record in enumerate(self._records.read()):
            roles = roles_of(tuple(record.values))
            row = self._row(number, index, record, roles)
            has_list = roles.caption is not None and isinstance(record.values[roles.caption], list)
            for split in self._split(row, number, record, roles.caption or "", groups) if has_list else (row,):
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

    def check_unchanged(self, reread: Callable[[], bool] = lambda: True) -> None:
        """Raise if the input has changed since it was opened.

        Files that were rewritten with the same content may have had other content when they were read; then `reread`
        returns whether their rows are the same.

        Raises:
            RunError: its content has changed.
        """
        if list(map(file_state, self._files)) == self._states:
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

    def _roles(self, columns: tuple[str, ...]) -> Roles:
        image = self.names.find("image", columns)
        key = first_of(columns, KEY_NAMES) if image is None and self._images.folder is not None else None
        return Roles(self.names.find("caption", columns), image, self.names.find("references", columns), key)

    def _row(self, number: int, index: int, record: Record, roles: Roles) -> Row:
        """Return the row of a record; of one with a list of captions, the part that its rows share."""
        values = record.values
        row_id = _text(values.get(self.layout.id_name))
        image, references, image_error = self._image_and_references(values, roles)
        if roles.caption is None:
            accepted = listed(self.names.accepted("caption"))
            caption, caption_error = None, f"no caption; expected one of {accepted}; found: {listed(values)}"
        elif isinstance(captions := values[roles.caption], list) and captions:
            caption, caption_error = None, None
        else:
            caption, caption_error = _checked_caption(captions, roles.caption)
        columns = {
            name: value if type(value) is str else _without_image_bytes(value, is_image=name == roles.image)
            for name, value in values.items()
        }
        return Row(
            index,
            str(number) if row_id is None else row_id,
            image,
            caption,
            _text(values.get("group")),
            columns,
            record.error or image_error or caption_error,
            None if roles.key is None else _text(values[roles.key]),
            record.warning,
            row_id is not None,
            None if references is None else tuple(references),
        )

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

    def _split(self, row: Row, number: int, record: Record, name: str, earlier: set[int]) -> Iterator[Row]:
        """Yield one row per caption of the list in column `name`; together they are one candidate set.

        An empty list becomes one row with an error. Columns `group` and `candidates` of the input take precedence;
        else the group is the id of the list, if none of the `earlier` ones has it (of which there are hashes).
        """
        captions: list[Any] = record.values[name]
        group = row.group
        if group is None:
            is_new = row.has_id and hash(row.id) not in earlier
            earlier.add(hash(row.id))
            group = row.id if is_new else f"{row.id if row.has_id else ''}@{number}"
        id_name = self.layout.id_name
        columns = {id_name: row.id, **row.columns, "group": group}
        columns.setdefault("candidates", len(captions))
        single = single_name(name, columns)
        for position, text in enumerate(captions or [None]):
            caption, error = _checked_caption(text, f"{name}[{position}]")
            row_id = f"{row.id}#{position}" if captions else row.id
            values = {single if column == name else column: value for column, value in columns.items()}
            values |= {id_name: row_id, single: text}
            yield row._replace(
                index=row.index + position, id=row_id, caption=caption, columns=values, error=row.error or error,
                list_number=number,
            )  # fmt: skip


def open_rows(
    source: str | Path,
    *,
    images: str | Path | None = None,
    format: str | None = None,  # noqa: A002, the user's word
    columns: ColumnNames = _USUAL,
    references: "ReferenceFile | None" = None,
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


def with_images(files: Iterable[Source], images: Path | None = None) -> Iterator[Source]:
    """Yield files of rows, then the images of their rows, and those of the input of a scored file."""
    for source in files:
        yield source
        if source is None or is_address(str(source)) or not has_input_suffix(file_in(source)):
            continue
        path, origin = file_in(source), None
        with suppress(MSDScoreError, OSError):
            noted = load(run_files(path)[0]).get("source")
            origin = Path(noted) if isinstance(noted, str) and noted != "-" and Path(noted).is_file() else None
        yield origin
        for file in filter(None, (path, origin)):
            with suppress(MSDScoreError, OSError), open_rows(file, images=images) as rows:
                yield from (row.source for row in rows.read() if isinstance(row.source, str))


def _checked_caption(caption: Any, name: str) -> tuple[str | None, str | None]:
    """Return the caption, or None and an error."""
    if is_missing(caption) or (isinstance(caption, str) and not caption.strip()) or caption == []:
        return None, f"{name} is empty"
    if not isinstance(caption, str):
        return None, f"{name} must be text, got {type(caption).__name__}"
    if name == "prediction" and caption.startswith(_NO_ANSWER):
        return None, f"{name} reports that the model did not answer: {shortened(caption)}"
    return caption, None


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
