"""Rows to score, from every input format, and reference captions from a file of their own."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

from msdscore.errors import InputError, RunError, shortened
from msdscore.io.arrow import pa
from msdscore.io.files import file_key, file_state
from msdscore.io.images import from_cell
from msdscore.rows.formats import Records, open_records
from msdscore.rows.images import ImageFinder, ImageNames
from msdscore.rows.rules import (
    IMAGE_NAMES,
    KEY_NAMES,
    REFERENCES,
    SEVERAL,
    ColumnNames,
    Row,
    RowMaker,
    first_of,
    read_references,
    single_name,
)

_USUAL = ColumnNames()
_SAMPLE = 20  # records from which the columns of a format without a header are inferred
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_TEXTS = (REFERENCES, SEVERAL, "caption")  # columns of a file of references
_IMAGE_ID = KEY_NAMES[0]


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


class ReferenceFile:
    """References by image: COCO annotations, JSON lines with an image or id and `references`, or an object id → list.

    An image is identified by its path, with or without suffix, or by its `image_id`; rows of one image are merged.
    The `id` of a row is that of its image only if the row has neither column; else it is that of an annotation.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; expected a file of references")
        self.path, self.fingerprint = Path(path), file_key(Path(path))
        self._by_name: dict[str, list[str]] = {}
        self._by_id: dict[str, list[str]] = {}
        self._names = ImageNames()
        self.without = set[str]()  # images that were looked up in vain
        with ExitStack() as stack:
            for number, record in enumerate(open_records(path, format=None, until=stack).read(), start=1):
                name = first_of(record.values, _TEXTS)
                image, key = self._keys(record.values)
                if record.error or name is None or (image is None and key is None):
                    wanted = "an image or id, and references, captions or caption"
                    raise InputError(f"{path}: item {number}: {record.error or f'expected {wanted}'}")
                texts = [text for text in read_references(record.values[name]) or () if isinstance(text, str)]
                if image is not None:
                    self._by_name.setdefault(self._names.add(image), []).extend(texts)
                if key is not None:
                    self._by_id.setdefault(key, []).extend(texts)
                    if image is None:  # such as {"dog.jpg": […]}
                        self._names.add(key)
        if not any(self._by_name.values()) and not any(self._by_id.values()):
            raise InputError(f"{path}: no references in this file")

    def find(self, values: Mapping[str, Any]) -> list[str] | None:
        """Return the references of a row's image; None if the file has none.

        Raises:
            ImageError: the image may be one of several in the file.
            InputError: images in several folders have the name of one in the file.
        """
        image, key = self._keys(values)
        references = None
        if image is not None and (name := self._names.find(image, any_suffix=True)) is not None:
            references = self._by_name.get(name) or self._by_id.get(name)
        if references is None and key is not None:
            references = self._by_id.get(key)
        if references is None and (image or key):
            self.without.add(image or key or "")
        return references

    def _keys(self, values: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """Return the path and the id of a row's image; the path is None if it has none."""
        column = first_of(values, IMAGE_NAMES)
        cell = None if column is None else from_cell(values[column])
        image = cell if isinstance(cell, str) and cell else None
        return image, next(_ids(values, KEY_NAMES if column is None else (_IMAGE_ID,)), None)

    def __len__(self) -> int:
        return len(self._by_name) or len(self._by_id)

    @property
    def example(self) -> str:
        """One of the images of the file."""
        return next(iter(self._by_name or self._by_id), "")


def _ids(values: Mapping[str, Any], names: list[str] | tuple[str, ...]) -> Iterator[str]:
    for name in names:
        key = values.get(name)
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if isinstance(key, str | int) and not isinstance(key, bool) and key != "":
            yield str(key)


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
        self.name, self.names, self.close = name, names, close
        self.layout = _layout(records, names, name, has_folder=images.folder is not None)
        self._records, self._images, self._references = records, images, references
        self._files = records.files
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
        own = self._records.fingerprint()
        return own if self._references is None else f"{own}+{self._references.fingerprint}"

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
        maker = self._maker()
        for record in self._records.read():
            yield from maker.rows(record.values, error=record.error, warning=record.warning)

    def read_at(self, indices: Collection[int]) -> Iterator[Row]:
        """Iterate over the rows with these indices; of a Parquet file only their row groups are read."""
        if self.layout.has_lists:
            rows = islice(self.read(), max(indices, default=-1) + 1)
            yield from (row for row in rows if row.index in indices)
            return
        maker = self._maker()
        for number, record in self._records.read_at(indices):
            yield from maker.rows(record.values, error=record.error, warning=record.warning, number=number)

    def _maker(self) -> RowMaker:
        return RowMaker(self.names, self._images, self._references, copied=True)

    def check_unchanged(self) -> None:
        """Raise `RunError` if a file of the input was changed or touched since it was opened."""
        states = list(map(file_state, self._files))
        if states != self._states:
            is_lost = any(now is None and before is not None for now, before in zip(states, self._states, strict=True))
            how = "can no longer be read" if is_lost else "was changed or touched while it was scored"
            raise RunError(
                f"{shortened(self.name)}: {how}; finished parts are kept: put the file back and run the command again, "
                "which resumes, or score the new one with --overwrite or into another -o"
            )


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

    Relative images are looked up in `images`, else next to the rows. Rows without an image column are matched with the
    images in `images` by `image_id` or `id`. `columns` sets column names that differ from the usual ones.

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
